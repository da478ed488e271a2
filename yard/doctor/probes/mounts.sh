#!/usr/bin/env bash
# Reports the mounts of the home folder and of /shared on a worker. The folders are read first to trigger the automount.
# shellcheck disable=SC2154
mounts_facts() {
  [[ $self != "$head" ]] || return 0
  local path type options
  for path in "$home" "${shared%/jobs}"; do
    timeout 30 stat "$path/." >/dev/null 2>&1 || true
  done
  while read -r _ path type options _; do
    [[ $path != "$home" && $path != "${shared%/jobs}" ]] || [[ $type == autofs ]] || report mounts "$path" "$type" "$options"
  done </proc/self/mounts
}
