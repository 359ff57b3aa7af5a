# What can be done with this repository. Every target does its own set-up; `make help` lists them.
# Works with GNU make 3.81 and later.

VENV := .venv
BIN := $(VENV)/bin
# The first interpreter of at least 3.11; uv's own where the system has none.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 "$$(uv python find '>=3.11' 2>/dev/null)"; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
STAMP := $(shell date +%Y%m%d-%H%M%S)
PACKAGES := diloco_api diloco_operator diloco_cli diloco_trainer dashboards
PYTEST ?= $(BIN)/python -m pytest
SITES ?= 2
CLUSTER_SETS ?= 2
CLUSTER_TESTS ?= tests/clusters
CLUSTERS := PYTHONPATH=tests PYTHONUNBUFFERED=1 "$(PYTHON)" -m clusters.cli

TAG ?= dev
PROMETHEUS ?= http://localhost:9090
# The image both images are built on; where it cannot be pulled: make base-image, then BASE_IMAGE=localhost/python-base.
BASE_IMAGE ?= python:3.12-slim
TORCH_INDEX ?=
KIND_CLUSTER ?= kind

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-full verify manifests proto bench clean clusters-up clusters-down test-clusters
.PHONY: dashboard-pictures base-image images images-push kind-load clusters-load test-images test-chart test-gpu lock

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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
	@$(PYTEST) --numprocesses auto tests/unit tests/contract
	@$(PYTEST) tests/integration

test-chart: setup ## Render, lint and check the Helm charts with a real helm (Go fetches the definitions of monitors)
	@$(PYTEST) tests/chart

test-full: verify test test-chart test-clusters test-images ## Run everything there is, as root: verify, then all tests

verify: setup ## Check generated files, lint, types, imports, sizes, links; runs no tests
	@$(BIN)/python -m diloco_api.crd --check
	@$(BIN)/python -m diloco_api.manifest_page --check
	@$(BIN)/python -m diloco_api.metrics_page --check
	@PYTHONPATH=tests $(BIN)/python -m chart.values_page --check
	@$(BIN)/python -m diloco_trainer.wire.generate --check
	@PYTHONPATH=helm $(BIN)/python -m dashboards.write --check
	@"$(PYTHON)" .ci/lock.py --check
	@"$(PYTHON)" .ci/images_digest.py --check
	@$(BIN)/hadolint Dockerfile
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@for package in $(PACKAGES); do echo "mypy --strict -p $$package"; $(BIN)/mypy --strict -p $$package || exit 1; done
	@$(BIN)/lint-imports --no-cache --no-logo
	@PYTHONPATH=tests $(BIN)/python -m checks.run

clusters-up: ## Start real Kubernetes clusters on this machine, as root: a hub and two sites (SITES=n)
	@$(CLUSTERS) up --sites $(SITES)

clusters-down: ## Remove the clusters and every trace of them
	@$(CLUSTERS) down

test-clusters: setup ## Run the tests that need clusters, as root; brings them up and down unless they are up (CLUSTER_TESTS=, CLUSTER_SETS=)
	@$(CLUSTERS) build
	@PYTHONPATH=tests $(BIN)/python -m clusters.run --sets $(CLUSTER_SETS) $(CLUSTER_TESTS)

manifests: setup ## Write the CRD, the manifest page, the charts' page and dashboards from their sources
	@$(BIN)/python -m diloco_api.crd
	@$(BIN)/python -m diloco_api.manifest_page
	@$(BIN)/python -m diloco_api.metrics_page
	@PYTHONPATH=tests $(BIN)/python -m chart.values_page
	@PYTHONPATH=helm $(BIN)/python -m dashboards.write

dashboard-pictures: setup ## Draw the dashboards from a Prometheus into docs/dashboards (PROMETHEUS=, DRAW="--job=llm ...")
	@PYTHONPATH=helm $(BIN)/python -m dashboards.pictures --prometheus "$(PROMETHEUS)" $(DRAW)

proto: setup ## Write the gRPC stubs from synchronizer.proto
	@$(BIN)/python -m diloco_trainer.wire.generate

bench: setup ## Run the benchmarks, results in benchmarks/out (BENCH=--quick for short ones)
	@mkdir -p benchmarks/out
	@for script in benchmarks/*.py; do \
		echo "--- $$script $(BENCH)"; \
		$(BIN)/python "$$script" --json "benchmarks/out/$$(basename "$$script" .py).json" $(BENCH) || exit 1; done

base-image: ## Make the image localhost/python-base from Debian's packages, for machines that cannot pull one
	@tests/images/base.sh

images: ## Build the operator and the trainer image (TAG=, BASE_IMAGE=, TORCH_INDEX=, IMAGES=operator)
	@"$(PYTHON)" .ci/images.py build --tag "$(TAG)" --base-image "$(BASE_IMAGE)" --torch-index "$(TORCH_INDEX)" $(IMAGES)

images-push: ## Push both images (REGISTRY=registry.example.com/team, TAG=)
	@"$(PYTHON)" .ci/images.py push --tag "$(TAG)" --registry "$(REGISTRY)" $(IMAGES)

kind-load: ## Load both images into a kind cluster (KIND_CLUSTER=, TAG=)
	@"$(PYTHON)" .ci/images.py kind-load --tag "$(TAG)" --cluster "$(KIND_CLUSTER)" $(IMAGES)

clusters-load: ## Load the images into the test clusters, as root (TAG=, IMAGES=operator, ONLY=hub,site-1)
	@PYTHONPATH=tests "$(PYTHON)" -m clusters.load --tag "$(TAG)" --only "$(ONLY)" $(IMAGES)

test-gpu: setup ## Run codecs, copies and the quickstart on a GPU and compare with the CPU (ALLOW_MISSING=1: no GPU is no error)
	@$(BIN)/python tests/gpu/verify.py $(if $(ALLOW_MISSING),--allow-missing)

lock: ## Renew the lock files of the images after a change of pyproject.toml (UPGRADE=1: newest versions of everything)
	@"$(PYTHON)" .ci/lock.py $(if $(UPGRADE),--upgrade)

test-images: setup base-image ## Build both images on Debian's Python and run them (root and buildah; 14 GB of disk, 6 GB stay)
	@"$(PYTHON)" .ci/images.py build --tag test --base-image localhost/python-base
	@IMAGE_TAG=test $(PYTEST) tests/images
	@"$(PYTHON)" .ci/images_digest.py

clean: ## Remove the virtual environment and caches; keeps runs/
	rm -rf $(VENV) build *.egg-info crds/*.egg-info operator/*.egg-info trainer_image/*.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
