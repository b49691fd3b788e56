# make run    starts the product          make test   runs every test
# make bench  measures it                 make lint   checks style and types
# Each does its own set-up. PYTHON may name another interpreter of version 3.11 or later.

PYTHON ?= python3
BIN := .venv/bin
SETUP := tools/setup.sh

.PHONY: run test bench lint setup clean

run: .venv/run.stamp
	@$(BIN)/waystation serve

test: .venv/test.stamp lint
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

lint: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: .venv/bench.stamp
	$(BIN)/python -m benchmarks.store
	$(BIN)/python -m benchmarks.queues
	$(BIN)/python -m benchmarks.idempotency
	$(BIN)/python -m benchmarks.relay
	$(BIN)/python -m benchmarks.saturation
	$(BIN)/python -m benchmarks.costs
	$(BIN)/python -m benchmarks.gate
	$(BIN)/python -m benchmarks.inbox
	$(BIN)/python -m benchmarks.pages
	$(BIN)/python -m benchmarks.desk

setup: .venv/test.stamp

.venv/run.stamp .venv/test.stamp .venv/bench.stamp: .venv/%.stamp: pyproject.toml requirements.lock $(SETUP)
	@PYTHON=$(PYTHON) sh $(SETUP) $*

clean:
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis
