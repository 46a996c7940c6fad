# Works with GNU Make 3.81, the one a Mac has.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
WEIGHTS := $(VENV)/.weights
DEVICE_VENV := .venv-device
INSTALLED_DEVICE := $(DEVICE_VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Else every process that a test starts would compile this project anew, and every pass the tests, too.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test quick check bench fuzz weights browser nginx broker screenshots docs install install-dev install-device clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: install weights ## set up, then start the app on http://127.0.0.1:7860 and print the link to open (the last workspace, or ./workspace)
	$(BIN)/python -m app

# So many at a time, a file each, in the order of tests/conftest.py.
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test: check weights browser nginx broker ## set up, check, then run every test
	$(PYTEST)
	@echo "Once more what computes, with the kernels of a processor that has no AVX:"
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 $(PYTEST) -m computes $$(grep -l 'mark\.computes' tests/test_*.py)

quick: check ## the checks and the fast tests: less than two minutes, no browser
	$(PYTEST) -m "not slow and not browser"

check: install-dev ## lint, formatting, types, the directions of imports, and the budget of lines
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/budget.py

bench: install-dev browser ## measure this machine: a step, exported models, the app, devices, restarts, a soak, then 2,000 faults (about three hours)
	$(BIN)/python -m benchmarks.speed --out results/machine/speed.json
	$(BIN)/python -m benchmarks.latency --out results/machine/latency.json
	$(BIN)/python -m benchmarks --out results/machine/product.json
	$(BIN)/python -m benchmarks.faults --out results/machine/faults.json

fuzz: install-dev ## damaged input for everything that reads from outside, ten minutes each (about three hours)
	$(BIN)/python -m benchmarks.fuzz --out results/machine/fuzz.json

docs: install ## write the pages that are made from the code
	$(BIN)/python -m edge_hpcr.workspace.settings > docs/settings.md
	$(BIN)/python -m edge_hpcr report results/runs results/analyses --out docs --table results/runs.csv > /dev/null

screenshots: install-dev browser ## make the screenshots of the docs again, and the film docs/teach.webp
	PYTHONPATH=. $(BIN)/python tests/screenshots.py
	PYTHONPATH=. $(BIN)/python tests/screenshots.py --film docs/teach.webp

weights: $(WEIGHTS) ## the pre-trained network that new workspaces build on; without it they build on EfficientNet-Lite0

$(WEIGHTS): $(INSTALLED)
	@$(BIN)/python -m edge_hpcr weights get tiny_vit_5m && touch $@ || echo "It goes on without: see the line above."

# The shell without windows loads a page in two thirds of the processor time. If it cannot be had: what the system has, or what Playwright brings.
browser: install-dev ## a Chromium for the tests, if there is none
	@command -v chromium-headless-shell >/dev/null 2>&1 \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium-headless-shell >/dev/null; } \
	|| command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	|| $(BIN)/python -m playwright install --only-shell chromium

# Debian's package starts a server by itself; the test starts its own.
nginx: ## an nginx for the test of the proxy lines in docs/app.md, which is skipped without one
	@PATH="$$PATH:/usr/sbin" command -v nginx >/dev/null 2>&1 \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq --no-install-recommends nginx-light >/dev/null && { systemctl disable --now nginx >/dev/null 2>&1 || true; }; } \
	|| echo "No nginx here: the test of the proxy lines will be skipped."

broker: ## a mosquitto for the tests of --mqtt, which are skipped without one
	@PATH="$$PATH:/usr/sbin" command -v mosquitto >/dev/null 2>&1 \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq --no-install-recommends mosquitto >/dev/null && { systemctl disable --now mosquitto >/dev/null 2>&1 || true; }; } \
	|| echo "No mosquitto here: the tests with a real MQTT broker will be skipped."

install: $(INSTALLED) ## create .venv with what running needs
install-dev: $(INSTALLED_DEV) ## the same with what testing needs
install-device: $(INSTALLED_DEVICE) ## create .venv-device with what a device needs that only classifies: no torch

clean: ## remove both .venvs and the caches; runs, data and workspaces stay
	rm -rf $(VENV) $(DEVICE_VENV) build *.egg-info .import_linter_cache .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written after pip has succeeded, never before: an interrupted installation is taken up again.
$(INSTALLED): requirements.txt $(BIN)/python
	$(check_python)
	@$(call venv_is_whole,$(VENV)) 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing $< into $(VENV): a few GB on Linux x86_64, several minutes the first time."
	$(BIN)/python -m pip install --quiet -r $<
	@touch $@

$(INSTALLED_DEV): requirements-dev.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet -r $<
	@touch $@

$(INSTALLED_DEVICE): export/requirements.txt $(DEVICE_VENV)/bin/python
	$(check_python)
	@$(call venv_is_whole,$(DEVICE_VENV)) 2>/dev/null || $(PYTHON) -m venv --clear $(DEVICE_VENV)
	$(DEVICE_VENV)/bin/python -m pip install --quiet -r $<
	@touch $@

# No recipe: while this is missing, or dangles after a Python upgrade, what depends on it is made again.
$(BIN)/python $(DEVICE_VENV)/bin/python:

# A venv cut short has an interpreter but no working pip.
venv_is_whole = $(1)/bin/python -c 'import pip._internal, sys; sys.exit(sys.version_info < (3, 11))'

found_python = $(shell $(PYTHON) -c 'import sys; print("good" if sys.version_info >= (3, 11) else "version %d.%d" % sys.version_info[:2])' 2>/dev/null || echo "not to be found")
check_python = $(if $(filter good,$(found_python)),,$(error Python 3.11 or newer is needed, but $(PYTHON) is $(found_python): name another with PYTHON=python3.11))
