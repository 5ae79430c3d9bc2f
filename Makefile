# Two commands do everything on a fresh machine with Python 3.11+: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2
# Torch's threads of parallel test workers would otherwise spin while they wait for each other's cores.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test check lint types imports schemas pytest format bench bench-peers screens docs clean

# The stamp is older than these files exactly when what is installed may not be what they say.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/lineage demo runs

test: check

check: lint types imports schemas pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports --no-cache

schemas: $(STAMP)
	$(BIN)/python -m lineage_schemas.publish --check

pytest: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m lineage_schemas.publish

# Twenty minutes on two cores. The other trackers take part when `make bench-peers` has installed them (3 GB).
bench: $(STAMP)
	$(BIN)/python -m benchmarks --full --json benchmarks/results/latest

bench-peers: $(STAMP)
	$(BIN)/python -m benchmarks.peers.install

# In an environment of its own: the pages are made from the text of the code, so neither torch nor a test tool is needed.
DOCS := build/docs-venv

$(DOCS)/.installed: pyproject.toml constraints.txt
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt '.[docs]'
	touch $@

# Into build/docs; any warning is an error, and nothing is fetched.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
