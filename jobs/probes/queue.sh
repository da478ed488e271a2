#!/usr/bin/env bash
# On the head: which nodes Slurm would give work to, and why not the others.
# shellcheck disable=SC2154
queue_facts() {
  [[ $self == "$head" && $scheduler == slurm ]] || return 0
  local name state reason
  while IFS='|' read -r name state reason; do
    report queue "$name" "$state" "$reason"
  done < <(timeout 30 sinfo -h -N -o '%N|%T|%E' 2>/dev/null)
}
