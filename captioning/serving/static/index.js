/* Page of 'captioning serve': sends an image that is chosen, dropped, pasted or an example, and shows its captions. */
"use strict";

const byId = (id) => document.getElementById(id);
const form = byId("form");
const viewer = new Viewer(byId("viewer"));
const DEBOUNCE_MS = 300; // delay between a change of a setting and the next request

let models = [];
let limits = null;
let shown = null; // { name, blob, url, query } in the viewer
let requestedImage = null; // { name, blob } that is captioned again when a setting changes
let pendingRequest = null; // AbortController
let debounceTimer = 0;

class UserError extends Error {}

/* fetch() that turns every failure into a UserError with a readable message. */
async function request(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new UserError("The server does not respond. Check that 'captioning serve' is running.");
  }
  if (response.ok) return response;
  const { detail } = await response.json().catch(() => ({}));
  throw new UserError(detail ?? `The server returned an error (status ${response.status}).`);
}

/* Show a status message; visuallyHidden limits it to screen readers, for content that is visible elsewhere. */
function showStatus(message, { visuallyHidden = false } = {}) {
  byId("status").textContent = message;
  byId("status").classList.toggle("visually-hidden", visuallyHidden);
  byId("error").textContent = "";
}

function showError(error) {
  if (error.name === "AbortError") return; // replaced by a newer request
  if (!(error instanceof UserError)) throw error;
  showStatus("");
  byId("error").textContent = error.message;
  byId("error").scrollIntoView({ block: "nearest" });
}

/* Query parameters of all visible fields. */
function readForm() {
  const query = new URLSearchParams();
  for (const field of form.elements) {
    if (!field.name || field.closest("[hidden]") || (field.type === "radio" && !field.checked)) continue;
    const { badInput, valueMissing, rangeUnderflow, rangeOverflow } = field.validity;
    if (badInput || valueMissing || rangeUnderflow || rangeOverflow) {
      throw new UserError(`${field.labels[0].textContent.trim()}: ${field.validationMessage}`);
    }
    query.set(field.name, field.value);
  }
  return query;
}

const selectedModel = () => models.find(({ name }) => name === form.elements.model.value) ?? models[0];

/* Hide the fields that have no effect with the current settings. */
function updateVisibility() {
  const model = selectedModel();
  const isSampling = form.elements.do_sample.value === "true";
  byId("model-row").hidden = models.length < 2;
  byId("attention-mode-row").hidden = model.attention !== "hard";
  const samplesLocations = model.attention === "hard" && form.elements.attention_mode.value === "sample";
  const visible = { "beam-search": !isSampling, sampling: isSampling, stochastic: isSampling || samplesLocations };
  for (const row of form.querySelectorAll("[data-for]")) row.hidden = !visible[row.dataset.for];
}

/* Set the range and help text of each number field. */
function applyParameters(parameters) {
  for (const field of form.querySelectorAll("input[type=number]")) {
    const { help, minimum, exclusive_minimum: exclusiveMinimum, maximum } = parameters[field.name];
    const step = Number(field.step);
    // The smallest multiple of the step in the range, so that the spin buttons give round values.
    if (minimum !== undefined) field.min = Math.ceil(minimum / step) * step;
    else if (exclusiveMinimum !== undefined) field.min = (Math.floor(exclusiveMinimum / step) + 1) * step;
    field.max = Math.min(maximum ?? Infinity, Number.MAX_SAFE_INTEGER);
    field.closest("label").title = help;
  }
  form.querySelector("fieldset").title = parameters.do_sample.help;
}

function applyModelDefaults() {
  const { generation, attention_mode: attentionMode } = selectedModel();
  for (const field of form.querySelectorAll("input[type=number]")) {
    if (field.name in generation) field.value = generation[field.name];
  }
  form.elements.do_sample.value = String(generation.do_sample);
  form.elements.attention_mode.value = attentionMode ?? "argmax";
}

/* Beam search returns at most num_beams captions: keep the field that was changed and adjust the other. */
function clampNumCaptions(changed) {
  const { num_beams: numBeams, num_return_sequences: numCaptions, do_sample: doSample } = form.elements;
  if (doSample.value === "true" || Number(numCaptions.value) <= Number(numBeams.value)) return;
  if (changed === numBeams) numCaptions.value = numBeams.value;
  else if (numCaptions.validity.valid) numBeams.value = numCaptions.value;
}

/* Caption an image and show it. On failure, the previous image stays visible. */
async function caption(name, blob) {
  pendingRequest?.abort();
  pendingRequest = new AbortController();
  requestedImage = { name, blob };
  let query = null;
  try {
    query = readForm();
    const maxMb = limits.max_request_mb;
    if (blob.size > maxMb * 1e6) throw new UserError(`${name}: exceeds ${maxMb} MB; downscale the image first`);
    showStatus(`Captioning ${name} …`);
    const { signal } = pendingRequest;
    const response = await request(`v1/captions?${query}`, { method: "POST", body: toFormData(name, blob), signal });
    const { captions } = await response.json();
    if (shown?.blob !== blob) {
      if (shown) URL.revokeObjectURL(shown.url);
      shown = { name, blob, url: URL.createObjectURL(blob) };
    }
    shown.query = query;
    show(captions[0]);
  } catch (error) {
    // With an invalid form (no query), the image is kept and captioned once the form is corrected.
    if (query && error.name !== "AbortError") requestedImage = shown;
    showError(error);
  }
}

function toFormData(name, blob) {
  const body = new FormData();
  body.append("images", blob, name);
  return body;
}

function show(best) {
  byId("viewer").hidden = byId("save").hidden = false;
  document.querySelector("main").classList.remove("empty");
  viewer.show({ image: shown.url, captions: [best, ...best.alternatives] });
  byId("viewer").querySelector("img").addEventListener("error", () =>
    showError(new UserError(`${shown.name}: this browser cannot display the image format; save as HTML or PNG to view it`)));
  showStatus(`${best.caption}, score ${Math.round(100 * best.score)} %`, { visuallyHidden: true });
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) viewer.play();
  byId("result").scrollIntoView({ block: "nearest" });
}

async function save(format) {
  const stem = shown.name.replace(/\.[^.]*$/, "") || "caption";
  const response = await request(`v1/overlays?${shown.query}&format=${format}`, {
    method: "POST",
    body: toFormData(shown.name, shown.blob),
  });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = `${stem}.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function handleFiles(files) {
  if (!files.length) return showError(new UserError("No file received. Save the image first, or copy and paste it."));
  const [file] = files;
  return caption(file.name || "image", file);
}

function createExample(name) {
  const button = document.createElement("button");
  const image = document.createElement("img");
  button.type = "button";
  image.src = `examples/${name}`;
  image.alt = name.replace(/\.\w+$/, "");
  button.append(image);
  button.addEventListener("click", async () => {
    const response = await request(`examples/${name}`).catch(showError);
    if (response) await caption(name, await response.blob());
  });
  return button;
}

function bindEvents() {
  byId("file").addEventListener("change", (event) => {
    if (event.target.files.length) handleFiles(event.target.files);
    event.target.value = ""; // allows choosing the same file again
  });
  bindDropAndPaste();
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target: changed }) => {
    if (changed === form.elements.model) applyModelDefaults();
    clampNumCaptions(changed);
    updateVisibility();
    clearTimeout(debounceTimer);
    if (requestedImage) debounceTimer = setTimeout(() => caption(requestedImage.name, requestedImage.blob), DEBOUNCE_MS);
  });
  for (const button of byId("save").querySelectorAll("button")) {
    button.addEventListener("click", () => save(button.dataset.format).catch(showError));
  }
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

async function init() {
  const settings = await (await request("v1/models")).json();
  ({ models, limits } = settings);
  form.elements.model.append(...models.map(({ name, attention }) => new Option(`${name} (${attention})`, name)));
  applyParameters(settings.parameters);
  applyModelDefaults();
  updateVisibility();
  bindEvents();
  const examples = await (await request("examples")).json();
  byId("examples").append(...examples.map(createExample));
  byId("examples").hidden = !examples.length;
}

init().catch(showError);
