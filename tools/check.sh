#!/usr/bin/env bash
# The checks for `make check`, which CI also runs. Requires the environment from env.sh. Fast checks run first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Scripts are found by their interpreter line. Node stages have no such line, because the bootstrap sources these files.
# SC2154 is disabled for stages, because stage.sh sets their variables.
# Golden files contain parts of scripts. Tests run shellcheck on the complete scripts of jobs.
mapfile -t scripts < <(git grep --untracked -lIE '^#!.*\b(ba)?sh$' -- ':!*.py' ':!*.md' ':!tests/golden')
stages=(cloud-init/files/usr/local/lib/trainyard/{*.sh,stages/*})

step() {
  local began=$SECONDS
  echo "== $*"
  "$@" || return
  echo "   $((SECONDS - began)) s"
}

# Checks that need one core run in the background during the tests. Their output is printed after the test output.
background=()
outputs=$(mktemp -d)
# The tests write thousands of small files. In memory, creating and deleting them took a fifth of the processor time
# that it took on ext4. Some systems, for example containers, mount /dev/shm so that no program can run there.
files=$outputs/t
if memory=$(mktemp -d -p /dev/shm ty.XXXX 2>/dev/null) && cp /bin/true "$memory" && "$memory/true" 2>/dev/null; then
  files=$memory/t
fi
trap 'kill "${background[@]}" 2>/dev/null || true; rm -rf "$outputs" ${memory:+"$memory"}' EXIT

start() {
  echo "== $*" >"$outputs/${#background[@]}"
  "$@" >>"$outputs/${#background[@]}" 2>&1 &
  background+=($!)
}

step ruff check .
step ruff format --check .
# All checkouts share the cache of mypy, and two runs at the same time reported errors of the other checkout.
mkdir -p "$MYPY_CACHE_DIR"
start flock "$MYPY_CACHE_DIR/lock" mypy
start shellcheck --severity=warning --external-sources --check-sourced "${scripts[@]}"
# Runs offline, so that CI and a laptop report the same findings.
start zizmor --offline --persona=auditor --no-progress --quiet --format=plain .github/workflows .github/dependabot.yml \
  yard/init/project/.github/workflows
start shellcheck --severity=warning --shell=bash --exclude=SC2154 "${stages[@]}"
failed=0
# Some tests wait for a process, so pytest uses two workers more than there are cores. Further workers would not help,
# because each worker collects all tests, which takes seconds. With worksteal, tests that import the same cloud
# SDK mostly run in the same process.
workers=$(($(nproc) + 2))
step python -m pytest -q --basetemp="$files" -n "$workers" --dist worksteal -m "not integration and not engine" || failed=1
for number in "${!background[@]}"; do
  wait "${background[number]}" || failed=1
  cat "$outputs/$number"
done
exit "$failed"
