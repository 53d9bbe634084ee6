# Two commands set up everything on a fresh Debian or Ubuntu: `make demo` and `make test`.
SHELL := /bin/bash
VENV  := .venv
BIN   := $(VENV)/bin
.PHONY: help venv demo demo-campaign demo-slurm demo-posttrain test test-fast test-nightly test-slurm test-stranger test-pyslurm lint types imports check docs bench docs-reference clean

help:                       ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

venv: $(VENV)/.ready        ## the virtual environment with the package in it
$(VENV)/.ready: pyproject.toml
	bash .ci/setup venv

demo: venv                  ## a real target, five candidates, five verdicts (Slurm if sinfo answers, else this machine)
	$(BIN)/python docs/tutorial/demo.py

demo-campaign: venv         ## models compete, the first champion was luck, a picture of it (Slurm if sinfo answers)
	bash .ci/setup examples
	$(BIN)/python docs/tutorial/demo_campaign.py

demo-slurm: export OUTERLOOP_DEV_DIR ?= /tmp/outerloop-dev-$(shell id -u)/c1
demo-slurm: venv            ## the same on a one-machine Slurm cluster that it brings up first
	bash slurm/devcluster/install.sh
	bash slurm/devcluster/up.sh
	. "$$OUTERLOOP_DEV_DIR/env" && $(BIN)/python docs/tutorial/demo.py --backend slurm
	@echo "  bash slurm/devcluster/down.sh --purge   # takes the cluster down"

demo-posttrain: venv        ## four entries to a post-training challenge on the CPU (Slurm if sinfo answers)
	bash .ci/setup posttrain
	$(BIN)/python docs/tutorial/demo_posttrain.py

# Tests wait for Slurm, so two processors have time for four. Compiled once: the tests start a thousand interpreters.
PYTEST = env -u PYTHONDONTWRITEBYTECODE OUTERLOOP_REQUIRE_SLURM=1 OUTERLOOP_REQUIRE_BROWSER=1 \
	  $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder
test: venv                  ## everything, on a real Slurm and a real Postgres
	bash .ci/setup test
	$(MAKE) check
	$(BIN)/python -m compileall -q outerloop migrations
	$(PYTEST)

test-fast: venv             ## unit and property tests only
	$(BIN)/python -m pytest tests/unit tests/property

# Hours: SCHEDULES random schedules, every seed that fails is printed (replay: python -m tests.nightly --seed N).
SCHEDULES ?= 20000
test-nightly: venv          ## everything, what takes long included, and 20,000 random schedules (hours)
	bash .ci/setup test
	$(BIN)/python -m tests.nightly --schedules $(SCHEDULES)
	OUTERLOOP_NIGHTLY=1 $(PYTEST)

test-stranger: venv         ## the README's commands alone in a clean Debian, on a repository it does not know (root)
	$(BIN)/python -m tests.stranger.first_verdict

# SUITE is a Debian suite: bookworm 22.05, trixie 24.11, forky 26.05. Nothing is installed: get-slurm.sh unpacks.
SUITE ?= trixie
test-slurm: export OUTERLOOP_DEV_PREFIX ?= $(CURDIR)/.slurm/$(SUITE)
test-slurm: venv            ## the tests on a real Slurm, of another release: make test-slurm SUITE=forky
	bash slurm/devcluster/get-slurm.sh $(SUITE) "$$OUTERLOOP_DEV_PREFIX"
	OUTERLOOP_REQUIRE_SLURM=1 OUTERLOOP_REQUIRE_BROWSER=1 $(BIN)/python -m pytest tests/slurm

# SLURM=/opt/slurm names the Slurm 25.11, PYSLURM=DIR a pyslurm that is not in .venv (otherwise it is built).
# SITE=/scratch/me tests on the cluster that runs, as whoever calls, with PARTITION=, ACCOUNT=, QOS=; else on one of its own.
test-pyslurm: export OUTERLOOP_TEST_PARTITION ?= $(PARTITION)
test-pyslurm: export OUTERLOOP_TEST_ACCOUNT ?= $(ACCOUNT)
test-pyslurm: export OUTERLOOP_TEST_QOS ?= $(QOS)
test-pyslurm: venv          ## the tests of the pyslurm backend, on the real library (needs Slurm 25.11)
	$(BIN)/python -m tests.slurm.pyslurm_ready --slurm "$(SLURM)" --pyslurm "$(PYSLURM)" --site "$(SITE)"

# In environments of their own, .venv-vllm and .venv-inspect (3 GB and more): the main one stays as it is.
test-vllm:                  ## serving, evaluation, agents and GRPO on a real vLLM, its CPU build
	bash .ci/setup vllm cpu
	.venv-vllm/bin/python -m pytest tests/vllm tests/posttrain/test_agents.py --durations=15

test-gpu:                   ## the same with the GPU build, on a machine that has a GPU
	bash .ci/setup vllm gpu
	.venv-vllm/bin/python -m pytest tests/vllm tests/posttrain/test_agents.py --durations=15

lint: venv                  ## style
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/python docs/generate_reference.py --check

types: venv                 ## static types
	$(BIN)/mypy

imports: venv               ## the lines between the rooms
	$(BIN)/lint-imports --no-cache

check: lint types imports   ## all static checks

bench: venv                 ## measured ratios, each against its rival in the same run
	$(BIN)/python -m tests.bench

docs: venv                  ## the manual, in site/; fails for a dead link
	bash .ci/setup docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

docs-reference: venv        ## regenerate the reference pages
	$(BIN)/python docs/generate_reference.py

clean:                      ## remove what the demos left
	-OUTERLOOP_CONFIG=$(CURDIR)/.demo/config.toml $(BIN)/outerloop db stop
	-OUTERLOOP_CONFIG=$(CURDIR)/.demo-campaign/config.toml $(BIN)/outerloop db stop
	rm -rf .demo .demo-campaign .demo-posttrain
