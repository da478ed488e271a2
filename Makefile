.DEFAULT_GOAL := help
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
ENV := source .trainyard/env.sh &&
FULL := full

.PHONY: help setup golden demo down clean site preview check test test-full test-official test-official-gcp bench bench-clouds bench-repair lint fmt

help:  ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 16

setup:  ## install missing system packages, the Python environment and the Pulumi CLI
	@tools/setup.sh

golden:  ## set up, and build the image of the virtual machines if it is not cached
	@tools/setup.sh --image

demo:  ## boot a head and two workers on this computer, run a two-node all-reduce, print its table
	@SECONDS=0; tools/setup.sh --demo; $(ENV) python -m tools.demo --seconds-before "$$SECONDS"

down: setup  ## delete the local cluster and its files
	@$(ENV) python -m tools.down

clean:  ## delete the cache in ~/.cache/trainyard (images, tools), except images of existing machines
	@$(ENV) python -m tools.clean

site: setup  ## build the documentation as a site in .trainyard/site/html, and check its links
	@tools/setup/site.sh

preview: setup  ## show resources, prices and quotas of every stack; needs no cloud account, changes nothing
	@$(ENV) yard preview --all

check: setup  ## linters, types and the tests that need no virtual machines
	@$(ENV) tools/check.sh

test: golden  ## check, and tests on a local cluster with injected faults
	@$(ENV) tools/check.sh && python -m pytest -v -n 3 --dist worksteal --durations 12 -m "engine and not integration and not full" && \
		python -m pytest -v --durations 12 -m "integration and not full"

test-full: golden  ## longer tests: existing hosts, faults during jobs, ten thousand stack files
	@$(ENV) python -m pytest -v -m "$(FULL)"

test-official: golden  ## tests of the local stack and of existing hosts with the official pulumi-command plugin
	@$(ENV) tools/official.sh command

test-official-gcp: setup  ## tests of the Google Cloud stacks with the official pulumi-gcp plugin and a simulated API
	@$(ENV) tools/official.sh gcp

bench: golden bench-clouds bench-repair  ## measure the local stack and large stacks, and compare with ceilings
	@$(ENV) python -m tools.bench

bench-repair: golden  ## measure the time from a killed machine to the next step of its job on the spare
	@$(ENV) python -m pytest -q -n 0 -s tests/integration/test_repair.py -k killed

bench-clouds: setup  ## measure previews of large stacks on simulated clouds
	@$(ENV) python -m tools.bench_clouds

lint: setup  ## ruff and mypy only
	@$(ENV) ruff check . && ruff format --check . && mypy

fmt: setup  ## format the code and apply the fixes of ruff
	@$(ENV) ruff check --fix . ; ruff format .
