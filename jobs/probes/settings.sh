#!/usr/bin/env bash
# NCCL settings of this cluster, and those of other files: settings left over from another cluster or image win where a
# job does not set them.
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
  [[ ! -r /etc/trainyard/fabric.env ]] || while IFS= read -r -d '' line; do
    report settings fabric "${line%%=*}" "${line#*=}"
  done < <(fabric_settings /etc/trainyard/fabric.env)
}

# fabric_settings FILE: its NCCL settings as NAME=VALUE, each ended by a null byte. Its values are quoted for the shell,
# so a shell of its own reads it.
fabric_settings() {
  # shellcheck disable=SC2016
  env -i bash --norc -c 'source "$1"; for name in "${!NCCL_@}"; do printf "%s=%s\0" "$name" "${!name}"; done' - "$1"
}
