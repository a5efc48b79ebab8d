/* The captions of one photo: one viewer, or two side by side for soft and hard attention. */
import { createElement, percent, sentenceCase } from "./dom.js";
import { Viewer } from "./viewer.js";

const THUMBNAIL_SIDE = 160;
const MAX_RECENT = 12;

export class Result {
  #panes;
  #colors = {};
  viewers = [];

  constructor(panes) {
    this.#panes = panes;
  }

  /* entry: { name, url, results: [{ model, captions }] }. */
  show({ url, results }) {
    const isComparison = results.length > 1;
    this.#panes.classList.toggle("side-by-side", isComparison);
    this.viewers = results.map(({ model, captions }) => {
      const root = createElement("div", isComparison ? { class: "viewer-stacked" } : {});
      const viewer = new Viewer(root, { onColors: (colors) => this.#setColors(colors) });
      viewer.show({ image: url, captions, ...this.#colors });
      const label = createElement("p", { class: "pane-label" }, model);
      return Object.assign(viewer, { pane: createElement("div", {}, ...(isComparison ? [label] : []), root) });
    });
    this.#panes.replaceChildren(...this.viewers.map(({ pane }) => pane));
  }

  #setColors(colors) {
    this.#colors = colors;
    for (const viewer of this.viewers) viewer.setColors(colors);
  }
}

/* Thumbnails of recent results; a click shows the result again. */
export class Recent {
  #root;
  #onSelect;
  #entries = [];

  constructor(root, onSelect) {
    this.#root = root;
    this.#onSelect = onSelect;
  }

  async add(entry) {
    const caption = entry.results[0].captions[0];
    const image = createElement("img", { src: await makeThumbnail(entry.url), alt: "" });
    const label = `${entry.name}: ${sentenceCase(caption.caption)}, score ${percent(caption.score)}`;
    const button = createElement("button", { type: "button", "aria-label": label, title: label }, image);
    button.addEventListener("click", () => this.#onSelect(entry));
    const index = this.#entries.findIndex(({ blob }) => blob === entry.blob); // captioned again with other settings
    const removed = index >= 0 ? this.#entries.splice(index, 1) : this.#entries.splice(MAX_RECENT - 1);
    for (const { url, button: old } of removed) {
      old.remove();
      if (url !== entry.url) URL.revokeObjectURL(url);
    }
    this.#entries.unshift(Object.assign(entry, { button }));
    this.#root.querySelector(".thumbnails").prepend(button);
    this.#root.hidden = false;
  }
}

async function makeThumbnail(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  const side = Math.min(image.naturalWidth, image.naturalHeight);
  const canvas = createElement("canvas", { width: THUMBNAIL_SIDE, height: THUMBNAIL_SIDE });
  const [left, top] = [(image.naturalWidth - side) / 2, (image.naturalHeight - side) / 2];
  canvas.getContext("2d").drawImage(image, left, top, side, side, 0, 0, THUMBNAIL_SIDE, THUMBNAIL_SIDE);
  return canvas.toDataURL("image/jpeg", 0.8);
}
