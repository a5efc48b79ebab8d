# "make demo" and "make test" do all the set-up. They need Python 3.11, pip and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable

.PHONY: help demo serve test test-slow coverage lint format docs constraints clean \
	bench bench-estimators bench-speed bench-beam-search bench-faithfulness bench-overlay bench-serve coco-reference-scores

help:
	@echo "make demo                   caption photos, train on synthetic scenes, caption new ones, write overlays to demo/"
	@echo "make serve                  start the web page and the REST API"
	@echo "make test                   check format, lint, layers and types, and run the tests"
	@echo "make test-slow              run the tests that train for minutes"
	@echo "make coverage               run the tests and report line coverage"
	@echo "make lint                   check format, lint, layers and types"
	@echo "make format                 format the code and apply safe fixes"
	@echo "make docs                   regenerate docs/settings.md from the code"
	@echo "make bench                  speed relative to a textbook decoder, and to the peak of the machine"
	@echo "make bench-estimators       bias and variance of the gradient estimators of hard attention"
	@echo "make bench-speed            time per caption, from a cold start and for a directory"
	@echo "make bench-beam-search      batched beam search against one image at a time, and CIDEr-D as a reward"
	@echo "make bench-faithfulness     occlusion test of attention maps (MODEL=flickr8k-soft DATA=flickr8k)"
	@echo "make bench-overlay          time, memory and file sizes of overlays of a 12-megapixel image"
	@echo "make bench-serve            throughput of the server with concurrent clients"
	@echo "make coco-reference-scores  recompute the reference scores that the metric tests compare with"
	@echo "make constraints            pin the installed versions in constraints.txt"
	@echo "make clean                  delete .venv and generated files"

$(BIN)/python:
	$(PYTHON) -m venv .venv

# The demo needs neither Java nor a browser driver nor TensorBoard, so it has its own, smaller installation.
.venv/installed-demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the pinned packages into .venv (one to two minutes)"
	$(INSTALL) ".[demo,web]"
	touch $@

.venv/installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the pinned packages into .venv (one to two minutes)"
	$(INSTALL) ".[dev]"
	touch $@ .venv/installed-demo

# Images that scikit-image contains. To caption your own: make demo PHOTOS=directory
PHOTOS ?= $(addprefix $(shell $(BIN)/python -c "import skimage; print(skimage.data_dir)")/,astronaut.png camera.png chelsea.png coffee.png rocket.jpg)

demo: .venv/installed-demo
	rm -rf demo
	$(BIN)/captioning caption $(PHOTOS) --overlay-dir demo/photos
	$(BIN)/captioning fit --config configs/shapes-soft.yaml --trainer.max_epochs 8 \
		--trainer.logger.init_args.save_dir demo --trainer.logger.init_args.name training --trainer.logger.init_args.version run
	$(BIN)/captioning make-shapes demo/images --num-images 8 --seed 2026
	$(BIN)/captioning caption demo/images/images --overlay-dir demo/scenes \
		--model demo/training/run/checkpoints/best.safetensors
	@echo "Open demo/photos/index.html and demo/scenes/index.html: one attention map per word."
	@echo "The scene model was trained for two minutes; about half of its captions are correct. The full recipe reaches 95 %."

serve: .venv/installed-demo
	$(BIN)/captioning serve

# One process per core with one thread each: more threads than cores slow each other down.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" --numprocesses auto

test: .venv/installed-dev lint
	$(PYTEST)

test-slow: .venv/installed-dev
	$(BIN)/python -m pytest -m slow -s

coverage: .venv/installed-dev
	$(PYTEST) --cov --cov-report=term:skip-covered

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: .venv/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/installed-dev
	$(BIN)/python docs/generate_settings.py

bench-estimators bench-speed bench-overlay bench-serve: bench-%: .venv/installed-dev
	$(BIN)/python -m benchmarks.$*

bench: .venv/installed-dev
	$(BIN)/python -m benchmarks.ratios

bench-beam-search: .venv/installed-dev
	$(BIN)/python -m benchmarks.beam_search

MODEL ?= flickr8k-soft
DATA ?= flickr8k
bench-faithfulness: .venv/installed-dev
	$(BIN)/captioning faithfulness $(MODEL) --data $(DATA) --num-images 200 --plot docs/faithfulness.png

coco-reference-scores: .venv/installed-dev
	$(BIN)/python -m benchmarks.coco_reference_scores

constraints: .venv/installed-dev
	$(BIN)/python -m pip freeze --exclude-editable --exclude captioning | sed 's/+cpu//' > constraints.txt

clean:
	rm -rf .venv demo runs data/shapes
