# `make demo` and `make test` set up everything they need: a virtual environment, pinned packages, torchsleuth.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two processes share the cores; each compiler call of Inductor is single-threaded already.
WORKERS ?= 2

# `make quick ROOM=minify` and `make test ROOM=front/cli` run the tests of one room: those in folders of that name.
ROOM ?=
TESTS = $(if $(ROOM),$(or $(shell find tests -type d -path 'tests*/$(ROOM)'),$(error no folder of tests/ is named $(ROOM))),tests)

# The release of torch that `make test-torch TORCH=2.15.0` looks at, and the tests that depend on which one it is.
TORCH ?= 2.15.0
TORCH_TESTS ?= tests/torch_internals tests/torch_core tests/script_runtime tests/watched tests/child tests/front/cli
ELSEWHERE := build/torch-$(TORCH)

.PHONY: demo quick test test-all test-torch goldens coverage lint docs bench clean

demo: $(READY)
	$(BIN)/python examples/demo.py

# The loop of daily work: what compiles nothing and starts no process (tests/pure.py). Its tensors are too small for threads,
# and pytest keeps what it made of the tests.
quick: $(READY) lint
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --pure -m "not slow and not gpu" --hypothesis-profile=ci $(TESTS)

test: $(READY) lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow and not gpu" --hypothesis-profile=ci $(TESTS)

# With examples of its own each time, where `test` takes the same ones: a change is judged by what it changed.
test-all: $(READY) lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not gpu"

# In an environment for that release, which stays in build/ (its first run downloads torch).
test-torch: $(ELSEWHERE)/.ready
	OMP_NUM_THREADS=1 $(ELSEWHERE)/bin/python -m pytest -n $(WORKERS) --dist worksteal -p no:cacheprovider -m "not slow and not gpu" --hypothesis-profile=ci $(TORCH_TESTS)

# What is asked, and in which order, written down anew: where a decision is changed on purpose. CORPUS=FOLDER has the planted faults.
CORPUS ?=
ONLY ?=
goldens: $(READY)
	$(BIN)/python benchmarks/decisions.py $(if $(CORPUS),--corpus $(CORPUS)) $(if $(ONLY),--only $(ONLY))

# Which lines the pure tests reach; what runs in processes of its own is not counted.
coverage: $(READY)
	mkdir -p build
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest --pure -m "not slow and not gpu" --hypothesis-profile=ci $(TESTS)
	$(BIN)/python -m coverage report

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture

docs: $(READY)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs build/docs

bench: $(READY)
	$(BIN)/python benchmarks/watch.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev,docs]'
	touch $(READY)

$(ELSEWHERE)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ELSEWHERE)
	grep -v '^torch==' constraints.txt > $(ELSEWHERE)/constraints.txt
	$(ELSEWHERE)/bin/python -m pip install --quiet --constraint $(ELSEWHERE)/constraints.txt hatchling editables
	$(ELSEWHERE)/bin/python -m pip install --quiet --constraint $(ELSEWHERE)/constraints.txt --no-build-isolation --editable '.[dev]' torch==$(TORCH)
	touch $(ELSEWHERE)/.ready

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis torchsleuth-cases
