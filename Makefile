# Two commands set everything up: `make run` does the main job, `make test` passes the tests.
# Both create .venv with the versions of constraints.txt, once; after that no network is needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The checkout itself goes on Python's path: otherwise `import patchline` beside a checkout called
# patchline, or beside a folder called flows, would find that folder.
EDITABLE := --config-settings editable_mode=compat --editable
# The Prefect of a test or a run says nothing to anybody.
export DO_NOT_TRACK = 1
export PREFECT_SERVER_ANALYTICS_ENABLED = false
export MLFLOW_DISABLE_TELEMETRY = true
export NO_ALBUMENTATIONS_UPDATE = 1
# All processes of a run, and hundreds of the tests, import the same modules: compile them once.
export PYTHONDONTWRITEBYTECODE =

.PHONY: run test test-all lint format clean

run: $(VENV)/.installed ## train on the built-in digits and register the model
	$(BIN)/patchline run $(ARGS)

test: $(VENV)/.installed-dev ## the tests that every change must pass
	$(BIN)/python -m pytest $(ARGS)

test-all: $(VENV)/.installed-dev ## the slow tests too
	$(BIN)/python -m pytest -m "slow or not slow" $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean: ## remove the environment; runs and registered models stay
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Patchline and its packages (about 6 GB) takes some minutes, once."
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(EDITABLE) .
	$(BIN)/python -P -m patchline.flows.prefect_api.prefect_schema
	$(BIN)/python -P -m patchline.pipeline.workspace.tracking.mlflow_schema
	$(BIN)/python -P -m patchline.pipeline.workspace.run_memory.stage_keys
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(EDITABLE) ".[dev]"
	touch $@
