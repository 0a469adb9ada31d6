# Everything a contributor runs. `make` alone lists it.
#
# Only a Python >= 3.11 on PATH is asked for; all else is installed into .venv from the
# lock files, by hash.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
#: How many processes pytest uses.
WORKERS ?= 2
#: Which bench `make bench` runs; empty means all of them.
BENCH ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A changed lock makes the environment anew, so that no package outlives its pin. The
# development lock holds everything that the runtime lock does, at the same versions
# (tests/test_packaging.py), so it is installed on top.
$(VENV)/runtime.stamp: requirements.lock
	@set -e; \
	for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "making $(VENV) with $$python" >&2; \
	    "$$python" -m venv --clear $(VENV) || { \
	      echo "the venv module does not work; on Debian install python3-venv" >&2; exit 1; }; \
	    found=yes; break; \
	  fi; \
	done; \
	if [ -z "$$found" ]; then echo "no Python >= 3.11 on PATH" >&2; exit 1; fi
	@echo "installing the packages of requirements.lock; this takes a minute or two" >&2
	@$(PIP) install --require-hashes --requirement requirements.lock
	@$(PIP) install --no-deps --editable .
	@touch $@

$(VENV)/dev.stamp: requirements-dev.lock $(VENV)/runtime.stamp
	@$(PIP) install --require-hashes --requirement requirements-dev.lock
	@touch $@

.PHONY: venv
venv: $(VENV)/dev.stamp ## Make .venv with everything for development

.PHONY: demo
demo: $(VENV)/runtime.stamp ## Show the main job on one machine: no broker, no GPU
	@$(BIN)/gpuledger demo

.PHONY: acceptance
acceptance: $(VENV)/runtime.stamp ## Run the script of a proof of concept, and write acceptance.html
	@$(BIN)/gpuledger report acceptance --run --html acceptance.html

.PHONY: test
test: $(VENV)/dev.stamp ## Run all tests, on a real Kafka too (see CONTRIBUTING.md)
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup $(ARGS)

.PHONY: lint
lint: $(VENV)/dev.stamp ## Check format, style, types and layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

.PHONY: format
format: $(VENV)/dev.stamp ## Format, and fix what can be fixed mechanically
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: kafka
kafka: $(VENV)/dev.stamp ## Start a local Kafka on the loopback and print its address
	@$(BIN)/python -m deploy.kafka_local start

.PHONY: bench
bench: $(VENV)/dev.stamp ## Run the benches: make bench BENCH=core
	@$(BIN)/gpuledger bench $(BENCH) --json

.PHONY: schemas
schemas: $(VENV)/dev.stamp ## Write schemas/json again from the models
	@$(BIN)/python -m schemas.export

# Needs uv; a checkout that only builds and tests does not.
.PHONY: lock
lock: ## Resolve the dependencies again and write both lock files
	uv pip compile pyproject.toml --group dev $(LOCK_FLAGS) --output-file requirements-dev.lock
	uv pip compile pyproject.toml $(LOCK_FLAGS) --constraint requirements-dev.lock \
	  --output-file requirements.lock

LOCK_FLAGS := --quiet --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-header --no-annotate

.PHONY: clean
clean: ## Remove .venv, caches and build output
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
