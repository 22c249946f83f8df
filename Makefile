# Every target works on a fresh clone: it sets up what it needs first.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOAK_SECONDS ?= 600
SYSTEM_PACKAGES := prometheus prometheus-alertmanager prometheus-node-exporter chromium iproute2 gcc libc6-dev

.PHONY: help setup setup-system check test bench fuzz soak demo format clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv with Scope and all that its tests need (Python only)

$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed; name another with make PYTHON=python3.12"; exit 1; }
	@echo "Installing Scope and all that its tests need into $(VENV): some minutes the first time, silent until done"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

setup-system: ## install the Debian packages that some tests use (needs root)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SYSTEM_PACKAGES)

check: setup ## lint, formatting, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: setup ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup ## run the tests; what needs a missing system package is skipped by name
	$(BIN)/pytest -m "not gpu and not bench" -n auto

soak: setup ## record collectives on four ranks for SOAK_SECONDS (600): no hang, memory flat
	PYTHONPATH=. OMP_NUM_THREADS=1 $(BIN)/python bench/soak.py $(SOAK_SECONDS)

bench: setup ## measure speed and memory; append the results to bench/RESULTS.md
	$(BIN)/python bench/run.py $(BENCH)

N ?= 1000000
fuzz: setup ## read N more mutated traces (N=1000000): nothing but errors of Scope, no hang, every loss counted
	OMP_NUM_THREADS=1 $(BIN)/python bench/fuzz_reading.py $(N)

demo: setup ## train, record, serve and draw a real run on this machine (ARGS="--straggler 2")
	$(BIN)/scope demo $(ARGS)

clean: ## remove what the targets made, the demo's runs included
	rm -rf $(VENV) demo-run .pytest_cache .ruff_cache .hypothesis .import_linter_cache
