.DEFAULT_GOAL := help
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
ENV := source .trainyard/env.sh &&
FULL := full

.PHONY: help setup golden demo down preview check test test-full bench bench-clouds lint fmt

help:  ## list what there is to make
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 16

setup:  ## install what is missing: system packages, Python environment, Pulumi CLI
	@tools/setup.sh

golden:  ## set up, and build the virtual machines' image when it is not cached
	@tools/setup.sh --image

demo:  ## boot a head and two workers here, run a two-node all-reduce, print its table
	@SECONDS=0; tools/setup.sh --image; $(ENV) python -m tools.demo --seconds-before "$$SECONDS"

down: setup  ## delete the local cluster and everything it left
	@$(ENV) python -m tools.down

preview: setup  ## show what every stack would make, cost and need; no cloud account, nothing is made
	@$(ENV) yard preview --all

check: setup  ## linters, types and the tests that need no machine
	@$(ENV) tools/check.sh

test: golden  ## check, and the tests on a real local cluster that is broken on purpose
	@$(ENV) tools/check.sh && python -m pytest -v -n 2 -m "engine and not integration and not full" && \
		python -m pytest -v --durations 12 -m "integration and not full"

test-full: golden  ## what takes longer: hosts that exist, jobs that meet faults, ten thousand stack files
	@$(ENV) python -m pytest -v -m "$(FULL)"

bench: golden bench-clouds  ## measure the local stack, and large stacks, against their ceilings
	@$(ENV) python -m tools.bench

bench-clouds: setup  ## measure previews of large stacks against simulated clouds
	@$(ENV) python -m tools.bench_clouds

lint: setup  ## ruff and mypy only
	@$(ENV) ruff check . && ruff format --check . && mypy

fmt: setup  ## format the code and mend what ruff can mend
	@$(ENV) ruff check --fix . ; ruff format .
