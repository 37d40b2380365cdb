# Needs Python 3.11 or newer, make and git; everything else comes from the Python package index.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast check format lock
export PYTHON
BIN := .venv/bin

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

setup: ## build .venv from requirements.lock; quick when nothing has changed
	@scripts/setup

demo: setup ## a conversation that is interrupted, killed and resumed
	@$(BIN)/perdure demo

# One process for each core, whole files to each: every process starts a PostgreSQL and a Temporal server of its own.
# Files come as conftest.py orders them, slow ones first; xdist by itself would begin with those of the most tests.
SIDE_BY_SIDE := -n auto --dist loadfile --no-loadscope-reorder

test: setup ## all tests
	@$(BIN)/pytest $(SIDE_BY_SIDE)

test-fast: setup ## the tests that need only a moment
	@$(BIN)/pytest $(SIDE_BY_SIDE) -m "not slow"

check: setup ## format, lint, types, layers
	@$(BIN)/ruff format --check . || { echo "To fix it: make format"; exit 1; }
	@$(BIN)/ruff check . || { echo "To fix what can be fixed: make format"; exit 1; }
	@$(BIN)/lint-imports
	@$(BIN)/mypy
	@$(BIN)/pyright

format: setup ## format, and fix what lint can fix
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: setup ## resolve the dependencies of pyproject.toml again
	@$(BIN)/pip install --quiet uv
	@$(BIN)/uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-annotate --upgrade --quiet \
		--custom-compile-command "make lock" --output-file requirements.lock
