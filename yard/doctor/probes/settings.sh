#!/usr/bin/env bash
# Reports this cluster's NCCL settings, and the NCCL settings in files from other sources, for example from the image.
# NCCL uses the settings in these files unless a job sets them.
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

# fabric_settings FILE: prints the file's NCCL settings as NAME=VALUE, each followed by a null byte. The values are quoted
# for the shell, so a separate shell reads the file.
fabric_settings() {
  # shellcheck disable=SC2016
  env -i bash --norc -c 'source "$1"; for name in "${!NCCL_@}"; do printf "%s=%s\0" "$name" "${!name}"; done' - "$1"
}
