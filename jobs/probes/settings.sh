#!/usr/bin/env bash
# NCCL settings beside those of this cluster: left over from another one, they win over nobody's knowing.
# shellcheck disable=SC2154
settings_facts() {
  local file line home
  home=$(getent passwd "$job_user" | cut -d: -f6)
  for file in /etc/nccl.conf /etc/environment "$home/.nccl.conf"; do
    [[ -r $file ]] || continue
    while read -r line; do
      report settings file "$file" "${line%%=*}" "${line#*=}"
    done < <(grep -Eo '^(export )?NCCL_[A-Z0-9_]+=.*' "$file" | sed 's/^export //')
  done
  [[ ! -r /etc/trainyard/fabric.env ]] || while read -r line; do
    report settings fabric "${line%%=*}" "${line#*=}"
  done < <(grep -E '^NCCL_' /etc/trainyard/fabric.env)
}
