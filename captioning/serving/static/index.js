/* Page of 'captioning serve': captions photos that are chosen, dropped, pasted, taken or samples. */
import { postImage, request, requestCaptions, requestDisplayUrl, UserError } from "./api.js";
import { Camera, hasCamera } from "./camera.js";
import { Controls } from "./controls.js";
import { createElement, sentenceCase } from "./dom.js";
import { addOcclusionLayer, occlude } from "./occlusion.js";
import { Recent, Result } from "./result.js";

const byId = (id) => document.getElementById(id);
const DEBOUNCE_MS = 300; // delay between a change of a setting and the next request

const result = new Result(byId("panes"));
const recent = new Recent(byId("recent"), show);
let controls = null;
let camera = null;
let limits = null;
let shown = null; // { name, blob, url, results, queries, original } on the page
let requested = null; // { name, blob, original } that is captioned again when a setting changes
let pending = null; // AbortController of the newest request
let debounceTimer = 0;

/* Show a status message; visuallyHidden limits it to screen readers, for content that the page shows in another place. */
function showStatus(message, { visuallyHidden = false } = {}) {
  byId("status").textContent = message;
  byId("status").classList.toggle("visually-hidden", visuallyHidden);
  byId("error").textContent = "";
}

function showError(error) {
  if (error.name === "AbortError") return; // replaced by a newer request
  if (!(error instanceof UserError)) throw error;
  showStatus("");
  byId("result").hidden = true; // an old result beside a new error would be misleading
  byId("error").textContent = error.message;
  byId("messages").scrollIntoView({ block: "nearest" });
}

/* Caption photos one after the other and show the first; the others appear as thumbnails. */
async function captionPhotos(photos) {
  pending?.abort();
  pending = new AbortController();
  const { signal } = pending;
  camera.stop();
  const errors = [];
  let isFirst = true;
  for (const [index, photo] of photos.entries()) {
    const progress = photos.length > 1 ? ` (${index + 1} of ${photos.length})` : "";
    showStatus(`Captioning ${photo.name}${progress} \u2026`);
    try {
      const entry = await captionPhoto(photo, signal);
      signal.throwIfAborted();
      if (isFirst) show(entry);
      isFirst = false;
      if (!photo.original) await recent.add(entry);
    } catch (error) {
      if (!(error instanceof UserError)) return showError(error);
      errors.push(error.message);
    }
  }
  if (errors.length === photos.length) requested = null;
  if (isFirst) return showError(new UserError(errors.join(" ")));
  showStatus(describe(shown), { visuallyHidden: true });
  byId("error").textContent = errors.join(" ");
}

async function captionPhoto(photo, signal) {
  const maxMb = limits.max_request_mb;
  if (photo.blob.size > maxMb * 1e6) {
    const size = (photo.blob.size / 1e6).toFixed(1);
    throw new UserError(`${photo.name}: ${size} MB exceed the limit of ${maxMb} MB; downscale the photo first.`);
  }
  requested = photo;
  const { queries } = controls;
  const isShown = shown?.blob === photo.blob; // captioned again with other settings
  const [url, ...results] = await Promise.all([
    isShown ? shown.url : requestDisplayUrl(photo, signal),
    ...queries.map((query) => requestCaptions(photo, query, signal)),
  ]);
  return { ...photo, url, results, queries };
}

function show(entry) {
  const isNew = entry.blob !== shown?.blob && !entry.original;
  if (shown?.original && shown.url !== entry.url) URL.revokeObjectURL(shown.url);
  shown = requested = entry;
  const wasEmpty = document.querySelector("main.empty");
  document.querySelector("main").classList.remove("empty");
  byId("result").hidden = false;
  result.show(entry);
  const [{ seconds, model }] = entry.results;
  byId("timing").textContent = `${model}, ${seconds.toFixed(2)} s`;
  byId("restore").hidden = byId("comparison").hidden = !entry.original;
  if (entry.original) {
    const text = sentenceCase(entry.original.results[0].captions[0].caption);
    byId("comparison").replaceChildren("Caption of the whole photo: ", createElement("q", { lang: "" }, text));
  }
  setOcclusion(Boolean(entry.original));
  showStatus(describe(entry), { visuallyHidden: true });
  const isWide = matchMedia("(min-width: 60rem)").matches;
  if (wasEmpty) byId("settings").open = isWide;
  if (isNew && !isWide) byId("result").scrollIntoView({ block: "start", behavior: "instant" });
}

const describe = ({ results }) =>
  results.map(({ captions: [best] }) => `${best.caption}, score ${Math.round(100 * best.score)} %`).join("; ");

/* Start or end the occlusion by hand. */
function setOcclusion(isActive) {
  byId("occlude").setAttribute("aria-pressed", String(isActive));
  for (const layer of document.querySelectorAll(".occlusion-layer")) layer.remove();
  if (!isActive) return;
  for (const viewer of result.viewers) {
    addOcclusionLayer(viewer.image.parentElement, { onOcclude: occludeShown, onEnd: () => setOcclusion(false) });
  }
}

async function occludeShown(rect) {
  const blob = await occlude(shown.url, rect);
  await captionPhotos([{ name: shown.name, blob, original: shown.original ?? shown }]);
  document.querySelector(".occlusion-layer")?.focus({ preventScroll: true });
}

async function save(format) {
  const stem = shown.name.replace(/\.[^.]*$/, "") || "caption";
  const response = await postImage(`v1/overlays?${shown.queries[0]}&format=${format}`, shown);
  const link = createElement("a", { href: URL.createObjectURL(await response.blob()), download: `${stem}.${format}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function handleFiles(files) {
  if (!files.length) return showError(new UserError("No file received. Save the image first, or copy and paste it."));
  return captionPhotos(Array.from(files, (file) => ({ name: file.name || "image", blob: file })));
}

function createSample({ name, title }) {
  const image = createElement("img", { src: `samples/${name}`, alt: title, loading: "lazy" });
  const button = createElement("button", { type: "button", title }, image);
  button.addEventListener("click", async () => {
    const response = await request(`samples/${name}`).catch(showError);
    if (response) await captionPhotos([{ name, blob: await response.blob() }]);
  });
  return button;
}

function bindEvents() {
  for (const input of [byId("file"), byId("snapshot-file")]) {
    input.addEventListener("change", () => {
      if (input.files.length) handleFiles(input.files);
      input.value = ""; // allows choosing the same file again
    });
  }
  bindDropAndPaste();
  byId("occlude").addEventListener("click", () => {
    setOcclusion(byId("occlude").getAttribute("aria-pressed") !== "true");
    document.querySelector(".occlusion-layer")?.focus();
  });
  byId("restore").addEventListener("click", () => captionPhotos([shown.original]));
  byId("live").addEventListener("click", async () => {
    pending?.abort();
    showStatus("");
    byId("result").hidden = true;
    document.querySelector("main").classList.remove("empty");
    await camera.start().catch(showError);
    byId("camera").scrollIntoView({ block: "start" });
  });
  for (const button of document.querySelectorAll("[data-format]")) {
    button.addEventListener("click", () => save(button.dataset.format).catch(showError));
  }
  byId("limits-button").addEventListener("click", () => byId("limits").showModal());
}

function bindDropAndPaste() {
  const dropZone = byId("drop");
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    dropZone.classList.add("drag-over");
  });
  for (const type of ["dragleave", "drop"]) {
    document.addEventListener(type, (event) => {
      event.preventDefault();
      dropZone.classList.remove("drag-over");
    });
  }
  document.addEventListener("drop", (event) => handleFiles(event.dataTransfer.files));
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) handleFiles(event.clipboardData.files);
  });
}

function captionAgain() {
  clearTimeout(debounceTimer);
  if (requested) debounceTimer = setTimeout(() => captionPhotos([requested]), DEBOUNCE_MS);
}

function endCamera() {
  byId("result").hidden = !shown;
  document.querySelector("main").classList.toggle("empty", !shown);
}

function getCameraQuery() {
  const [query] = controls.queries;
  query.set("num_return_sequences", 1);
  return query;
}

async function init() {
  const settings = await (await request("v1/models")).json();
  ({ limits } = settings);
  byId("limits-list").append(...[
    `${limits.max_request_mb} MB per photo`, `${limits.max_image_megapixels} megapixels`,
    `${limits.max_images} photos per request of the API`,
  ].map((text) => createElement("li", {}, text)));
  controls = new Controls(byId("form"), byId("compare"), settings, captionAgain);
  camera = new Camera(byId("camera"), {
    getQuery: getCameraQuery, onPhoto: (file) => handleFiles([file]), onEnd: endCamera,
  });
  byId("live").hidden = !hasCamera();
  bindEvents();
  const samples = await (await request("samples")).json();
  byId("samples").querySelector(".thumbnails").append(...samples.map(createSample));
  document.documentElement.dataset.ready = "true";
}

init().catch(showError);
