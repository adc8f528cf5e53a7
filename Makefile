# Everything a developer does here, by name. `make` alone lists it.
#
#   make test PYTHON=python3.11 WORKERS=4
#   make fuzz SECONDS=600
#   make sepsis DB=duckdb:mimic.duckdb SEPSIS=~/sepsis-study
#   make reproduce WHAT="figure2 --world authors --quick"

PYTHON  ?= python3
WORKERS ?= 2
SECONDS ?= 60
SEPSIS  ?= sepsis-study

BIN   := .venv/bin
READY := .venv/ready
TEST_PROGRAMS := chromium npm nginx=nginx-light pg_ctlcluster=postgresql
NETWORK_PROGRAMS := nginx=nginx-light ip=iproute2 nft=nftables
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
QUICK := quick or not (slow or browser or database or network)

.DEFAULT_GOAL := help
.PHONY: help setup demo sepsis reproduce test test-quick test-long test-network lint fuzz bench docs agree-scope-rl lock release bundle sbom clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make .venv with fdtr and its tools (at once when nothing changed)

demo: setup ## run a whole federated study on built-in data, into ./fdtr-demo/
	@$(BIN)/fdtr demo
	@echo "The report: fdtr-demo/report.html"

sepsis: setup ## run the paper's sepsis study on your MIMIC-IV: DB=duckdb:FILE or DB=postgresql://USER@HOST/DATABASE
	@test -n "$(DB)" || test -d $(SEPSIS)/data || { echo "Name your MIMIC-IV: make sepsis DB=duckdb:FILE, or DB=postgresql://USER@HOST/DATABASE" >&2; exit 1; }
	@test -z "$(DB)" || ! test -d $(SEPSIS)/data || { echo "$(SEPSIS)/data was extracted before, perhaps from another database. To analyse it again: make sepsis SEPSIS=$(SEPSIS). To extract anew, name another folder: make sepsis DB=… SEPSIS=…" >&2; exit 1; }
	@test -z "$(DB)" || $(BIN)/fdtr extract mimic-iv --db '$(DB)' --study examples/sepsis/paper.toml --out $(SEPSIS)/data
	@$(BIN)/python examples/sepsis/analyse.py $(SEPSIS)

reproduce: setup ## repeat an experiment of reproductions/: WHAT=figure2, or WHAT="figure2 --quick"; without WHAT, list them
	@PYTHONPATH=reproductions $(BIN)/python -m experiments $(or $(WHAT),--help)

test: lint ## lint, type-check and test, in some ten minutes; what takes longer is in test-long and test-network
	@scripts/system-packages $(PYTHON) $(TEST_PROGRAMS)
	$(PYTEST) -m "not long and not (network and slow)"

test-quick: setup ## run the tests that answer within two minutes
	$(PYTEST) -m "($(QUICK)) and not long"

test-long: setup ## the long forms of some tests: a crash at every write, a thousand sites; release runs it
	$(PYTEST) -m long

test-network: setup ## break federations of real processes: killed, stopped, cut off, in network namespaces
	@scripts/system-packages $(PYTHON) $(NETWORK_PROGRAMS)
	$(PYTEST) tests/exchange/flower tests/test_three_hospitals.py -m "network and not long"

lint: setup ## check style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

fuzz: setup ## feed the reader of messages what nobody sends, for SECONDS (60)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python scripts/fuzz.py $(SECONDS)

bench: setup ## measure the figures in benchmarks/RESULTS.md on this machine
	PYTHONPATH=reproductions $(BIN)/python benchmarks/run.py

docs: setup ## run the examples in docs/ and follow every relative link
	$(BIN)/python -m pytest tests/test_docs.py $(wildcard docs)

agree-scope-rl: ## compare values with SCOPE-RL's on frozen patients, in an environment of its own
	@scripts/system-packages $(PYTHON)
	@scripts/agree-scope-rl $(PYTHON)

lock: ## rewrite constraints.txt with the newest versions that fit together
	@scripts/system-packages $(PYTHON)
	@scripts/lock $(PYTHON)

release: setup ## run the long tests, build twice, compare, try the wheel in a fresh environment; leaves dist/
	@scripts/release $(PYTHON)

bundle: setup ## gather fdtr and all it runs with as wheels, hashes beside them, for a site without a registry; in dist/
	@scripts/bundle $(PYTHON)

sbom: setup ## list what fdtr runs with, versions and licences, in dist/sbom.json (CycloneDX)
	@$(BIN)/python scripts/sbom.py dist/sbom.json

clean: ## remove .venv, .scope-rl, dist and caches (fdtr-demo/ stays: it may hold your edits)
	rm -rf .venv .scope-rl dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests scripts benchmarks reproductions -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# The stamp holds the folder .venv was made for: in a copied or moved one it would run the code of the old.
MADE_FOR := $(shell cat $(READY) 2>/dev/null)
ifneq ($(MADE_FOR),$(CURDIR))
.PHONY: $(READY)
CLEAR := $(if $(MADE_FOR),--clear)
endif

$(READY): pyproject.toml constraints.txt
	@scripts/system-packages $(PYTHON)
	@echo "Setting up .venv; the first time takes a minute or two."
	@rm -f $@
	@$(PYTHON) -m venv $(CLEAR) .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@printf '%s\n' '$(CURDIR)' > $@
