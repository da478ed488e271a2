#!/usr/bin/env bash
# Runs the NAME_facts functions of all probes, reads the other hosts' facts from stdin, and then runs the NAME_peers
# functions.
# shellcheck disable=SC2154,SC2034,SC2004
examine() {
  local probe
  for probe in $probes; do
    ! declare -F "${probe}_$1" >/dev/null || "${probe}_$1"
  done
}

main() {
  # The trap also removes files if the connection closes early.
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
