#!/usr/bin/env bash
# Reports the address of each host name on this host. If the host's own name resolves to 127.0.1.1, torch and MPI use
# the loopback interface.
# shellcheck disable=SC2154
names_facts() {
  local address name
  # One call per name: getent prints canonical names, which can differ from the names in the query.
  for name in "${!hosts[@]}"; do
    read -r address _ < <(timeout 20 getent ahostsv4 "$name") || continue
    report names "$name" "$address"
  done
}
