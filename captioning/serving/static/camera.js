/* Live captions of a camera: one frame is captioned at a time, and frames that arrive meanwhile are dropped. */
import { requestCaptions, UserError } from "./api.js";
import { createElement, isContentWord, percent, sentenceCase } from "./dom.js";
import { MapCanvas } from "./map_canvas.js";

const FRAME_SIDE = 480; // pixels; the models receive less
const WORD_INTERVAL_MS = 600;
const RETRY_MS = 500; // after an error, for instance while the server is busy
const RATE_WINDOW_MS = 5000;

export const hasCamera = () => Boolean(navigator.mediaDevices?.getUserMedia); // only on localhost or with HTTPS

export class Camera {
  #root;
  #getQuery;
  #onPhoto;
  #onEnd;
  #stream = null;
  #parts = {};
  #caption = null;
  #word = 0;
  #timer = 0;
  #finished = []; // times of the last captions

  /* getQuery: query parameters of a request. onPhoto: receives a frame as a file. onEnd: called after the end. */
  constructor(root, { getQuery, onPhoto, onEnd }) {
    this.#root = root;
    this.#getQuery = getQuery;
    this.#onPhoto = onPhoto;
    this.#onEnd = onEnd;
  }

  async start() {
    if (this.#stream) return;
    try {
      const video = { facingMode: "environment", width: { ideal: 1280 } };
      this.#stream = await navigator.mediaDevices.getUserMedia({ video });
    } catch (error) {
      throw new UserError(`The camera cannot be used (${error.message}). Allow it in the browser, or choose a photo.`);
    }
    this.#build();
    this.#parts.video.srcObject = this.#stream;
    await this.#parts.video.play();
    this.#root.hidden = false;
    this.#timer = setInterval(() => this.#showNextWord(), WORD_INTERVAL_MS);
    this.#run(this.#stream);
  }

  stop() {
    if (!this.#stream) return;
    clearInterval(this.#timer);
    for (const track of this.#stream.getTracks()) track.stop();
    this.#stream = null;
    this.#caption = null;
    this.#finished = [];
    this.#root.hidden = true;
    this.#root.replaceChildren();
    this.#onEnd();
  }

  #build() {
    const video = createElement("video", { playsinline: "", "aria-label": "Camera" });
    video.muted = true;
    const canvas = new MapCanvas(video);
    const sentence = createElement("h2", { class: "viewer-headline", "aria-live": "off" }, "\u2026");
    const status = createElement("p", { class: "viewer-facts" });
    const stop = createElement("button", { type: "button" }, "Stop");
    const photo = createElement("button", { type: "button" }, "Keep this photo");
    const figure = createElement("div", { class: "viewer-image" }, video, canvas.element);
    stop.addEventListener("click", () => this.stop());
    photo.addEventListener("click", async () => {
      const blob = await this.#grabFrame();
      this.stop();
      this.#onPhoto(new File([blob], "camera.jpg", { type: "image/jpeg" }));
    });
    video.addEventListener("loadedmetadata", () => {
      figure.style.setProperty("--ratio", video.videoWidth / video.videoHeight);
    });
    this.#parts = { video, canvas, sentence, status };
    this.#root.replaceChildren(createElement("div", { class: "viewer" },
      createElement("div", { class: "viewer-head" }, sentence, status),
      createElement("figure", { class: "viewer-figure" }, figure),
      createElement("div", { class: "viewer-text" }, createElement("div", { class: "actions" }, photo, stop))));
  }

  /* Caption one frame after the other until the stream ends. */
  async #run(stream) {
    while (this.#stream === stream) {
      const start = performance.now();
      try {
        const photo = { name: "frame.jpg", blob: await this.#grabFrame() };
        const { captions } = await requestCaptions(photo, this.#getQuery());
        if (this.#stream === stream) this.#show(captions[0], performance.now() - start);
      } catch (error) {
        if (!(error instanceof UserError)) throw error;
        if (this.#stream === stream) this.#parts.status.textContent = error.message;
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  #grabFrame() {
    const { video } = this.#parts;
    const scale = Math.min(1, FRAME_SIDE / Math.max(video.videoWidth, video.videoHeight));
    const size = { width: Math.round(scale * video.videoWidth), height: Math.round(scale * video.videoHeight) };
    const canvas = createElement("canvas", size);
    canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.9));
  }

  #show(caption, delay) {
    const isChanged = caption.caption !== this.#caption?.caption;
    this.#caption = caption;
    const { sentence, status, canvas } = this.#parts;
    if (isChanged) {
      this.#word = 0;
      sentence.replaceChildren(...caption.words.flatMap(({ word }, index) => [createElement("span", {
        class: `viewer-word ${isContentWord(word) ? "viewer-content-word" : "viewer-function-word"}`,
      }, index === 0 ? sentenceCase(word) : word), " "]));
    }
    canvas.measureLuminance();
    this.#showWord();
    const now = performance.now();
    this.#finished = [...this.#finished.filter((time) => now - time < RATE_WINDOW_MS), now];
    const rate = (1000 * (this.#finished.length - 1)) / (now - this.#finished[0]) || 0;
    const { score, confidence, is_uncertain: isUncertain } = caption;
    const certainty = isUncertain ? "not sure" : `${confidence === undefined ? "score" : "confidence"} ${percent(confidence ?? score)}`;
    status.textContent = `${certainty} \u00b7 ${rate.toFixed(1)} captions per second \u00b7 delay ${Math.round(delay)} ms`;
  }

  /* The maps of the content words, one after the other. */
  #showNextWord() {
    const words = this.#caption?.words ?? [];
    for (let step = 1; step <= words.length; step++) {
      const index = (this.#word + step) % words.length;
      if (!isContentWord(words[index].word)) continue;
      this.#word = index;
      return this.#showWord();
    }
  }

  #showWord() {
    const { canvas, sentence } = this.#parts;
    if (!this.#caption?.words.length) return;
    canvas.show(this.#caption, this.#word);
    Array.from(sentence.children, (span, index) => span.classList.toggle("viewer-current", index === this.#word));
  }
}
