#!/usr/bin/env bash
# What CI checks on every change, what fails fastest first. Run by `make check`, with env.sh sourced.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Scripts are found by their first line, so that a new one cannot be forgotten. The stages of a node's bring-up have
# none: they are sourced, and SC2154 cannot know the variables that are set before.
# Goldens of jobs leave out the part that is always the same; tests of theirs check whole scripts.
mapfile -t scripts < <(git grep --untracked -lIE '^#!.*\b(ba)?sh$' -- ':!*.py' ':!*.md' ':!tests/golden/jobs')
stages=(cloud-init/files/usr/local/lib/trainyard/{*.sh,stages/*})

step() {
  local began=$SECONDS
  echo "== $*"
  "$@" || return
  echo "   $((SECONDS - began)) s"
}

# Tests wait now and then, also on all cores: what needs one core goes on beside them, and what it says comes after.
beside=()
said=$(mktemp -d)
trap 'kill "${beside[@]}" 2>/dev/null || true; rm -rf "$said"' EXIT

start() {
  echo "== $*" >"$said/${#beside[@]}"
  "$@" >>"$said/${#beside[@]}" 2>&1 &
  beside+=($!)
}

step ruff check .
step ruff format --check .
start mypy
start shellcheck --severity=warning --external-sources --check-sourced "${scripts[@]}"
start shellcheck --severity=warning --shell=bash --exclude=SC2154 "${stages[@]}"
failed=0
# Each test is alone with its folder, so all cores share them; tests on machines and engines run one after the other.
# A worker begins with one half and steals at the end: tests that need the same SDK stay where it is imported.
step python -m pytest -q -n auto --dist worksteal -m "not integration and not engine" || failed=1
for number in "${!beside[@]}"; do
  wait "${beside[number]}" || failed=1
  cat "$said/$number"
done
exit "$failed"
