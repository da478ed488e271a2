#!/usr/bin/env bash
# Reports the interface and the source address of the route to each host, and the interface that jobs use.
# shellcheck disable=SC2154
routes_facts() {
  local name fabric line
  fabric=$(sed -n 's/^GLOO_SOCKET_IFNAME=//p' /etc/trainyard/fabric.env 2>/dev/null)
  report routes fabric "$fabric"
  for name in "${!hosts[@]}"; do
    [[ $name == "$self" ]] || printf 'route get %s\n' "${hosts[$name]}"
  done | timeout 20 ip -4 -o -force -batch - 2>/dev/null | while read -r line; do
    [[ $line =~ ^([0-9.]+)\ .*dev\ ([^ ]+)\ .*src\ ([0-9.]+) ]] || continue
    report routes "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" "${BASH_REMATCH[3]}"
  done
}
