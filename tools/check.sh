#!/usr/bin/env bash
# What CI checks on every change, in the order of what fails fastest. Run by `make check`, with env.sh sourced.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Scripts are found by their first line, so that a new one cannot be forgotten. The stages of a node's bring-up have
# none: they are sourced, and SC2154 cannot know the variables that are set before.
# Goldens of jobs leave out the part that is always the same; tests of theirs check whole scripts.
mapfile -t scripts < <(git grep --untracked -lIE '^#!.*\b(ba)?sh$' -- ':!*.py' ':!*.md' ':!tests/golden/jobs')
stages=(cloud-init/files/usr/local/lib/trainyard/{stage.sh,stages/*})

step() {
  local began=$SECONDS
  echo "== $*"
  "$@"
  echo "   $((SECONDS - began)) s"
}

step ruff check .
step ruff format --check .
step shellcheck --severity=warning --external-sources --check-sourced "${scripts[@]}"
step shellcheck --severity=warning --shell=bash --exclude=SC2154 "${stages[@]}"
step mypy
# Each test is alone with its folder, so all cores share them; tests on machines and engines run one after the other.
step python -m pytest -q -n auto -m "not integration and not engine"
