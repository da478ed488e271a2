#!/usr/bin/env bash
# Which address each host's name has here: 127.0.1.1 for one's own makes torch and MPI meet on loopback.
# shellcheck disable=SC2154
names_facts() {
  local address kind name
  while read -r address kind name; do
    [[ $kind != STREAM || -z $name ]] || report names "$name" "$address"
  done < <(timeout 20 getent ahostsv4 "${!hosts[@]}")
}
