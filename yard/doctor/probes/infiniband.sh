#!/usr/bin/env bash
# Reports the state, the rate and the link layer of each RDMA port.
infiniband_facts() {
  local port
  for port in /sys/class/infiniband/*/ports/*; do
    [[ -e $port/state ]] || continue
    report infiniband "$(basename "${port%/ports/*}")/${port##*/}" "$(<"$port/state")" "$(<"$port/rate")" \
      "$(cat "$port/link_layer" 2>/dev/null)"
  done
}
