# Every target works from a fresh clone with python3 and make. What it needs is installed
# into .venv once, and again only when pyproject.toml or constraints.txt change.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SPHINX := $(BIN)/python -m sphinx -W -n --keep-going -d docs/_build/doctrees

# Extras that a target needs.
DEMO := $(STAMPS)/experiments $(STAMPS)/fast
TEST := $(STAMPS)/test $(STAMPS)/test-clients
LINT := $(STAMPS)/dev $(STAMPS)/test
DOCS := $(STAMPS)/docs
BENCH := $(STAMPS)/bench

.PHONY: help demo test test-long lint docs bench clean distclean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' \
	  | while IFS=$$'\t' read -r name text; do printf '  make %-11s %s\n' "$$name" "$$text"; done

# The build backend is installed first, at its pinned version, and used without isolation:
# an isolated build would resolve its requirements outside constraints.txt.
$(STAMPS)/base: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) hatchling editables
	mkdir -p $(STAMPS)
	touch $@

$(STAMPS)/%: pyproject.toml constraints.txt $(STAMPS)/base
	$(PIP_INSTALL) --no-build-isolation -e ".[$*]"
	touch $@

demo: $(DEMO) ## the copying memory task with a delay of 100, in about two minutes
	$(BIN)/riemcd copying --preset demo

test: $(TEST) ## the test-suite, in two processes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-long: $(TEST) ## the full-length figures; the output is kept in docs/results
	mkdir -p docs/results
	$(BIN)/python -m pytest -m long --no-header -ra --durations=0 2>&1 \
	  | sed -u 's|$(CURDIR)/||g' | tee docs/results/test-long.txt

lint: $(LINT) ## ruff, the formatter and mypy --strict
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

docs: $(DOCS) ## the site in docs/_build/html, warnings as errors, and its doctests
	$(SPHINX) -b html docs docs/_build/html
	$(SPHINX) -b doctest docs docs/_build/doctest

bench: $(BENCH) ## the benchmarks; results in benchmarks/results
	$(BIN)/python -m benchmarks

clean: ## remove what was built, keep .venv
	rm -rf build dist docs/_build docs/api docs/gallery docs/sg_execution_times.rst
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## remove .venv too
	rm -rf $(VENV)
