# Two commands do everything: `make demo` (the main job) and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.radix-tlru-installed
COMPILED := $(VENV)/.radix-tlru-compiled
UV_VERSION := 0.13.8

# With bytecode kept, a server is ready in half the time.
unexport PYTHONDONTWRITEBYTECODE

PORT ?= 30000
ARGS ?=
OUT := .out
DEMO_MODEL := $(OUT)/demo-model

.PHONY: help setup demo test test-all gpu serve bench soak compat patches-check release-check lint fmt clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## install everything into .venv (a no-op when nothing changed)

$(STAMP): pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "radix-tlru needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet -c constraints.txt -e '.[serve,eval,ray,transfer,test]'
	@touch $@

demo: setup ## stock lru, stock tlru and etlru on real servers, side by side (2 to 4 minutes; ARGS="--repeats 3")
	$(BIN)/python -m eval demo $(ARGS)

# While lint has one core, the other compiles what tests import, which each of their processes would do on its own.
$(COMPILED): $(STAMP)
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null; touch $@

test: setup ## lint, types and the test suite (some 13 minutes on two cores, as fast as they are)
	@$(MAKE) --no-print-directory --jobs 2 lint $(COMPILED)
	$(BIN)/python -m pytest --numprocesses 2 --durations 10 -m "not long"

test-all: setup lint ## that, with the long versions, on servers that each start as a user's does (an hour)
	$(BIN)/python -m pytest --numprocesses 2 --durations 10 --cold-start

gpu: setup ## the live comparison on an NVIDIA GPU (MODEL=, ARGS=; the default model has random weights)
	$(BIN)/python -m eval gpu $(if $(MODEL),--model $(MODEL)) $(ARGS)

serve: setup ## a server in the foreground on the embedded model (PORT=, ARGS=)
	test -f $(DEMO_MODEL)/config.json || $(BIN)/radix-tlru demo-model $(DEMO_MODEL)
	SGLANG_PLATFORM=torch_cpu OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m sglang.launch_server --model-path $(DEMO_MODEL) \
	  --load-format dummy --device cpu --dtype float32 --sleep-on-idle --port $(PORT) $(ARGS)

bench: setup ## what things cost beside stock, as ratios of one run (ARGS="--trace …")
	$(BIN)/python -m eval bench $(ARGS)

compat: setup ## the cache-level suite on each supported release of SGLang (ARGS="--release 0.5.21")
	$(BIN)/python -m tests.helpers.overlay $(ARGS)

patches-check: setup ## each patch series on the release it is for (ARGS="--version v0.5.23 --skip-live --trace …")
	$(BIN)/python -m patches.check $(ARGS)

release-check: setup ## wheel and source archive, each tried out in an environment without this checkout
	$(BIN)/python -m tests.helpers.release

soak: setup ## a million audited steps of the cache, and 100,000 requests that must not get dearer (ARGS="--requests 2M")
	$(BIN)/python -m eval soak --requests 100k $(ARGS)

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy patches/v0.5.9/agreement.py

fmt: setup ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove everything that make made
	rm -rf $(VENV) $(OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis
