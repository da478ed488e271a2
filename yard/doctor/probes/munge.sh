#!/usr/bin/env bash
# Reports whether munge on this host decodes credentials from other hosts. Slurm rejects messages that munge cannot
# decode.
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

# munge_status CREDENTIAL: prints the status that unmunge reports, or its error message.
munge_status() {
  local message
  message=$(timeout 10 unmunge <<<"$1" 2>&1) || true
  if [[ $message =~ STATUS:[[:space:]]*([^$'\n']+) ]]; then message=${BASH_REMATCH[1]}; fi
  printf '%s' "${message%%$'\n'*}"
}
