/* Occlusion by hand: a rectangle that is drawn over the photo is filled with gray, and the photo is captioned again. */
import { createElement } from "./dom.js";

const FILL = "rgb(124 116 104)"; // mean color of ImageNet, which carries the least information for the CNN
const MIN_SIDE = 0.02; // fraction of the image; a smaller rectangle is a click
const STEP = 0.05;
const INITIAL = { left: 0.35, top: 0.35, width: 0.3, height: 0.3 };
const LABEL = "Region to occlude: arrow keys show and move it, Shift and arrow keys resize it, Enter occludes it, Escape ends";

/* Add a layer to the figure of a viewer on which a rectangle can be drawn with the pointer or the keyboard.

   onOcclude: called with { left, top, width, height } in fractions of the image. onEnd: called by Escape. */
export function addOcclusionLayer(figure, { onOcclude, onEnd }) {
  const box = createElement("div", { class: "occlusion-box" });
  const layer = createElement("div", { class: "occlusion-layer", tabindex: 0, role: "application", "aria-label": LABEL }, box);
  let start = null;
  let rect = { ...INITIAL };

  const show = () => {
    box.hidden = false;
    for (const [side, value] of Object.entries(rect)) box.style.setProperty(side, `${100 * value}%`);
  };
  const position = (event) => {
    const { left, top, width, height } = layer.getBoundingClientRect();
    return { x: clamp((event.clientX - left) / width, 0, 1), y: clamp((event.clientY - top) / height, 0, 1) };
  };
  layer.addEventListener("pointerdown", (event) => {
    layer.setPointerCapture(event.pointerId);
    start = position(event);
  });
  layer.addEventListener("pointermove", (event) => {
    if (!start) return;
    const { x, y } = position(event);
    rect = {
      left: Math.min(x, start.x), top: Math.min(y, start.y), width: Math.abs(x - start.x), height: Math.abs(y - start.y),
    };
    show();
  });
  layer.addEventListener("pointerup", () => {
    start = null;
    if (rect.width > MIN_SIDE && rect.height > MIN_SIDE) onOcclude(rect);
  });
  layer.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return onEnd();
    if (event.key === "Enter" && !box.hidden) return onOcclude(rect);
    const direction = { ArrowLeft: [-STEP, 0], ArrowRight: [STEP, 0], ArrowUp: [0, -STEP], ArrowDown: [0, STEP] }[event.key];
    if (!direction) return;
    event.preventDefault(); // no scrolling
    if (event.shiftKey) {
      rect.width = clamp(rect.width + direction[0], STEP, 1 - rect.left);
      rect.height = clamp(rect.height + direction[1], STEP, 1 - rect.top);
    } else {
      rect.left = clamp(rect.left + direction[0], 0, 1 - rect.width);
      rect.top = clamp(rect.top + direction[1], 0, 1 - rect.height);
    }
    show();
  });
  box.hidden = true;
  figure.append(layer);
  return layer;
}

/* Fill a rectangle of an image and return the result as a JPEG file. */
export async function occlude(url, { left, top, width, height }) {
  const image = new Image();
  image.src = url;
  await image.decode();
  const canvas = createElement("canvas", { width: image.naturalWidth, height: image.naturalHeight });
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  context.fillStyle = FILL;
  context.fillRect(left * canvas.width, top * canvas.height, width * canvas.width, height * canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.95));
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
