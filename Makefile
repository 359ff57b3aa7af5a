# What can be done with this repository. Every target does its own set-up; `make help` lists them.
# Works with GNU make 3.81 and later.

VENV := .venv
BIN := $(VENV)/bin
# The first interpreter of at least 3.11; uv's own where the system has none.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 "$$(uv python find '>=3.11' 2>/dev/null)"; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
STAMP := $(shell date +%Y%m%d-%H%M%S)
PACKAGES := diloco_api diloco_operator diloco_cli diloco_trainer
PYTEST ?= $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-full verify manifests proto bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv with everything needed (done by the other targets by themselves)
	@if [ -z "$(PYTHON)" ]; then \
		echo "error: Python 3.11 or newer is needed, found: $$(python3 --version 2>&1 | head -1)." \
			"Install one (Debian, Ubuntu: apt install python3.11 python3.11-venv; anywhere: uv python install 3.12)" >&2; \
		exit 1; fi
	@"$(PYTHON)" .ci/setup.py $(VENV)

quickstart: setup ## Train a small GPT on this machine with three Learners, one of which gets killed (about two minutes)
	@$(BIN)/diloco run crds/examples/quickstart.yaml --workdir runs/quickstart-$(STAMP) \
		--drill kill-learner=1@30s || { code=$$?; [ $$code -eq 130 ] || exit $$code; } # 130: stopped on purpose

test: setup ## Run the rootless tests: unit, contract, integration
	@$(PYTEST) tests/unit tests/contract tests/integration

test-full: verify test ## Run everything there is: verify, then all tests

verify: setup ## Check generated files, lint, types, imports, sizes, links; runs no tests
	@$(BIN)/python -m diloco_api.crd --check
	@$(BIN)/python -m diloco_api.manifest_page --check
	@$(BIN)/python -m diloco_trainer.wire.generate --check
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@for package in $(PACKAGES); do echo "mypy --strict -p $$package"; $(BIN)/mypy --strict -p $$package || exit 1; done
	@$(BIN)/lint-imports --no-cache --no-logo
	@PYTHONPATH=tests $(BIN)/python -m checks.run

manifests: setup ## Write the CRD and the manifest page from the models
	@$(BIN)/python -m diloco_api.crd
	@$(BIN)/python -m diloco_api.manifest_page

proto: setup ## Write the gRPC stubs from synchronizer.proto
	@$(BIN)/python -m diloco_trainer.wire.generate

bench: setup ## Run the benchmarks, results in benchmarks/out (BENCH=--quick for short ones)
	@mkdir -p benchmarks/out
	@for script in benchmarks/*.py; do \
		echo "--- $$script $(BENCH)"; \
		$(BIN)/python "$$script" --json "benchmarks/out/$$(basename "$$script" .py).json" $(BENCH) || exit 1; done

clean: ## Remove the virtual environment and caches; keeps runs/
	rm -rf $(VENV) build *.egg-info crds/*.egg-info operator/*.egg-info trainer_image/*.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
