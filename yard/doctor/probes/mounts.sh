#!/usr/bin/env bash
# Reports the mounts of the home folder and of /shared on a worker, and the NFS version and server that the stage
# 50-storage uses for them. The folders are read first to trigger the automount.
# shellcheck disable=SC2154
mounts_facts() {
  [[ $self != "$head" ]] || return 0
  local path type options version server
  if [[ -r /etc/trainyard/node.env ]]; then
    # shellcheck disable=SC1091
    version=$(source /etc/trainyard/node.env && printf %s "$TRAINYARD_SHARED_NFS")
    # shellcheck disable=SC1091
    server=$(source /etc/trainyard/node.env && printf %s "${TRAINYARD_SHARED_SOURCE%%:*}")
    report mounts expected "$version" "${server:-$head}"
  fi
  for path in "$home" "${shared%/jobs}"; do
    timeout 30 stat "$path/." >/dev/null 2>&1 || true
  done
  while read -r _ path type options _; do
    [[ $path != "$home" && $path != "${shared%/jobs}" ]] || [[ $type == autofs ]] || report mounts "$path" "$type" "$options"
  done </proc/self/mounts
}
