#!/usr/bin/env bash
# Slurm believes a message when munge can decode its credential: same key, same time.
# shellcheck disable=SC2154
munge_facts() {
  [[ $scheduler == slurm ]] || return 0
  local credential
  credential=$(timeout 10 munge -n 2>&1) || true
  report munge credential "$credential"
  report munge self "$(munge_status "$credential")"
}

munge_peers() {
  local key
  for key in "${!peers[@]}"; do
    [[ $key == munge/* ]] || continue
    report munge "${key#munge/}" "$(munge_status "${peers[$key]}")"
  done
}

# The word after STATUS, or what unmunge complains of.
munge_status() {
  local said
  said=$(timeout 10 unmunge <<<"$1" 2>&1) || true
  if [[ $said =~ STATUS:[[:space:]]*([^$'\n']+) ]]; then said=${BASH_REMATCH[1]}; fi
  printf '%s' "${said%%$'\n'*}"
}
