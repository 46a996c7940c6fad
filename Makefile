# Works with GNU Make 3.81, the one a Mac has.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.PHONY: help run test check bench install install-dev clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

run: install ## set up, then run the quick benchmark on the embedded digits
	$(BIN)/python -m edge_hpcr bench --dataset digits --method hpcr --budget 200KB --out runs/quick --fresh

test: check ## set up, check, then run every test
	$(BIN)/python -m pytest

check: install-dev ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install ## measure this machine: a training step, then kills, latency, a soak and restarts (about an hour)
	$(BIN)/python -m edge_hpcr speed --out results/speed.json
	$(BIN)/python -m edge_hpcr endure all --out results/endurance.json

install: $(INSTALLED) ## create .venv with what running needs
install-dev: $(INSTALLED_DEV) ## the same with what testing needs

clean: ## remove .venv and the caches; runs, data and workspaces stay
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written after pip has succeeded, never before: an interrupted installation is taken up again.
$(INSTALLED): requirements.txt $(BIN)/python
	$(check_python)
	@$(venv_is_whole) 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing $< into $(VENV): a few GB on Linux x86_64, several minutes the first time."
	$(BIN)/python -m pip install --quiet -r $<
	@touch $@

$(INSTALLED_DEV): requirements-dev.txt $(INSTALLED)
	$(BIN)/python -m pip install --quiet -r $<
	@touch $@

# No recipe: while this is missing, or dangles after a Python upgrade, what depends on it is made again.
$(BIN)/python:

# A venv cut short has an interpreter but no working pip.
venv_is_whole = $(BIN)/python -c 'import pip._internal, sys; sys.exit(sys.version_info < (3, 11))'

found_python = $(shell $(PYTHON) -c 'import sys; print("good" if sys.version_info >= (3, 11) else "version %d.%d" % sys.version_info[:2])' 2>/dev/null || echo "not to be found")
check_python = $(if $(filter good,$(found_python)),,$(error Python 3.11 or newer is needed, but $(PYTHON) is $(found_python): name another with PYTHON=python3.11))
