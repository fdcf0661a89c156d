# What a contributor runs. `make run` and `make test` do all set-up themselves.
PYTHON ?= python3
UV := .uv/bin/uv
BIN := .venv/bin
# Compiled once: without it, each of the processes that tests run in would compile all of them anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run demo test lint check format truth kills bench wheel-test lock clean

help:
	@echo "make setup       all that the others need, which they see to themselves"
	@echo "make run         serve on the embedded default (http://127.0.0.1:8420/svc/node)"
	@echo "make demo        a node with five small servers that break and mend by a script"
	@echo "make test        all tests"
	@echo "make check       format, lint, layers, types, tests"
	@echo "make format      mend format and what lint can mend"
	@echo "make wheel-test  the tests against the built wheel, on every interpreter at hand"
	@echo "make truth       hurt real servers in every known way, and count untrue answers: both totals must be 0"
	@echo "make kills       kill a process that writes history fifty times, and count what is lost: it must be 0"
	@echo "make bench       measure against the peers; writes benchmarks/RESULTS.md"
	@echo "make lock        pin the dependencies anew"
	@echo "make clean       remove everything that was made here"

setup: .venv/.ready

# uv comes by name from the package index, pinned by hash like everything else.
$(UV): requirements/uv.txt
	$(PYTHON) -m venv .uv
	.uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	touch $(UV)

.venv/.ready: $(UV) requirements/dev.txt pyproject.toml
	$(UV) venv --quiet --allow-existing --python $(PYTHON) --no-python-downloads .venv
	$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch .venv/.ready

run: setup
	$(BIN)/svcnode serve

demo: setup
	$(BIN)/svcnode demo

# What decides is tested in every branch. Most of what follows waits for servers, so it waits side by side: a file is
# never shared out, for its tests share servers. What judges times comes last, and has the machine for itself. The few
# that fail among so many get a second chance, serial.
DECIDING := tests/unit/core $(wildcard tests/unit/test_*.py)
test: setup
	$(BIN)/python -m pytest -n 2 --cov --cov-report= $(DECIDING)
	$(BIN)/coverage report --include='src/svcnode/core/*,src/svcnode/api/spec.py' --fail-under=100
	$(BIN)/python scripts/rerun_failed.py -n 4 --dist loadfile --no-loadscope-reorder -m "not serial" $(DECIDING:%=--ignore=%)
	$(BIN)/python scripts/rerun_failed.py -m serial --ignore=tests/unit

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/mypy

check: lint test

format: setup
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# Real servers from packages, which it installs itself as root.
truth: setup
	$(BIN)/python -m tests.truth

kills: setup
	$(BIN)/python -m tests.stress.history_kills

bench: setup
	$(BIN)/python -m benchmarks

# The tests against the built wheel instead of the source tree, on every interpreter at hand.
wheel-test: setup
	$(BIN)/python scripts/wheel_test.py

# After a change of the dependencies in pyproject.toml. No host is written into these files.
lock: $(UV)
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade \
	    pyproject.toml --extra all --group dev -o requirements/dev.txt
	$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --upgrade \
	    pyproject.toml --group bench -o requirements/bench.txt
	echo eigensdk==0.0.3 | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --upgrade --override requirements/eigensdk-overrides.txt - -o requirements/eigensdk.txt
	echo uv | $(UV) pip compile --quiet --universal --generate-hashes --no-header --upgrade - -o requirements/uv.txt

clean:
	rm -rf .uv .venv .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
