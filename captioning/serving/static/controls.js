/* The form with the generation settings. */

export class Controls {
  #form;
  #settings; // response of /v1/models
  #compare;

  /* onChange: called after a setting was changed. */
  constructor(form, compare, settings, onChange) {
    this.#form = form;
    this.#compare = compare;
    this.#settings = settings;
    const { models, parameters } = settings;
    form.elements.model.append(...models.map(({ name, attention }) => new Option(`${name} (${attention})`, name)));
    for (const field of this.#ranges()) {
      field.closest("label").title = parameters[field.name].help;
      field.max = Math.min(field.max, parameters[field.name].maximum ?? Infinity);
    }
    form.querySelector("fieldset").title = parameters.do_sample.help;
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", ({ target }) => {
      if (target === form.elements.model) this.#applyDefaults();
      this.#clampNumCaptions(target);
      this.#update();
      onChange();
    });
    form.querySelector("#reset").addEventListener("click", () => {
      form.elements.model.selectedIndex = 0;
      this.#applyDefaults();
      onChange();
    });
    compare.addEventListener("change", () => {
      this.#update();
      onChange();
    });
    compare.closest("label").hidden = new Set(models.map(({ attention }) => attention)).size < 2;
    this.#applyDefaults();
  }

  get isComparison() {
    return this.#compare.checked;
  }

  /* Query parameters of each request: one per model that is shown. */
  get queries() {
    return this.#shownModels.map((model) => {
      const query = new URLSearchParams();
      for (const field of this.#form.elements) {
        if (!field.name || field.closest("[hidden]") || (field.type === "radio" && !field.checked)) continue;
        query.set(field.name, field.value);
      }
      query.set("model", model.name);
      if (model.attention !== "hard") query.delete("attention_mode");
      if (!this.#isStochastic(model)) query.delete("seed");
      return query;
    });
  }

  get #model() {
    const { models } = this.#settings;
    return models.find(({ name }) => name === this.#form.elements.model.value) ?? models[0];
  }

  get #shownModels() {
    if (!this.isComparison) return [this.#model];
    return ["soft", "hard"].map((kind) => this.#settings.models.find(({ attention }) => attention === kind));
  }

  #ranges() {
    return this.#form.querySelectorAll("input[type=range]");
  }

  #isStochastic(model) {
    const { do_sample: doSample, attention_mode: attentionMode } = this.#form.elements;
    return doSample.value === "true" || (model.attention === "hard" && attentionMode.value === "sample");
  }

  #applyDefaults() {
    const { generation, attention_mode: attentionMode } = this.#model;
    const values = { ...generation, ...this.#settings.sampling_defaults, num_return_sequences: 1, seed: 0 };
    for (const field of this.#ranges()) field.value = values[field.name];
    this.#form.elements.do_sample.value = String(generation.do_sample);
    this.#form.elements.attention_mode.value = attentionMode ?? "argmax";
    this.#update();
  }

  /* Show the values, and hide the fields that have no effect with the current settings. */
  #update() {
    const { elements } = this.#form;
    const isSampling = elements.do_sample.value === "true";
    this.#form.querySelector("#model-row").hidden = this.#settings.models.length < 2 || this.isComparison;
    this.#form.querySelector("#attention-mode-row").hidden = !this.#shownModels.some(({ attention }) => attention === "hard");
    const visible = {
      "beam-search": !isSampling, sampling: isSampling,
      stochastic: this.#shownModels.some((model) => this.#isStochastic(model)),
    };
    for (const row of this.#form.querySelectorAll("[data-for]")) row.hidden = !visible[row.dataset.for];
    for (const field of this.#ranges()) {
      const isOff = field.name === "top_k" && field.value === "0";
      field.closest("label").querySelector("output").value = isOff ? "off" : field.value;
    }
  }

  /* Beam search returns at most num_beams captions: keep the field that was changed and adjust the other. */
  #clampNumCaptions(changed) {
    const { num_beams: numBeams, num_return_sequences: numCaptions, do_sample: doSample } = this.#form.elements;
    if (doSample.value === "true" || Number(numCaptions.value) <= Number(numBeams.value)) return;
    if (changed === numBeams) numCaptions.value = numBeams.value;
    else numBeams.value = numCaptions.value;
  }
}
