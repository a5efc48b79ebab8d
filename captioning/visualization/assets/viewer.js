/* Interactive view of an image, its captions and the attention map of every word. Plain JavaScript without a build
   step or dependencies. It works from a server, and inlined into a page that is opened from disk.

   const viewer = new Viewer(document.querySelector("main"));
   viewer.show({ image: "photo.jpg", captions: [caption, ...caption.alternatives] });   // format: Caption.to_dict() */
"use strict";

const Viewer = (() => {
  const SPOTLIGHT = [[0, 0, 0, 0.75], [0, 0, 0, 0]]; // dark where attention is low, transparent where it is high
  const UPSAMPLE = 16; // factor of the bicubic upsampling of a map; the browser interpolates the rest
  const PLAY_INTERVAL_MS = 900;
  const TRANSITION_MS = 180;
  const MIN_SIDE = 320; // CSS pixels of the longer side: a smaller image is enlarged
  const HINT = "Point at a word, or use the arrow keys, to show its attention map.";

  const percent = (fraction) => `${Math.round(100 * fraction)} %`;

  function createElement(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children); // appends strings as text nodes, never as markup
    return element;
  }

  /* Keys' cubic convolution kernel (a = -1/2), the same as Pillow's BICUBIC, so that pages and PNG files agree. */
  function cubicKernel(distance) {
    const x = Math.abs(distance);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    if (x < 2) return ((-0.5 * x + 2.5) * x - 4) * x + 2;
    return 0;
  }

  function upsampleRows(rows) {
    const numRows = rows.length;
    return Array.from({ length: numRows * UPSAMPLE }, (_, target) => {
      const position = (target + 0.5) / UPSAMPLE - 0.5;
      const row = new Float32Array(rows[0].length);
      let sum = 0;
      for (let source = Math.max(0, Math.ceil(position - 2)); source <= Math.min(numRows - 1, position + 2); source++) {
        const weight = cubicKernel(position - source);
        sum += weight;
        rows[source].forEach((value, index) => (row[index] += weight * value));
      }
      return row.map((value) => value / sum);
    });
  }

  const transpose = (rows) => Array.from(rows[0], (_, column) => rows.map((row) => row[column]));
  const upsample = (map) => transpose(upsampleRows(transpose(upsampleRows(map))));
  const maximum = (map) => Math.max(1e-9, ...map.flat());
  const lerp = (start, end, fraction) => start + (end - start) * fraction;
  const lerpMaps = (start, end, fraction) =>
    end.map((row, y) => row.map((value, x) => lerp(start[y][x], value, fraction)));

  /* Center of the cell with the highest value, in fractions of the map. */
  function peak(map) {
    const values = map.flat();
    const index = values.indexOf(Math.max(...values));
    const columns = map[0].length;
    return { x: ((index % columns) + 0.5) / columns, y: (Math.floor(index / columns) + 0.5) / map.length };
  }

  /* [r, g, b, alpha] of a level in [0, 1], interpolated linearly between the gradient stops. */
  function colorAt(stops, level) {
    const position = Math.min(Math.max(level, 0), 1) * (stops.length - 1);
    const left = Math.min(Math.floor(position), stops.length - 2);
    return stops[left].map((value, channel) => lerp(value, stops[left + 1][channel], position - left));
  }

  return class Viewer {
    #root;
    #id = `viewer-${Math.random().toString(36).slice(2)}`; // unique, since a page may contain several viewers
    #captions = [];
    #colormapStops = SPOTLIGHT;
    #selected = 0; // index of the caption
    #current = null; // index of the word whose map is shown
    #pinned = null; // index of the word that is restored when the pointer leaves
    #drawn = null; // { map, x, y } on the canvas, interpolated during a transition
    #frame = 0;
    #timer = 0;
    #parts = {};
    #words = [];
    #tabs = [];
    #reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
    #resizeObserver = new ResizeObserver(() => this.#draw());

    constructor(root) {
      this.#root = root;
      root.classList.add("viewer");
    }

    /* Show an image (a URL) with its captions, best first. colormapStops: [[r, g, b, alpha], ...] from low to high. */
    show({ image: url, captions, colormapStops = SPOTLIGHT }) {
      this.stop();
      this.#resizeObserver.disconnect();
      this.#captions = captions;
      this.#colormapStops = colormapStops;
      const image = createElement("img", { src: url, alt: captions[0].caption, draggable: "false" });
      const canvas = createElement("canvas", { "aria-hidden": "true" });
      this.#parts = { image, canvas, ...this.#createControls() };
      const { sentence, status, play, tabs } = this.#parts;
      this.#tabs = captions.map((caption, index) => this.#createTab(caption, index));
      tabs.append(...this.#tabs);
      const legend = createElement("p", { class: "viewer-legend" }, createElement("span", {}, "Probability 0 %"),
        createElement("span", { class: "viewer-scale", "aria-hidden": "true" }), createElement("span", {}, "100 %"));
      this.#root.replaceChildren(
        createElement("figure", { class: "viewer-figure" }, createElement("div", { class: "viewer-image" }, image, canvas)),
        createElement("div", { class: "viewer-text" }, sentence,
          createElement("div", { class: "viewer-bar" }, play, status), legend, ...(captions.length > 1 ? [tabs] : [])),
      );
      image.addEventListener("load", () => {
        const scale = MIN_SIDE / Math.max(image.naturalWidth, image.naturalHeight);
        if (scale > 1) image.width = Math.round(scale * image.naturalWidth);
        this.#draw();
      });
      this.#resizeObserver.observe(canvas);
      this.select(0);
    }

    /* Select one of the captions. */
    select(index) {
      this.stop();
      this.#selected = index;
      this.#tabs.forEach((tab, tabIndex) => {
        tab.setAttribute("aria-selected", String(tabIndex === index));
        tab.tabIndex = tabIndex === index ? 0 : -1;
      });
      this.#words = this.#captions[index].words.map((word, wordIndex) => this.#createWord(word, wordIndex));
      this.#parts.sentence.replaceChildren(...this.#words);
      this.#parts.play.disabled = !this.#words.length;
      this.#drawn = null; // no transition from the maps of another caption
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
        if (index >= this.#words.length) return this.stop();
        this.focus(index);
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

    #createControls() {
      const sentence = createElement("div", {
        class: "viewer-words", id: `${this.#id}-words`, role: "toolbar", dir: "auto", lang: "",
        "aria-label": this.#captions.length > 1 ? "Words of the selected caption" : "Words of the caption",
      });
      const status = createElement("p", { class: "viewer-status", role: "status" });
      const play = createElement("button", { type: "button", class: "viewer-play" }, "Play");
      const tabs = createElement("div", {
        class: "viewer-tabs", role: "tablist", "aria-label": "Captions, best first", "aria-orientation": "vertical",
      });
      sentence.addEventListener("keydown", (event) => this.#onKeydown(event));
      sentence.addEventListener("pointerleave", () => this.#timer || this.#showWord(this.#pinned));
      tabs.addEventListener("keydown", (event) => this.#onTabKeydown(event));
      play.addEventListener("click", () => (this.#timer ? this.stop() : this.play()));
      return { sentence, status, play, tabs };
    }

    #createWord({ word, probability }, index) {
      const button = createElement("button", {
        type: "button", class: "viewer-word", title: `probability ${percent(probability)}`,
        "aria-label": `${word}, probability ${percent(probability)}`,
      }, word);
      button.style.setProperty("--prob", probability); // a style attribute would violate the content security policy
      button.tabIndex = index === 0 ? 0 : -1; // roving tabindex: one tab stop, arrow keys inside
      button.addEventListener("pointerenter", (event) => {
        if (event.pointerType === "touch") return; // a click event follows
        this.stop();
        this.#showWord(index);
      });
      for (const type of ["click", "focus"]) {
        button.addEventListener(type, () => {
          this.stop();
          this.focus(index);
        });
      }
      return button;
    }

    #createTab({ caption, score }, index) {
      const tab = createElement("button", {
        type: "button", class: "viewer-tab", role: "tab", "aria-controls": `${this.#id}-words`,
        "aria-label": `Caption ${index + 1}: ${caption}, score ${percent(score)}`,
      }, createElement("span", { class: "viewer-tab-text", dir: "auto", lang: "" }, caption),
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
      if (index === this.#current && this.#drawn) return;
      this.#current = index;
      const caption = this.#captions[this.#selected];
      this.#words.forEach((button, wordIndex) => {
        button.classList.toggle("viewer-current", wordIndex === index);
        button.tabIndex = wordIndex === (index ?? 0) ? 0 : -1;
      });
      cancelAnimationFrame(this.#frame);
      if (index === null) {
        this.#parts.status.textContent = this.#words.length ? HINT : "The caption has no words.";
        this.#drawn = null;
        return this.#draw();
      }
      const { word, probability, attention_map: map } = caption.words[index];
      const isolated = `\u2068${word}\u2069`; // bidi isolation: a right-to-left word must not reorder the line
      this.#parts.status.textContent =
        `${isolated}: probability ${percent(probability)}, word ${index + 1} of ${this.#words.length}`;
      const top = maximum(map);
      this.#animateTo({ map: map.map((row) => row.map((value) => value / top)), ...peak(map) });
    }

    #animateTo(target) {
      const start = this.#drawn;
      const startTime = performance.now();
      const step = (now) => {
        const fraction = start && !this.#reducedMotion.matches
          ? Math.min(Math.max(now - startTime, 0) / TRANSITION_MS, 1) : 1;
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
      const { canvas } = this.#parts;
      if (!canvas?.clientWidth) return;
      const ratio = window.devicePixelRatio || 1;
      canvas.width = Math.round(canvas.clientWidth * ratio);
      canvas.height = Math.round(canvas.clientHeight * ratio);
      if (!this.#drawn) return;
      const context = canvas.getContext("2d");
      const { crop_box: cropBox, receptive_field: receptiveField } = this.#captions[this.#selected];
      const [left, top] = [cropBox[0] * canvas.width, cropBox[1] * canvas.height];
      const box = { left, top, width: cropBox[2] * canvas.width - left, height: cropBox[3] * canvas.height - top };
      if (receptiveField) this.#drawHardAttention(context, box, receptiveField);
      else this.#drawSoftAttention(context, box);
    }

    #fillOutside(context, { left, top, width, height }) {
      context.save();
      context.fillStyle = this.#cssColor(0);
      context.beginPath();
      context.rect(0, 0, context.canvas.width, context.canvas.height);
      context.rect(left, top, width, height);
      context.fill("evenodd");
      context.restore();
    }

    #cssColor(level) {
      const [red, green, blue, alpha] = colorAt(this.#colormapStops, level);
      return `rgb(${red} ${green} ${blue} / ${alpha})`;
    }

    #drawSoftAttention(context, box) {
      const rows = upsample(this.#drawn.map);
      const small = createElement("canvas", { width: rows[0].length, height: rows.length });
      const pixels = new ImageData(small.width, small.height);
      rows.flatMap((row) => Array.from(row)).forEach((level, index) => {
        const [red, green, blue, alpha] = colorAt(this.#colormapStops, level);
        pixels.data.set([red, green, blue, 255 * alpha], 4 * index);
      });
      small.getContext("2d").putImageData(pixels, 0, 0);
      this.#fillOutside(context, box); // the model does not receive this part of the image
      context.imageSmoothingQuality = "high";
      context.drawImage(small, box.left, box.top, box.width, box.height);
    }

    /* Draw a single location: its cell, its receptive field, and the scanpath of the words up to this one. */
    #drawHardAttention(context, box, receptiveField) {
      const { words } = this.#captions[this.#selected];
      const toX = (x) => box.left + x * box.width;
      const toY = (y) => box.top + y * box.height;
      const boxAround = (width, height) => ({
        left: toX(this.#drawn.x) - width / 2, top: toY(this.#drawn.y) - height / 2, width, height,
      });
      const field = boxAround(receptiveField[0] * context.canvas.width, receptiveField[1] * context.canvas.height);
      this.#fillOutside(context, field);
      const scanpath = words.slice(0, this.#current).map(({ attention_map: map }) => peak(map));
      scanpath.push(this.#drawn);
      const thickness = Math.max(2, context.canvas.width / 300);
      const cell = boxAround(box.width / this.#drawn.map[0].length, box.height / this.#drawn.map.length);
      // A wide dark line below each light one keeps it visible on any image.
      for (const [color, width] of [["rgb(0 0 0 / 0.7)", 2.5 * thickness], ["#ffd54a", thickness]]) {
        context.strokeStyle = context.fillStyle = color;
        context.lineJoin = "round";
        context.lineWidth = width / 2;
        context.strokeRect(field.left, field.top, field.width, field.height);
        context.lineWidth = width;
        context.strokeRect(cell.left, cell.top, cell.width, cell.height);
        context.beginPath();
        for (const { x, y } of scanpath) context.lineTo(toX(x), toY(y));
        context.stroke();
        for (const { x, y } of scanpath) {
          context.beginPath();
          context.arc(toX(x), toY(y), width + thickness, 0, 2 * Math.PI);
          context.fill();
        }
      }
    }
  };
})();
