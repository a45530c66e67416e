# Everything runs in .venv, made from the lock files on first use. Needs Python 3.11 or later.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
.DEFAULT_GOAL := help

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.x ...")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# What `make demo` and `make run` need: a quarter of what `make install` downloads.
$(VENV)/demo: $(VENV)/made requirements/demo.lock
	$(PIP) install --quiet --require-hashes -r requirements/demo.lock
	@touch $@

$(VENV)/installed: $(VENV)/made requirements/dev.lock pyproject.toml
	$(PIP) install --quiet --require-hashes -r requirements/dev.lock
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $(VENV)/demo $@

$(VENV)/bench: $(VENV)/installed requirements/bench.lock
	$(PIP) install --quiet --require-hashes -r requirements/bench.lock
	! command -v npm > /dev/null || npm ci --silent --prefix benchmarks/peers/graphile_worker
	@touch $@

$(VENV)/long: $(VENV)/installed requirements/long.lock
	$(PIP) install --quiet --require-hashes -r requirements/long.lock
	@touch $@

$(VENV)/docs: $(VENV)/installed requirements/docs.lock
	$(PIP) install --quiet --require-hashes -r requirements/docs.lock
	@touch $@

.PHONY: help install demo run free-port test test-all check docs wheel faults explore soak bench new env lock clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

install: $(VENV)/installed ## Make .venv from the lock files

PATIENCE ?= 1
demo: $(VENV)/demo ## Play the whole story in under a minute; PATIENCE=5 on a busy machine
	$(BIN)/python -m examples.demo --patience $(PATIENCE)

PORT ?= 8000
run: free-port $(VENV)/demo ## Start the API on port 8000, a worker, Valkey and PostgreSQL, with data under data/
	PORT=$(PORT) $(BIN)/python -m devtools.run

# Before anything is installed, which takes a minute.
free-port:
	@$(PYTHON) -c 'import socket, sys; port = "$(PORT)"; known = port.isdecimal() and int(port) in range(1, 65536); sys.exit(socket.socket().connect_ex(("127.0.0.1", int(port))) == 0 and f"port {port} is taken: make run PORT={int(port) + 1}" if known else f"PORT={port} is no port: make run PORT=8000")'

# Options for the whole suite, not for a single test, so they are here and not in pyproject.toml.
# Idle processes take over tests from busy ones. N=0 runs the tests one after another.
N ?= auto
PYTEST = $(BIN)/python -m pytest -q -n $(N) --dist worksteal --durations 10
TESTS = $(if $(FEATURE),tests/$(FEATURE))
test: $(VENV)/installed ## Run the tests for every promise, in minutes; FEATURE=order, LEVEL=postgres for some
	$(PYTEST) -m 'not slow$(if $(LEVEL), and $(LEVEL))' $(TESTS)

test-all: $(VENV)/long ## Run all tests, at length: every fault, the browser, long races, generated requests
	$(MAKE) fuzz EXAMPLES=25 SEED=1  # <openapi/>
	LONG=1 $(PYTEST) $(TESTS)

check: $(VENV)/installed ## Check lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/docs ## Build README and docs/ as a site in build/site, which needs no internet
	rm -rf build/site
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs/site -d build/doctrees . build/site
	@echo 'Open build/site/index.html'

wheel: $(VENV)/installed ## Try the built wheel in an empty environment: the queue alone, then the service
	$(BIN)/python -m devtools.try_wheel

# <openapi>
.PHONY: openapi fuzz
openapi: $(VENV)/installed ## Write docs/openapi.json, the description of the API
	$(BIN)/python -m devtools.openapi

$(VENV)/fuzz: $(VENV)/installed tests/openapi/fuzz/requirements.lock
	$(PIP) install --quiet --require-hashes -r tests/openapi/fuzz/requirements.lock
	@touch $@

EXAMPLES ?= 500
fuzz: $(VENV)/fuzz ## Send requests generated from docs/openapi.json; EXAMPLES=2000 for more
	$(BIN)/python -m tests.openapi.fuzz --examples $(EXAMPLES) $(if $(SEED),--seed $(SEED))
# </openapi>

# One after another, on a machine with nothing else to do, because time limits are strict.
faults: $(VENV)/installed ## Run the fault tests repeatedly, with strict time limits
	STRICT=1 $(BIN)/python -m pytest -q -m clock
	STRICT=1 REPEAT=30 $(BIN)/python -m pytest -q -m faults --timeout 0

explore: $(VENV)/installed ## Search all orders of the queue's steps for MINUTES=10
	$(BIN)/python -m tests.interleavings --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

MINUTES ?= 10
soak: $(VENV)/installed ## Break things at random for MINUTES=10, then print a table
	$(BIN)/python -m tests.faults.soak --minutes $(MINUTES)

bench: $(VENV)/bench ## Measure the figures of docs/performance.md again; PART=drain for one part
	$(BIN)/python -m benchmarks$(if $(PART),.$(PART))

# <cut>
ifdef KEEP
new: $(if $(IN),$(VENV)/installed) ## Write the service with some features only: IN=../shop KEEP="webhooks ops", or KEEP=none
	@test -n "$(IN)" || { echo 'IN is missing, the folder of the new repository: make new IN=../shop KEEP="$(KEEP)"'; exit 2; }
	@$(BIN)/python -m devtools.cut "$(NAME)" "$(IN)" --keep "$(KEEP)"
else
# </cut>
new: $(if $(and $(NAME),$(IN)),$(VENV)/installed) ## Write a service as a repository of its own: NAME=seat-hold IN=../seat-hold
	@test -n "$(NAME)" || { echo 'NAME is missing: make new NAME=seat-hold IN=../seat-hold'; exit 2; }
	@test -n "$(IN)" || { echo 'IN is missing, the folder of the new repository: make new NAME=$(NAME) IN=../$(NAME)'; exit 2; }
	@$(BIN)/python -m devtools.new "$(NAME)" "$(IN)"
# <cut>
endif
# </cut>

env: ## Write .env with random secrets, once
	@test -e .env && echo '.env already exists, and was not changed' || $(PYTHON) devtools/make_env.py

lock: ## Resolve the lock files again (needs uv)
	uv pip compile --quiet --universal -p 3.11 --generate-hashes --no-header --no-annotate --extra orders --extra metrics pyproject.toml -o requirements/service.lock
	uv pip compile --quiet --universal -p 3.11 --generate-hashes --no-header --no-annotate --extra orders --extra metrics --extra demo -c requirements/service.lock pyproject.toml -o requirements/demo.lock
	uv pip compile --quiet --universal -p 3.11 --generate-hashes --no-header --no-annotate --extra dev -c requirements/demo.lock pyproject.toml -o requirements/dev.lock
	uv pip compile --quiet --universal -p 3.11 --generate-hashes --no-header --no-annotate --extra dev --extra bench -c requirements/dev.lock pyproject.toml -o requirements/bench.lock
	uv pip compile --quiet --universal -p 3.11 --generate-hashes --no-header --no-annotate --extra long -c requirements/dev.lock pyproject.toml -o requirements/long.lock
	uv pip compile --quiet --universal -p 3.11 --generate-hashes --no-header --no-annotate --extra fuzz -c requirements/dev.lock pyproject.toml -o tests/openapi/fuzz/requirements.lock  # <openapi/>
	uv pip compile --quiet --universal -p 3.11 --generate-hashes --no-header --no-annotate --extra dev --extra docs -c requirements/dev.lock pyproject.toml -o requirements/docs.lock

clean: ## Remove .venv, data and everything that was built
	rm -rf $(VENV) data build *.egg-info
