#!/usr/bin/env bash
# Which address each host's name has here: 127.0.1.1 for one's own makes torch and MPI meet on loopback.
# shellcheck disable=SC2154
names_facts() {
  local address name
  # One by one: in an answer about several, a line tells its canonical name alone, which may be none of those asked for.
  for name in "${!hosts[@]}"; do
    read -r address _ < <(timeout 20 getent ahostsv4 "$name") || continue
    report names "$name" "$address"
  done
}
