# `make help` lists the targets. Everything is installed into .venv, once.

PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install demo dev test fast lint format docs bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/.runtime: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "iscp_dagster needs Python 3.11 or newer, set PYTHON=python3.x")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (about two minutes)"
	@$(PIP) --editable '.[local,embed]'
	@touch $@

.venv/.dev: .venv/.runtime
	@echo "installing the development tools into .venv"
	@$(PIP) --editable '.[local,postgres,embed,jieba,dev]'
	@touch $@

install: .venv/.runtime ## Install into .venv

demo: .venv/.runtime ## Run the main job end to end, on this machine
	@$(BIN)/iscp demo

dev: .venv/.runtime ## Start Spark and Dagster, while the demo's table keeps changing
	@$(BIN)/iscp dev --live

test: .venv/.dev ## Install and run all tests
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

fast: .venv/.dev ## Run the tests that need neither Spark nor Dagster processes
	@$(BIN)/python -m pytest -m "not spark and not dagster"

lint: .venv/.dev ## Ruff (check and format) and the type check
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/basedpyright

format: .venv/.dev ## Format the code and mend what ruff can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: .venv/.dev ## Write the parts of docs/ that come from the code
	@$(BIN)/python docs/generate.py

clean: ## Remove the virtualenv and everything the demo made
	rm -rf .venv .iscp .pytest_cache .ruff_cache .hypothesis
