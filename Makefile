# `make` alone lists the verbs. Each sets up what it needs; doing so again costs nothing.

SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/pytest
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help demo test soak check bench torture mutants lock format clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## a shop, a relay and a consumer on this machine; kill -9 as they work; nothing lost (ARGS="--events 20000")
	@.ci/venv .venv-demo demo
	@.venv-demo/bin/pillarbox demo $(ARGS)

test: static servers unit ## everything but the soak: format, lint, types, import contracts, all tests
	$(PYTEST) -n 3 --dist worksteal --every-skip-needs-a-reason -m "not soak" --ignore tests/unit tests

soak: venv ## what takes minutes by nature; run it before calling something done
	@.ci/servers all
	$(PYTEST) -n 3 --dist worksteal --timeout 1800 --every-skip-needs-a-reason -m soak tests

check: static unit ## format, lint, types, import contracts, unit tests, which cover the core: about a minute on two idle cores

bench: venv ## ratios against the textbook, written to benchmarks/results/latest.json
	@.ci/servers all
	$(BIN)/python -m benchmarks $(ARGS)

torture: venv ## faults of every kind on servers of its own: PostgreSQL to Kafka and to Redis 3 minutes each, SQLite 1 (ARGS="--seed 7")
	@.ci/servers all
	$(BIN)/python -m servers.torture --broker kafka $(ARGS)
	$(BIN)/python -m servers.torture --broker redis $(ARGS)
	$(BIN)/python -m servers.torture --broker embedded --minutes 1 $(ARGS)

mutants: venv ## break rules on purpose, one at a time, and see that the tests notice: a few minutes (ARGS="fence cluster")
	@.ci/servers
	$(BIN)/python -m tests.mutants $(ARGS)

lock: venv ## compile the locks anew: newest versions, hashes, no host names
	@for name in demo test; do \
		$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
			locks/$$name.in -o locks/$$name.lock || exit 1; \
	done

format: venv ## write the code as the formatter wants it
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean: ## forget the environments and the caches
	rm -rf .venv .venv-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage

.PHONY: venv servers static unit
venv:
	@.ci/venv .venv test

servers: venv
	@.ci/servers

static: venv
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy $(wildcard src tests benchmarks examples servers)
	$(BIN)/lint-imports

# Without our own plugin, which would have imported the core before anybody measures.
unit: venv
	$(PYTEST) -q -n 3 --dist worksteal --every-skip-needs-a-reason -p no:pillarbox \
		--cov=pillarbox.core --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100 tests/unit
