#!/usr/bin/env bash
# On the head, reports the Slurm state of every node, and the reason if a node is unavailable.
# shellcheck disable=SC2154
queue_facts() {
  [[ $self == "$head" && $scheduler == slurm ]] || return 0
  local name state reason
  while IFS='|' read -r name state reason; do
    report queue "$name" "$state" "$reason"
  done < <(timeout 30 sinfo -h -N -o '%N|%T|%E' 2>/dev/null)
}
