/* A photo, a caption of it, and for every word where the model looked. Plain JavaScript: no build step, no dependency,
   no network. Works from a server, and inlined into a page that is opened from disk.

   const viewer = new Viewer(document.querySelector("main"));
   viewer.show({ photo: "photo.jpg", captions: [caption, ...caption.others] });   // as Caption.describe() tells them */
"use strict";

const Viewer = (() => {
  const LIGHT = [[0, 0, 0, 0.75], [0, 0, 0, 0]]; // dark where the map is low, the bare photo where it is high
  const FINER = 16; // a map is made so much finer by cubic curves; the browser's own smoothing does the rest
  const PAUSE = 900; // milliseconds for each word that is played
  const GLIDE = 180; // milliseconds in which a map becomes the next one
  const SMALLEST = 320; // CSS pixels of the longer side: a smaller photo is shown larger
  const HINT = "Point at a word, or walk through them with the arrow keys.";

  const percent = (share) => `${Math.round(100 * share)} %`;

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children); // text stays text, whatever is in it
    return element;
  }

  /* Keys's cubic (a = -1/2), the curve that Pillow's BICUBIC takes, so that pages and PNGs show the same. */
  function cubic(distance) {
    const x = Math.abs(distance);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    if (x < 2) return ((-0.5 * x + 2.5) * x - 4) * x + 2;
    return 0;
  }

  function finerLines(lines) {
    const from = lines.length;
    return Array.from({ length: from * FINER }, (_, target) => {
      const at = (target + 0.5) / FINER - 0.5;
      const line = new Float32Array(lines[0].length);
      let sum = 0;
      for (let source = Math.max(0, Math.ceil(at - 2)); source <= Math.min(from - 1, at + 2); source++) {
        const weight = cubic(at - source);
        sum += weight;
        lines[source].forEach((value, index) => (line[index] += weight * value));
      }
      return line.map((value) => value / sum);
    });
  }

  const turned = (lines) => Array.from(lines[0], (_, column) => lines.map((line) => line[column]));
  const finer = (map) => turned(finerLines(turned(finerLines(map))));
  const highest = (map) => Math.max(1e-9, ...map.flat());
  const mix = (before, after, share) => before + (after - before) * share;
  const between = (before, after, share) =>
    after.map((row, y) => row.map((value, x) => mix(before[y][x], value, share)));

  /* The middle of a map's highest cell, in shares of the map. */
  function middle(map) {
    const all = map.flat();
    const index = all.indexOf(Math.max(...all));
    const columns = map[0].length;
    return { x: ((index % columns) + 0.5) / columns, y: (Math.floor(index / columns) + 0.5) / map.length };
  }

  /* [r, g, b, opacity] of a level from 0 to 1, on the line through the given ones. */
  function colourAt(colours, level) {
    const at = Math.min(Math.max(level, 0), 1) * (colours.length - 1);
    const left = Math.min(Math.floor(at), colours.length - 2);
    return colours[left].map((value, channel) => mix(value, colours[left + 1][channel], at - left));
  }

  return class Viewer {
    #root;
    #id = `viewer-${Math.random().toString(36).slice(2)}`; // several may stand on a page
    #captions = [];
    #colours = LIGHT;
    #selected = 0;
    #word = null; // the one that is shown
    #kept = null; // the one to go back to when the pointer leaves
    #drawn = null; // { map, x, y } as it is on the canvas, half-way while it glides
    #frame = 0;
    #timer = 0;
    #parts = {};
    #words = [];
    #tabs = [];
    #stillness = matchMedia("(prefers-reduced-motion: reduce)");
    #resized = new ResizeObserver(() => this.#draw());

    constructor(root) {
      this.#root = root;
      root.classList.add("viewer");
    }

    /* Show a photo (its URL) with its captions, best first. Colours, if given: [[r, g, b, opacity], ...] from low to high. */
    show({ photo, captions, colours = LIGHT }) {
      this.stop();
      this.#resized.disconnect();
      this.#captions = captions;
      this.#colours = colours;
      const image = make("img", { src: photo, alt: captions[0].caption, draggable: "false" });
      const canvas = make("canvas", { "aria-hidden": "true" });
      const sentence = make("div", { class: "viewer-words", id: `${this.#id}-words`, role: "toolbar", dir: "auto", lang: "" });
      const status = make("p", { class: "viewer-status", role: "status" });
      const play = make("button", { type: "button", class: "viewer-play" }, "Play");
      const tabs = make("div", { class: "viewer-tabs", role: "tablist", "aria-label": "Captions, best first", "aria-orientation": "vertical" });
      this.#parts = { image, canvas, sentence, status, play, tabs };
      this.#tabs = captions.map((caption, index) => this.#makeTab(caption, index));
      tabs.append(...this.#tabs);
      if (captions.length > 1) sentence.setAttribute("aria-label", "Words of the chosen caption");
      else sentence.setAttribute("aria-label", "Words of the caption");
      const legend = make("p", { class: "viewer-legend" }, make("span", {}, "unsure 0 %"),
        make("span", { class: "viewer-scale", "aria-hidden": "true" }), make("span", {}, "100 % sure"));
      this.#root.replaceChildren(
        make("figure", { class: "viewer-figure" }, make("div", { class: "viewer-photo" }, image, canvas)),
        make("div", { class: "viewer-text" }, sentence,
          make("div", { class: "viewer-bar" }, play, status), legend, ...(captions.length > 1 ? [tabs] : [])),
      );
      sentence.addEventListener("keydown", (event) => this.#walk(event));
      sentence.addEventListener("pointerleave", () => this.#timer || this.#point(this.#kept));
      tabs.addEventListener("keydown", (event) => this.#walkTabs(event));
      play.addEventListener("click", () => (this.#timer ? this.stop() : this.play()));
      image.addEventListener("load", () => {
        const grown = SMALLEST / Math.max(image.naturalWidth, image.naturalHeight);
        if (grown > 1) image.width = Math.round(grown * image.naturalWidth);
        this.#draw();
      });
      this.#resized.observe(canvas);
      this.select(0);
    }

    /* Choose one of the captions. */
    select(index) {
      this.stop();
      this.#selected = index;
      this.#tabs.forEach((tab, number) => {
        tab.setAttribute("aria-selected", String(number === index));
        tab.tabIndex = number === index ? 0 : -1;
      });
      this.#words = this.#captions[index].words.map((word, number) => this.#makeWord(word, number));
      this.#parts.sentence.replaceChildren(...this.#words);
      this.#parts.play.disabled = !this.#words.length;
      this.#drawn = null; // the maps of another caption are no neighbours to glide from
      this.focus(null);
    }

    /* Show a word's map, or with null the bare photo. */
    focus(index) {
      this.#kept = index;
      this.#point(index);
    }

    /* Go through the words once, from the one shown. */
    play() {
      this.stop();
      if (!this.#words.length) return;
      const next = () => {
        const index = this.#word === null ? 0 : this.#word + 1;
        if (index >= this.#words.length) return this.stop();
        this.focus(index);
      };
      if (this.#word === this.#words.length - 1) this.focus(null);
      this.#timer = setInterval(next, PAUSE);
      this.#parts.play.textContent = "Pause";
      this.#root.classList.add("viewer-playing");
      this.#parts.status.setAttribute("aria-live", "off"); // a word each second is more than can be read out
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

    #makeWord({ word, probability }, index) {
      const button = make("button", {
        type: "button", class: "viewer-word", title: `${percent(probability)} sure`,
        "aria-label": `${word}, ${percent(probability)} sure`,
      }, word);
      button.style.setProperty("--sure", probability); // an attribute would need a page that allows inline styles
      button.tabIndex = index === 0 ? 0 : -1; // one stop for Tab; the arrow keys walk from there
      button.addEventListener("pointerenter", (event) => {
        if (event.pointerType === "touch") return; // a tap follows
        this.stop();
        this.#point(index);
      });
      for (const kind of ["click", "focus"]) {
        button.addEventListener(kind, () => {
          this.stop();
          this.focus(index);
        });
      }
      return button;
    }

    #makeTab({ caption, score }, index) {
      const tab = make("button", {
        type: "button", class: "viewer-tab", role: "tab", "aria-controls": `${this.#id}-words`,
        "aria-label": `Caption ${index + 1}: ${caption}, ${percent(score)} sure`,
      }, make("span", { class: "viewer-tab-text", dir: "auto", lang: "" }, caption), make("span", { class: "viewer-score" }, percent(score)));
      tab.addEventListener("click", () => this.select(index));
      return tab;
    }

    #walk(event) {
      const forwards = getComputedStyle(this.#parts.sentence).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
      const last = this.#words.length - 1;
      const at = this.#word ?? -1;
      const targets = {
        ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last,
      };
      if (forwards === "ArrowLeft") [targets.ArrowLeft, targets.ArrowRight] = [at + 1, at - 1];
      if (event.key === "Escape") {
        this.stop();
        this.focus(null);
      } else if (event.key in targets) {
        event.preventDefault(); // or the page would scroll
        this.#words[Math.min(Math.max(targets[event.key], 0), last)].focus();
      }
    }

    #walkTabs(event) {
      const last = this.#tabs.length - 1;
      const targets = { ArrowDown: this.#selected + 1, ArrowUp: this.#selected - 1, Home: 0, End: last };
      if (!(event.key in targets)) return;
      event.preventDefault();
      this.select(Math.min(Math.max(targets[event.key], 0), last));
      this.#tabs[this.#selected].focus();
    }

    #point(index) {
      if (index === this.#word && this.#drawn) return;
      this.#word = index;
      const caption = this.#captions[this.#selected];
      this.#words.forEach((button, number) => {
        button.classList.toggle("viewer-shown", number === index);
        button.tabIndex = number === (index ?? 0) ? 0 : -1;
      });
      cancelAnimationFrame(this.#frame);
      if (index === null) {
        this.#parts.status.textContent = this.#words.length ? HINT : "The caption has no words.";
        this.#drawn = null;
        return this.#draw();
      }
      const { word, probability, map } = caption.words[index];
      const isolated = `\u2068${word}\u2069`; // a word written from the right keeps its place in the line
      this.#parts.status.textContent = `${isolated}: ${percent(probability)} sure, word ${index + 1} of ${this.#words.length}`;
      const top = highest(map);
      this.#glide({ map: map.map((row) => row.map((value) => value / top)), ...middle(map) });
    }

    #glide(target) {
      const before = this.#drawn;
      const begin = performance.now();
      const step = (now) => {
        const share = before && !this.#stillness.matches ? Math.min(Math.max(now - begin, 0) / GLIDE, 1) : 1;
        this.#drawn = share === 1 ? target : {
          map: between(before.map, target.map, share), x: mix(before.x, target.x, share), y: mix(before.y, target.y, share),
        };
        this.#draw();
        if (share < 1) this.#frame = requestAnimationFrame(step);
      };
      step(begin);
    }

    #draw() {
      const { canvas } = this.#parts;
      if (!canvas?.clientWidth) return;
      const ratio = window.devicePixelRatio || 1;
      canvas.width = Math.round(canvas.clientWidth * ratio);
      canvas.height = Math.round(canvas.clientHeight * ratio);
      if (!this.#drawn) return;
      const pen = canvas.getContext("2d");
      const { window: edges, field } = this.#captions[this.#selected];
      const [left, top] = [edges[0] * canvas.width, edges[1] * canvas.height];
      const frame = { left, top, width: edges[2] * canvas.width - left, height: edges[3] * canvas.height - top };
      if (field) this.#drawPlace(pen, frame, field);
      else this.#drawMap(pen, frame);
    }

    #fillAround(pen, { left, top, width, height }) {
      pen.save();
      pen.fillStyle = this.#css(0);
      pen.beginPath();
      pen.rect(0, 0, pen.canvas.width, pen.canvas.height);
      pen.rect(left, top, width, height);
      pen.fill("evenodd");
      pen.restore();
    }

    #css(level) {
      const [red, green, blue, opacity] = colourAt(this.#colours, level);
      return `rgb(${red} ${green} ${blue} / ${opacity})`;
    }

    #drawMap(pen, frame) {
      const lines = finer(this.#drawn.map);
      const small = make("canvas", { width: lines[0].length, height: lines.length });
      const pixels = new ImageData(small.width, small.height);
      lines.flatMap((line) => Array.from(line)).forEach((level, index) => {
        const [red, green, blue, opacity] = colourAt(this.#colours, level);
        pixels.data.set([red, green, blue, 255 * opacity], 4 * index);
      });
      small.getContext("2d").putImageData(pixels, 0, 0);
      this.#fillAround(pen, frame); // what the model did not see
      pen.imageSmoothingQuality = "high";
      pen.drawImage(small, frame.left, frame.top, frame.width, frame.height);
    }

    /* A single place: its cell, the field that it sees, and the path that led there from word to word. */
    #drawPlace(pen, frame, field) {
      const { words } = this.#captions[this.#selected];
      const across = (x) => frame.left + x * frame.width;
      const down = (y) => frame.top + y * frame.height;
      const around = (width, height) => ({
        left: across(this.#drawn.x) - width / 2, top: down(this.#drawn.y) - height / 2, width, height,
      });
      const seen = around(field[0] * pen.canvas.width, field[1] * pen.canvas.height);
      this.#fillAround(pen, seen);
      const path = words.slice(0, this.#word).map(({ map }) => middle(map));
      path.push(this.#drawn);
      const thickness = Math.max(2, pen.canvas.width / 300);
      const cell = around(frame.width / this.#drawn.map[0].length, frame.height / this.#drawn.map.length);
      // Each line twice, dark and wide below light and narrow, so that it shows on any photo.
      for (const [ink, width] of [["rgb(0 0 0 / 0.7)", 2.5 * thickness], ["#ffd54a", thickness]]) {
        pen.strokeStyle = pen.fillStyle = ink;
        pen.lineJoin = "round";
        pen.lineWidth = width / 2;
        pen.strokeRect(seen.left, seen.top, seen.width, seen.height);
        pen.lineWidth = width;
        pen.strokeRect(cell.left, cell.top, cell.width, cell.height);
        pen.beginPath();
        for (const place of path) pen.lineTo(across(place.x), down(place.y));
        pen.stroke();
        for (const place of path) {
          pen.beginPath();
          pen.arc(across(place.x), down(place.y), width + thickness, 0, 2 * Math.PI);
          pen.fill();
        }
      }
    }
  };
})();
