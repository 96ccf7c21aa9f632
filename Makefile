# Everything that people and CI do here. `make help` lists it; a target's ## text is its help.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
UV     := 0.13.9

# Narrow a test run:  make test ENGINES=sqlite ARGS="tests/db -k retry"
ENGINES ?= $(TENURE_TEST_ENGINES)
ARGS    ?=
# Test processes; each has servers of its own. Two more than processors, for much of a test is waiting: for a disk, for a
# time that must pass. WORKERS=0 runs all in one, for a debugger
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 1) + 2)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

##@ Start
.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z\/-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## Make the virtual environment and install everything, pinned and hashed

# The build tools come from the lock as well, so nothing is fetched that no hash covers.
$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and \
	  f"Tenure needs Python 3.11 or newer, $(PYTHON) is {v[0]}.{v[1]}; name another one: make $(MAKECMDGOALS) PYTHON=python3.13")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: run
run: $(STAMP) ## Serve on SQLite, or on TENURE_DATABASE_URL; prints a first request to try
	$(BIN)/tenure serve

.PHONY: demo
demo: $(STAMP) ## Hash the standard library with workers in two languages, kill one, compare
	$(BIN)/python -m demo

##@ Check
.PHONY: test
test: $(STAMP) ## Run every test on every engine found  (ENGINES=sqlite,mysql  ARGS="-k claim")
	TENURE_TEST_ENGINES=$(ENGINES) $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

.PHONY: lint
lint: $(STAMP) ## Check style, types, layers and our own rules
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m scripts.lints

.PHONY: fmt
fmt: $(STAMP) ## Format the code and repair what can be repaired
	$(BIN)/ruff check --fix --quiet || true
	$(BIN)/ruff format --quiet

.PHONY: check
check: lint test ## What CI runs

.PHONY: bench
bench: $(STAMP) ## Measure the service against the bare database  (ARGS="--help")
	TENURE_TEST_DISK=1 $(BIN)/python -m bench $(ARGS)

##@ Change
.PHONY: migration
migration: $(STAMP) ## Begin a migration  (m="add a column to jobs")
	@test -n "$(m)" || { echo 'say what it does: make migration m="add a column to jobs"'; exit 2; }
	$(BIN)/alembic revision --rev-id $$(date -u +%Y%m%d%H%M) -m "$(m)"

.PHONY: migrate
migrate: $(STAMP) ## Bring the database of TENURE_DATABASE_URL up to date
	$(BIN)/tenure migrate

.PHONY: openapi
openapi: $(STAMP) ## Write openapi.json anew
	$(BIN)/tenure openapi > openapi.json

.PHONY: docs/settings
docs/settings: $(STAMP) ## Write docs/settings.md anew
	$(BIN)/python -m scripts.settings_page > docs/settings.md

# No line of a lock may name an index: whoever installs chooses where packages come from, the hashes say which they are.
.PHONY: lock
lock: $(STAMP) ## Resolve the dependencies anew into the two lock files  (ARGS="--upgrade")
	@test -x $(VENV)/lock/bin/uv || { $(BIN)/python -m venv $(VENV)/lock && $(VENV)/lock/bin/pip install --quiet uv==$(UV); }
	$(VENV)/lock/bin/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --extra postgres --group dev $(ARGS) -o requirements.lock
	$(VENV)/lock/bin/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-header --extra postgres -c requirements.lock -o requirements-runtime.lock
