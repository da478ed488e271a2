#!/usr/bin/env bash
# Runs every probe of this file's company: facts, then, when the far end has told what the others are, peers.
# shellcheck disable=SC2154,SC2034,SC2004
examine() {
  local probe
  for probe in $probes; do
    ! declare -F "${probe}_$1" >/dev/null || "${probe}_$1"
  done
}

main() {
  # Whoever asked may be gone before the end: nothing is left behind then either.
  trap 'examine leave' EXIT
  examine facts
  report ready
  local word probe name value
  while read -r -t 180 word probe name value; do
    case $word in
      peer) peers[$probe/$name]=$value ;;
      go) break ;;
    esac
  done
  [[ ${word:-} == go ]] || exit 1
  examine peers
  report 'done'
  read -r -t 120 _
}

main
