#!/usr/bin/env bash
# The end of the script of a job without a scheduler: runner/ starts it on every node.
# shellcheck disable=SC2154,SC2317,SC2329
# --- the parts that yard's runner starts ------------------------------------------------------------------------------

# The runner has set RANK, LOCAL_RANK and NODE_RANK already.
find_place() { :; }

case ${1:-} in
  task | begin | lead | listen | leave) "$1" ;;
  *)
    say "'${1:-}' is no part of a job; yard's runner starts this script, \`yard submit\` the runner" >&2
    exit 2
    ;;
esac
