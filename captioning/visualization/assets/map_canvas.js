/* A canvas over an image or a video that shows the attention map of a word. */
import { colorAt, colormapStops, halfAttentionOutline, lerp, lerpMaps, normalize, peak, smooth, upsample } from "./attention.js";
import { DARK_LUMINANCE, DEFAULT_OPACITY } from "./constants.js";
import { createElement } from "./dom.js";

const TRANSITION_MS = 180;
const HIGHLIGHT = "#ffd54a";
const BORDER = "rgb(0 0 0 / 0.7)";

export class MapCanvas {
  element = createElement("canvas", { "aria-hidden": "true" });
  #media;
  #caption = null;
  #index = null;
  #drawn = null; // { map, x, y } on the canvas, interpolated during a transition
  #colormap = "spotlight";
  #opacity = DEFAULT_OPACITY;
  #isDark = false;
  #frame = 0;
  #reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
  #resizeObserver = new ResizeObserver(() => this.#draw());

  /* media: the <img> or <video> element below the canvas. */
  constructor(media) {
    this.#media = media;
    this.#resizeObserver.observe(this.element);
    for (const type of ["load", "loadeddata"]) media.addEventListener(type, () => this.measureLuminance());
  }

  setColors({ colormap, opacity }) {
    this.#colormap = colormap;
    this.#opacity = opacity;
    this.#draw();
  }

  /* Darkening a night photo has no visible effect, so its colors differ. */
  measureLuminance() {
    const context = createElement("canvas", { width: 16, height: 16 }).getContext("2d");
    context.drawImage(this.#media, 0, 0, 16, 16);
    const { data } = context.getImageData(0, 0, 16, 16);
    let sum = 0;
    for (let index = 0; index < data.length; index += 4) {
      sum += 0.299 * data[index] + 0.587 * data[index + 1] + 0.114 * data[index + 2];
    }
    this.#isDark = (4 * sum) / data.length < DARK_LUMINANCE;
    this.#draw();
  }

  /* Show the map of a word with a transition from the previous map; null shows none. */
  show(caption, index) {
    if (caption === this.#caption && index === this.#index) return;
    cancelAnimationFrame(this.#frame);
    this.#caption = caption;
    this.#index = index;
    if (index === null) {
      this.#drawn = null;
      return this.#draw();
    }
    const { attention_map: weights } = caption.words[index];
    const map = normalize(caption.receptive_field ? weights : smooth(weights));
    this.#animateTo({ map, ...peak(map) });
  }

  #animateTo(target) {
    const isSameGrid = this.#drawn?.map.length === target.map.length && this.#drawn.map[0].length === target.map[0].length;
    const start = isSameGrid && !this.#reducedMotion.matches ? this.#drawn : null;
    const startTime = performance.now();
    const step = (now) => {
      const fraction = start ? Math.min(Math.max(now - startTime, 0) / TRANSITION_MS, 1) : 1;
      this.#drawn = fraction === 1 ? target : {
        map: lerpMaps(start.map, target.map, fraction),
        x: lerp(start.x, target.x, fraction), y: lerp(start.y, target.y, fraction),
      };
      this.#draw();
      if (fraction < 1) this.#frame = requestAnimationFrame(step);
    };
    step(startTime);
  }

  #draw() {
    const canvas = this.element;
    if (!canvas.clientWidth) return;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(canvas.clientWidth * ratio);
    canvas.height = Math.round(canvas.clientHeight * ratio);
    if (!this.#drawn) return;
    const context = canvas.getContext("2d");
    const { crop_box: cropBox, receptive_field: receptiveField } = this.#caption;
    const [left, top] = [cropBox[0] * canvas.width, cropBox[1] * canvas.height];
    const box = { left, top, width: cropBox[2] * canvas.width - left, height: cropBox[3] * canvas.height - top };
    // A single location has no gradient: the rest of the image is darkened.
    const stops = colormapStops(receptiveField ? "spotlight" : this.#colormap, this.#opacity, this.#isDark);
    if (receptiveField) this.#drawLocation(context, stops, box, receptiveField);
    else this.#drawGradient(context, stops, box);
  }

  #drawGradient(context, stops, box) {
    const rows = upsample(this.#drawn.map);
    const small = createElement("canvas", { width: rows[0].length, height: rows.length });
    const pixels = new ImageData(small.width, small.height);
    rows.forEach((row, y) => row.forEach((level, x) => {
      const [red, green, blue, alpha] = colorAt(stops, level);
      pixels.data.set([red, green, blue, 255 * alpha], 4 * (y * small.width + x));
    }));
    small.getContext("2d").putImageData(pixels, 0, 0);
    fillOutside(context, stops, box); // the model does not receive this part of the image
    context.imageSmoothingQuality = "high";
    context.drawImage(small, box.left, box.top, box.width, box.height);
    const thickness = 0.8 * lineWidth(context);
    const segments = halfAttentionOutline(this.#drawn.map, rows);
    context.lineCap = "round";
    for (const [color, width] of [[BORDER, 2.5 * thickness], [HIGHLIGHT, thickness]]) {
      context.strokeStyle = color;
      context.lineWidth = width;
      context.beginPath();
      for (const [x1, y1, x2, y2] of segments) {
        context.moveTo(box.left + x1 * box.width, box.top + y1 * box.height);
        context.lineTo(box.left + x2 * box.width, box.top + y2 * box.height);
      }
      context.stroke();
    }
  }

  /* Draw a single location: its cell, its receptive field, and the path of the words up to this one. */
  #drawLocation(context, stops, box, receptiveField) {
    const toX = (x) => box.left + x * box.width;
    const toY = (y) => box.top + y * box.height;
    const boxAround = (width, height) => ({
      left: toX(this.#drawn.x) - width / 2, top: toY(this.#drawn.y) - height / 2, width, height,
    });
    const field = boxAround(receptiveField[0] * context.canvas.width, receptiveField[1] * context.canvas.height);
    fillOutside(context, stops, field);
    const path = this.#caption.words.slice(0, this.#index).map(({ attention_map: map }) => peak(map));
    path.push(this.#drawn);
    const thickness = lineWidth(context);
    const cell = boxAround(box.width / this.#drawn.map[0].length, box.height / this.#drawn.map.length);
    // A wide dark line below each light one keeps it visible on any image.
    for (const [color, width] of [[BORDER, 2.5 * thickness], [HIGHLIGHT, thickness]]) {
      context.strokeStyle = context.fillStyle = color;
      context.lineJoin = "round";
      context.lineWidth = width / 2;
      context.strokeRect(field.left, field.top, field.width, field.height);
      context.lineWidth = width;
      context.strokeRect(cell.left, cell.top, cell.width, cell.height);
      context.beginPath();
      for (const { x, y } of path) context.lineTo(toX(x), toY(y));
      context.stroke();
      for (const { x, y } of path) {
        context.beginPath();
        context.arc(toX(x), toY(y), width + thickness, 0, 2 * Math.PI);
        context.fill();
      }
    }
  }
}

const lineWidth = (context) => Math.max(2, context.canvas.width / 300);

function fillOutside(context, stops, { left, top, width, height }) {
  const [red, green, blue, alpha] = colorAt(stops, 0);
  context.save();
  context.fillStyle = `rgb(${red} ${green} ${blue} / ${alpha})`;
  context.beginPath();
  context.rect(0, 0, context.canvas.width, context.canvas.height);
  context.rect(left, top, width, height);
  context.fill("evenodd");
  context.restore();
}
