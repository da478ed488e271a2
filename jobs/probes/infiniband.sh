#!/usr/bin/env bash
# The ports of RDMA cards: whether they are up, and how fast.
infiniband_facts() {
  local port
  for port in /sys/class/infiniband/*/ports/*; do
    [[ -e $port/state ]] || continue
    report infiniband "$(basename "${port%/ports/*}")/${port##*/}" "$(<"$port/state")" "$(<"$port/rate")" \
      "$(cat "$port/link_layer" 2>/dev/null)"
  done
}
