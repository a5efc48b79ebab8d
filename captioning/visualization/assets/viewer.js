/* Interactive view of an image, its captions and the attention map of every word, without dependencies.

   const viewer = new Viewer(document.querySelector("main"));
   viewer.show({ image: "photo.jpg", captions: [caption, ...caption.alternatives] });   // format: Caption.to_dict() */
import { halfAttention, smooth } from "./attention.js";
import { COLORMAPS, COLORMAP_LEGENDS, DEFAULT_OPACITY, LOCATION_LEGEND, OUTLINE_LEGEND } from "./constants.js";
import { copyText, createElement, isContentWord, percent, sentenceCase } from "./dom.js";
import { MapCanvas } from "./map_canvas.js";

const PLAY_INTERVAL_MS = 900;
const MAX_ENLARGEMENT = 3; // of small images
const MIN_WIDTH = 240; // CSS pixels
const HINT = matchMedia("(hover: none), (max-width: 40rem)").matches
  ? "Tap a word to show its attention map." : "Point at a word, or use the arrow keys, to show its attention map.";

export class Viewer {
  #root;
  #id = `viewer-${Math.random().toString(36).slice(2)}`; // unique, since a page may contain several viewers
  #captions = [];
  #canvas = null;
  #selected = 0; // index of the caption
  #current = null; // index of the word whose map is shown
  #pinned = null; // index of the word that is restored when the pointer leaves
  #timer = 0;
  #parts = {};
  #words = [];
  #tabs = [];
  #onColors;

  /* onColors: called when the user changes the colors, with { colormap, opacity }. */
  constructor(root, { onColors = () => {} } = {}) {
    this.#root = root;
    this.#onColors = onColors;
    root.classList.add("viewer");
  }

  get caption() {
    return this.#captions[this.#selected];
  }

  get image() {
    return this.#parts.image;
  }

  /* Show an image (a URL) with its captions, best first. */
  show({ image: url, captions, colormap = "spotlight", opacity = DEFAULT_OPACITY }) {
    this.stop();
    this.#captions = captions;
    const image = createElement("img", { src: url, alt: captions[0].caption, draggable: "false" });
    this.#canvas = new MapCanvas(image);
    this.#parts = { image, ...this.#createHeadline(), ...this.#createTools() };
    const { headline, facts, status, play, tools, legend } = this.#parts;
    this.#tabs = captions.map((caption, index) => this.#createTab(caption, index));
    this.#parts.figure = createElement("div", { class: "viewer-image" }, image, this.#canvas.element);
    this.#root.replaceChildren(
      createElement("div", { class: "viewer-head" }, headline, facts),
      createElement("figure", { class: "viewer-figure" }, this.#parts.figure),
      createElement("div", { class: "viewer-text" },
        createElement("div", { class: "viewer-bar" }, play, status), tools, legend,
        ...(captions.length > 1 ? [this.#createTabs()] : [])),
    );
    image.addEventListener("load", () => {
      const { naturalWidth: width, naturalHeight: height } = image;
      this.#parts.figure.style.setProperty("--ratio", width / height);
      this.#parts.figure.style.setProperty("--max-width", `${Math.max(MAX_ENLARGEMENT * width, MIN_WIDTH)}px`);
    });
    image.addEventListener("click", () => this.focus(null));
    this.setColors({ colormap, opacity });
    this.select(0);
  }

  setColors({ colormap, opacity }) {
    const { colors, range, legend } = this.#parts;
    colors.value = colormap;
    range.value = opacity;
    this.#canvas.setColors({ colormap, opacity });
    const isLocation = Boolean(this.#captions[0].receptive_field);
    legend.textContent = isLocation ? LOCATION_LEGEND : `${COLORMAP_LEGENDS[colormap]} ${OUTLINE_LEGEND}`;
    colors.closest("label").hidden = isLocation; // the rest of the image is darkened in any case
  }

  /* Select one of the captions. */
  select(index) {
    this.stop();
    this.#selected = index;
    this.#tabs.forEach((tab, tabIndex) => {
      tab.setAttribute("aria-selected", String(tabIndex === index));
      tab.tabIndex = tabIndex === index ? 0 : -1;
    });
    this.#words = this.caption.words.map((word, wordIndex) => this.#createWord(word, wordIndex));
    this.#parts.sentence.replaceChildren(...this.#words.flatMap((word) => [word, " "]));
    this.#parts.confidence.replaceChildren(...describeConfidence(this.caption));
    this.#parts.play.disabled = !this.#words.length;
    this.#canvas.show(null, null); // no transition from the maps of another caption
    this.focus(null);
  }

  /* Show and pin the map of a word; null shows the image without a map. */
  focus(index) {
    this.#pinned = index;
    this.#showWord(index);
  }

  /* Show the words one after the other, starting after the current one. */
  play() {
    this.stop();
    if (!this.#words.length) return;
    const next = () => {
      const index = this.#current === null ? 0 : this.#current + 1;
      if (index < this.#words.length) return this.focus(index);
      this.stop();
      this.focus(null);
    };
    if (this.#current === this.#words.length - 1) this.focus(null);
    this.#timer = setInterval(next, PLAY_INTERVAL_MS);
    this.#parts.play.textContent = "Pause";
    this.#root.classList.add("viewer-playing");
    this.#parts.status.setAttribute("aria-live", "off"); // screen readers cannot keep up with the playback
    next();
  }

  stop() {
    clearInterval(this.#timer);
    this.#timer = 0;
    if (!this.#parts.play) return;
    this.#parts.play.textContent = "Play";
    this.#root.classList.remove("viewer-playing");
    this.#parts.status.setAttribute("aria-live", "polite");
  }

  #createHeadline() {
    const sentence = createElement("span", {
      class: "viewer-words", id: `${this.#id}-words`, role: "toolbar", dir: "auto", lang: "",
      "aria-label": this.#captions.length > 1 ? "Words of the selected caption" : "Words of the caption",
    });
    sentence.addEventListener("keydown", (event) => this.#onKeydown(event));
    sentence.addEventListener("pointerleave", () => this.#timer || this.#showWord(this.#pinned));
    const headline = createElement("h2", { class: "viewer-headline" }, sentence);
    const confidence = createElement("span", { class: "viewer-confidence" });
    const copy = createElement("button", { type: "button", class: "viewer-copy" }, "Copy");
    copy.addEventListener("click", async () => {
      await copyText(`${sentenceCase(this.caption.caption)}.`);
      copy.textContent = "Copied";
      setTimeout(() => (copy.textContent = "Copy"), 1500);
    });
    return { headline, sentence, confidence, facts: createElement("p", { class: "viewer-facts" }, confidence, copy) };
  }

  #createTools() {
    const status = createElement("p", { class: "viewer-status", role: "status" });
    const play = createElement("button", { type: "button", class: "viewer-play" }, "Play");
    play.addEventListener("click", () => (this.#timer ? this.stop() : this.play()));
    const colors = createElement("select", {},
      ...Object.keys(COLORMAPS).map((name) => createElement("option", { value: name }, sentenceCase(name))));
    const range = createElement("input", { type: "range", min: 0.2, max: 1, step: 0.05 });
    const change = () => {
      const values = { colormap: colors.value, opacity: Number(range.value) };
      this.setColors(values);
      this.#onColors(values);
    };
    colors.addEventListener("change", change);
    range.addEventListener("input", change);
    const tools = createElement("div", { class: "viewer-tools" },
      createElement("label", {}, "Colors ", colors), createElement("label", {}, "Opacity ", range));
    return { status, play, colors, range, tools, legend: createElement("p", { class: "viewer-legend" }) };
  }

  #createWord({ word, probability }, index) {
    const kind = isContentWord(word) ? "viewer-content-word" : "viewer-function-word";
    const button = createElement("button", {
      type: "button", class: `viewer-word ${kind}`, "aria-label": `${word}, probability ${percent(probability)}`,
    }, index === 0 ? sentenceCase(word) : word);
    button.style.setProperty("--prob", probability); // a style attribute would violate the content security policy
    button.tabIndex = index === 0 ? 0 : -1; // roving tabindex: one tab stop, arrow keys inside
    button.addEventListener("pointerenter", (event) => {
      if (event.pointerType === "touch") return; // a click event follows
      this.stop();
      this.#showWord(index);
    });
    button.addEventListener("focus", () => {
      this.stop();
      this.#showWord(index);
    });
    button.addEventListener("blur", () => this.#timer || this.#showWord(this.#pinned));
    button.addEventListener("click", () => {
      this.stop();
      this.focus(this.#pinned === index ? null : index);
    });
    return button;
  }

  #createTabs() {
    const tabs = createElement("div", {
      class: "viewer-tabs", role: "tablist", "aria-label": "Captions, best first", "aria-orientation": "vertical",
    }, ...this.#tabs);
    tabs.addEventListener("keydown", (event) => this.#onTabKeydown(event));
    return tabs;
  }

  #createTab({ caption, score }, index) {
    const tab = createElement("button", {
      type: "button", class: "viewer-tab", role: "tab", "aria-controls": `${this.#id}-words`,
      "aria-label": `Caption ${index + 1}: ${caption}, score ${percent(score)}`,
    }, createElement("span", { class: "viewer-tab-text", dir: "auto", lang: "" }, sentenceCase(caption)),
    createElement("span", { class: "viewer-score" }, percent(score)));
    tab.addEventListener("click", () => this.select(index));
    return tab;
  }

  #onKeydown(event) {
    const isRightToLeft = getComputedStyle(this.#parts.sentence).direction === "rtl";
    const last = this.#words.length - 1;
    const index = this.#current ?? -1;
    const targets = {
      ArrowRight: index + 1, ArrowLeft: index - 1, ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: last,
    };
    if (isRightToLeft) [targets.ArrowLeft, targets.ArrowRight] = [index + 1, index - 1];
    if (event.key === "Escape") {
      this.stop();
      this.focus(null);
    } else if (event.key in targets) {
      event.preventDefault(); // no scrolling
      this.#words[Math.min(Math.max(targets[event.key], 0), last)].focus();
    }
  }

  #onTabKeydown(event) {
    const last = this.#tabs.length - 1;
    const targets = { ArrowDown: this.#selected + 1, ArrowUp: this.#selected - 1, Home: 0, End: last };
    if (!(event.key in targets)) return;
    event.preventDefault();
    this.select(Math.min(Math.max(targets[event.key], 0), last));
    this.#tabs[this.#selected].focus();
  }

  #showWord(index) {
    this.#current = index;
    this.#words.forEach((button, wordIndex) => {
      button.classList.toggle("viewer-current", wordIndex === index);
      button.setAttribute("aria-pressed", String(wordIndex === this.#pinned));
      button.tabIndex = wordIndex === (index ?? 0) ? 0 : -1;
    });
    this.#canvas.show(this.caption, index);
    const { status } = this.#parts;
    if (index !== null) status.textContent = describeWord(this.caption, index);
    else status.textContent = this.#words.length ? HINT : "The caption has no words.";
  }
}

/* The values of a word in a sentence. */
export function describeWord(caption, index) {
  const { word, probability, attention_map: map, context_gate: gate } = caption.words[index];
  const isolated = `\u2068${word}\u2069`; // bidi isolation: a right-to-left word must not reorder the line
  const values = [`probability ${percent(probability)}`];
  if (!caption.receptive_field) values.push(`half of the attention in ${percent(halfAttention(smooth(map)).area)} of the image`);
  if (typeof gate === "number") values.push(`gate ${gate.toFixed(2)}`);
  return `${isolated}: ${values.join(", ")}; word ${index + 1} of ${caption.words.length}`;
}

/* The confidence, or for a model that is not calibrated the score. */
function describeConfidence({ score, confidence, is_uncertain: isUncertain }) {
  if (confidence === undefined) return [`Score ${percent(score)}`];
  const value = `Confidence ${percent(confidence)}`;
  return isUncertain ? [createElement("strong", { class: "viewer-unsure" }, "Not sure"), ` \u00b7 ${value}`] : [value];
}
