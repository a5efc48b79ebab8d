/* The page of 'captioning serve': a photo is chosen, dropped, pasted or a sample; the server captions it, and the viewer shows what came back. */
"use strict";

const part = (id) => document.getElementById(id);
const form = part("form");
const viewer = new Viewer(part("viewer"));
const WAIT = 300; // milliseconds that an option may still change before the photo is captioned again

let models = [];
let limits = null;
let shown = null; // { name, blob, url, query } of what the viewer shows
let wanted = null; // { name, blob } of what it shall show
let asked = null; // the request under way
let waiting = 0;

class Refused extends Error {}

/* fetch, but whatever goes wrong is a sentence to show. */
async function ask(address, settings) {
  let response;
  try {
    response = await fetch(address, settings);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer. Is 'captioning serve' still running?");
  }
  if (response.ok) return response;
  const { detail } = await response.json().catch(() => ({}));
  throw new Refused(detail ?? `The server failed (${response.status}).`);
}

/* Say something to all, or only to a screen reader what the eye sees elsewhere. */
function tell(message, { spoken = false } = {}) {
  part("message").textContent = message;
  part("message").classList.toggle("spoken", spoken);
  part("problem").textContent = "";
}

function complain(error) {
  if (error.name === "AbortError") return; // a newer request took its place
  if (!(error instanceof Refused)) throw error;
  tell("");
  part("problem").textContent = error.message;
  part("problem").scrollIntoView({ block: "nearest" });
}

/* The form, as the address takes it: only what means something for the chosen way. */
function query() {
  const chosen = new URLSearchParams();
  for (const field of form.elements) {
    if (!field.name || field.closest("[hidden]") || (field.type === "radio" && !field.checked)) continue;
    const { badInput, valueMissing, rangeUnderflow, rangeOverflow } = field.validity;
    if (badInput || valueMissing || rangeUnderflow || rangeOverflow) {
      throw new Refused(`${field.labels[0].textContent.trim()}: ${field.validationMessage}`);
    }
    chosen.set(field.name, field.value);
  }
  return chosen;
}

const chosenModel = () => models.find(({ name }) => name === form.elements.model.value) ?? models[0];

/* Show the options that mean something. */
function arrange() {
  const model = chosenModel();
  const sampled = form.elements.sample.value === "true";
  part("model-row").hidden = models.length < 2;
  part("look-row").hidden = model.attention !== "hard";
  const looksByChance = model.attention === "hard" && form.elements.look.value === "sample";
  const wanted = { search: !sampled, sample: sampled, chance: sampled || looksByChance };
  for (const row of form.querySelectorAll("[data-for]")) row.hidden = !wanted[row.dataset.for];
}

/* As the model was validated. */
function preset() {
  const { search, look } = chosenModel();
  for (const name of ["beam", "temperature", "top_k", "nucleus"]) form.elements[name].value = search[name];
  form.elements.sample.value = String(search.sample);
  form.elements.look.value = look ?? "argmax";
}

/* A beam finds no more captions than it is wide: what was changed stays, the other follows. */
function reconcile(changed) {
  const { beam, n_best: count, sample } = form.elements;
  if (sample.value === "true" || Number(count.value) <= Number(beam.value)) return;
  if (changed === beam) count.value = beam.value;
  else if (count.validity.valid) beam.value = count.value;
}

/* Caption a photo and show it; if that fails, what was shown before stays. */
async function caption(name, blob) {
  asked?.abort();
  asked = new AbortController();
  wanted = { name, blob };
  let chosen = null;
  try {
    chosen = query();
    if (blob.size > limits.megabytes * 1e6) throw new Refused(`${name}: larger than ${limits.megabytes} MB; scale it down first`);
    tell(`Looking at ${name} …`);
    const response = await ask(`v1/captions?${chosen}`, { method: "POST", body: packed(name, blob), signal: asked.signal });
    const { captions } = await response.json();
    if (shown?.blob !== blob) {
      if (shown) URL.revokeObjectURL(shown.url);
      shown = { name, blob, url: URL.createObjectURL(blob) };
    }
    shown.query = chosen;
    show(captions[0]);
  } catch (error) {
    if (chosen && error.name !== "AbortError") wanted = shown; // options can be set right, and the photo still be captioned
    complain(error);
  }
}

function packed(name, blob) {
  const body = new FormData();
  body.append("images", blob, name);
  return body;
}

function show(best) {
  part("viewer").hidden = part("save").hidden = false;
  document.querySelector("main").classList.remove("empty");
  viewer.show({ photo: shown.url, captions: [best, ...best.others] });
  part("viewer").querySelector("img").addEventListener("error", () =>
    complain(new Refused(`${shown.name}: this browser cannot show such a picture; saved as a page or a PNG it is seen`)));
  tell(`${best.caption}, ${Math.round(100 * best.score)} % sure`, { spoken: true });
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) viewer.play();
  part("result").scrollIntoView({ block: "nearest" });
}

async function save(format) {
  const stem = shown.name.replace(/\.[^.]*$/, "") || "caption";
  const response = await ask(`v1/overlays?${shown.query}&format=${format}`, {
    method: "POST",
    body: packed(shown.name, shown.blob),
  });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await response.blob());
  link.download = `${stem}.${format}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function take(files) {
  if (!files.length) return complain(new Refused("That was not a file. Save the picture first, or copy and paste it."));
  const [file] = files;
  return caption(file.name || "the picture", file);
}

function makeSample(name) {
  const button = document.createElement("button");
  const image = document.createElement("img");
  button.type = "button";
  image.src = `samples/${name}`;
  image.alt = name.replace(/\.\w+$/, "");
  button.append(image);
  button.addEventListener("click", async () => {
    const response = await ask(`samples/${name}`).catch(complain);
    if (response) await caption(name, await response.blob());
  });
  return button;
}

function listen() {
  const target = part("drop");
  part("file").addEventListener("change", (event) => {
    if (event.target.files.length) take(event.target.files);
    event.target.value = ""; // so that the same file can be chosen again
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    target.classList.add("over");
  });
  for (const kind of ["dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      target.classList.remove("over");
    });
  }
  document.addEventListener("drop", (event) => take(event.dataTransfer.files));
  document.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) take(event.clipboardData.files);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target: changed }) => {
    if (changed === form.elements.model) preset();
    reconcile(changed);
    arrange();
    clearTimeout(waiting);
    if (wanted) waiting = setTimeout(() => caption(wanted.name, wanted.blob), WAIT);
  });
  for (const button of part("save").querySelectorAll("button")) {
    button.addEventListener("click", () => save(button.dataset.format).catch(complain));
  }
}

async function begin() {
  ({ models, limits } = await (await ask("v1/models")).json());
  form.elements.model.append(...models.map(({ name, attention }) => new Option(`${name} (${attention})`, name)));
  preset();
  arrange();
  listen();
  const samples = await (await ask("samples")).json();
  part("samples").append(...samples.map(makeSample));
  part("samples").hidden = !samples.length;
}

begin().catch(complain);
