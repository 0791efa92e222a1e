# Each target alone does all the set-up it needs, on a machine that has only Python 3.10 to 3.12 and pip's usual registry.
#   make demo        train digits over two processes, exactly and with one bit a value
#   make test        the fast tier: check, then the tests not marked slow or lab
#   make test-all    every test
#   make conformance every layer, norm and model of the installed PyG, against docs/support.md
#   make check       format, lint, types
#   make format      rewrite to the project's format
#   make docs        run the docstrings' examples and check the links of the documents

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REQUIREMENTS := $(VENV)/requirements.stamp
STAMP := $(VENV)/package.stamp
# The processes of one test or of the demo share the cores.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-all conformance check format docs
.DELETE_ON_ERROR:

$(REQUIREMENTS): requirements/tested.txt
	$(PYTHON) -c 'import sys; (3, 10) <= sys.version_info < (3, 13) or sys.exit("Expected Python 3.10 to 3.12, use make PYTHON=...")'
	$(PYTHON) -m venv --clear $(VENV)
	@# torch first and alone, with what its build needs; the list names all else in full. Compiling at first use is faster.
	$(BIN)/pip install --quiet --no-compile "$$(grep '^torch==' requirements/tested.txt)"
	$(BIN)/pip install --quiet --no-compile --no-deps --requirement requirements/tested.txt
	touch $@

$(STAMP): $(REQUIREMENTS) pyproject.toml
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: check
	$(BIN)/python -m pytest -m "not slow and not lab"

test-all: check
	$(BIN)/python -m pytest

conformance: $(STAMP)
	$(BIN)/python -m tests.conformance

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix-only

docs: $(STAMP)
	$(BIN)/python -m pytest -m "not slow and not lab" lightning_gnncomm tests/test_docs.py
