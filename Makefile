# Everything a newcomer or a developer runs. `make help` lists it.
# uv is brought by pip into .tools, so that nothing but Python 3.11 or later is needed.

PYTHON ?= python3
UV_VERSION := 0.13.9
UV := .tools/bin/uv
# Tests use real processes with real models; more workers than cores make them slower.
TEST_WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo up test lint types imports check format demo-seats bench-serving bench-ledger bench-verify bench-placement mutate-ledger simulate chaos eval-sizing test-browser renew-pictures screenshots bench-world clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.demo ## See the whole network once: two Macs, a question, its answer, the money
	@.venv/bin/mlx-network demo

up: .venv/.demo ## Run a whole network on this machine until Ctrl-C
	@.venv/bin/mlx-network up

test: .venv/.dev ## Run all tests (SQLite, PostgreSQL and Redis start by themselves)
	.venv/bin/pytest -n $(TEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

check: lint types imports ## Everything that reads the code without running it

lint: .venv/.dev ## Style and likely faults (ruff)
	.venv/bin/ruff check
	.venv/bin/ruff format --check

types: .venv/.dev ## Types, strictly (basedpyright)
	.venv/bin/basedpyright

imports: .venv/.dev ## Who may import whom (import-linter)
	.venv/bin/lint-imports

format: .venv/.dev ## Let ruff format the code and mend what it can
	.venv/bin/ruff format
	.venv/bin/ruff check --fix

demo-seats: .venv/.dev ## See what an idle, a dedicated and an Ultra seat earn over simulated days
	@.venv/bin/python -m tests.demo_seats

bench-serving: .venv/.dev ## Compare speed: in process, mlx_lm.server, and the whole network
	.venv/bin/python -m tests.benchmarks.serving $(BENCH_ARGS)

bench-ledger: .venv/.dev ## Compare the ledger's speed with pgbench and with naive ORM code
	.venv/bin/python -m tests.benchmarks.ledger $(BENCH_ARGS)

bench-verify: .venv/.dev ## Measure verification and proofs over a million ledger entries
	.venv/bin/python -m tests.benchmarks.ledger.proofs $(BENCH_ARGS)
	.venv/bin/python -m tests.benchmarks.ledger.verify $(BENCH_ARGS)

bench-placement: .venv/.dev ## Time placement over many hosts and compare it with other policies
	.venv/bin/python -m tests.benchmarks.placement $(BENCH_ARGS)

mutate-ledger: .venv/.dev ## Seed faults into the ledger; every one must be found by a test
	.venv/bin/python -m tests.mutation.ledger $(MUTATE_ARGS)

simulate: .venv/.dev ## Live through SEEDS worlds of faults, then seed faults into the code (SEEDS=1000 SEED=0 JOBS=2)
	.venv/bin/python -m tests.simulation --with-mutants --seeds $(or $(SEEDS),1000) $(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs-at-once $(JOBS))

chaos: .venv/.dev ## Kill, freeze and cut off real processes under load for 10 minutes, then audit
	.venv/bin/python -m tests.chaos $(CHAOS_ARGS)

eval-sizing: .venv/.dev ## Hold speed forecasts against published Macs (SPEED_DATA=folder)
	.venv/bin/python -m tests.unit.sizing.evaluate

test-browser: .venv/.dev ## Run the tests of the public pages in Chromium
	.venv/bin/pytest tests/browser

renew-pictures: .venv/.dev ## Take the pictures anew that the tests of the pages compare with
	RENEW_PICTURES=1 .venv/bin/pytest tests/browser/test_visual.py -k looks

screenshots: .venv/.dev ## Take docs/screenshots anew: every page, language, theme and width
	.venv/bin/python -m tests.browser.shots $(SHOTS)

bench-world: .venv/.dev ## Measure what the map costs: bytes, requests, drawing, readers
	.venv/bin/python -m tests.browser.measure $(BENCH_ARGS)

clean: ## Remove environments and caches of this folder
	rm -rf .venv .tools .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 …") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --target .tools "uv==$(UV_VERSION)" \
	  || { echo "pip could not fetch uv. Is there a network? Behind a proxy set HTTPS_PROXY; for another package index set PIP_INDEX_URL."; exit 1; }

.venv/.demo: pyproject.toml uv.lock | $(UV)
	@echo "Installing MLX Network into .venv (once)"
	@$(UV) sync --quiet --frozen --inexact --python $(PYTHON) --extra coordinator --extra node --no-default-groups --group demo \
	  || { echo "The packages could not be fetched. Is there a network? Behind a proxy set HTTPS_PROXY; for another package index set UV_DEFAULT_INDEX."; exit 1; }
	@touch $@

.venv/.dev: pyproject.toml uv.lock | $(UV)
	@$(UV) sync --quiet --frozen --inexact --python $(PYTHON) --all-extras --all-groups
	@touch $@ .venv/.demo
