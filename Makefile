# Two commands do all the set-up: "make demo" and "make test". Python 3.11, pip and make are all they need.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: demo serve test test-slow bench-estimators bench-speed bench-search bench-maps bench-overlay bench-serve coco-scores lint format constraints clean help

help:
	@echo "make demo         caption photos, train on drawn scenes, caption new ones, leave overlays in demo/"
	@echo "make serve        a page in the browser that captions the photos you drop on it"
	@echo "make test         format, lint, types and tests"
	@echo "make test-slow    the checks that train for minutes"
	@echo "make bench-estimators  bias and variance of hard attention's estimators, and their plot in docs/"
	@echo "make bench-speed  how long captions of photos take, from a cold start and in a folder"
	@echo "make bench-search  batched beam search against one picture at a time, and CIDEr-D as a reward"
	@echo "make bench-maps   whether maps are honest: MODEL=flickr8k-soft DATA=flickr8k, or what you have"
	@echo "make bench-overlay  seconds, memory and sizes of the overlays of a 12-megapixel photo"
	@echo "make bench-serve  requests to the server from many clients at once against one at a time"
	@echo "make coco-scores  remake the figures of COCO's evaluation that the tests compare with"
	@echo "make format       let ruff format and mend the code"
	@echo "make constraints  pin the newest versions that the tests will run with"

.venv/installed: pyproject.toml constraints.txt
	@echo "installing the pinned set into .venv; this takes a minute or two"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

# Of the photos that scikit-image brings along; to caption your own: make demo PHOTOS=folder
PHOTOS ?= $(addprefix $(shell $(BIN)/python -c "import skimage; print(skimage.data_dir)")/,astronaut.png camera.png chelsea.png coffee.png rocket.jpg)

demo: .venv/installed
	rm -rf demo
	$(BIN)/captioning caption $(PHOTOS) --overlay demo/photos
	$(BIN)/captioning fit --config configs/shapes-soft.yaml --trainer.max_epochs 8 \
		--trainer.logger.init_args.save_dir demo --trainer.logger.init_args.name training --trainer.logger.init_args.version run
	$(BIN)/captioning shapes demo/pictures --images 8 --seed 2026
	$(BIN)/captioning caption demo/pictures/images --overlay demo/scenes \
		--model demo/training/run/checkpoints/best.safetensors
	@echo "Look at the pictures in demo/photos/ and demo/scenes/: each shows, word by word, where the model looked."
	@echo "The model of the scenes has had two minutes of training, and every other caption is right; all of configs/shapes-soft.yaml makes it 19 of 20."

serve: .venv/installed
	$(BIN)/captioning serve

# As many processes as cores, each with one thread: threads of several would fight.
test: .venv/installed lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" --numprocesses auto

test-slow: .venv/installed
	$(BIN)/python -m pytest -m slow -s

bench-estimators: .venv/installed
	$(BIN)/python -m benchmarks.estimators

bench-speed: .venv/installed
	$(BIN)/python -m benchmarks.speed

bench-search: .venv/installed
	$(BIN)/python -m benchmarks.search

MODEL ?= flickr8k-soft
DATA ?= flickr8k
bench-maps: .venv/installed
	$(BIN)/python -m benchmarks.maps $(MODEL) --data $(DATA)

bench-overlay: .venv/installed
	$(BIN)/python -m benchmarks.overlay

bench-serve: .venv/installed
	$(BIN)/python -m benchmarks.serve

coco-scores: .venv/installed
	$(BIN)/python -m benchmarks.coco

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

constraints: .venv/installed
	$(BIN)/python -m pip freeze --exclude-editable --exclude captioning | sed 's/+cpu//' > constraints.txt

clean:
	rm -rf .venv demo runs data/shapes
