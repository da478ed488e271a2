#!/usr/bin/env bash
# On the head, reports the Slurm state of every node, and the reason, its author and its time if a node is unavailable.
# shellcheck disable=SC2154
queue_facts() {
  [[ $self == "$head" && $scheduler == slurm ]] || return 0
  local name state user time reason
  while IFS='|' read -r name state user time reason; do
    report queue "$name" "$state" "$reason" "$user" "$time"
  done < <(timeout 30 sinfo -h -N -o '%N|%T|%u|%H|%E' 2>/dev/null)
}
