#!/usr/bin/env bash
# Reports the network interfaces, and the interfaces that fabric.env sets for NCCL and Gloo. Without these settings,
# NCCL could choose a container's bridge or veth interface.
interfaces_facts() {
  local device address key
  for key in NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME; do
    report interfaces "$key" "$(sed -n "s/^$key=//p" /etc/trainyard/fabric.env 2>/dev/null)"
  done
  while read -r _ device _ address _; do
    [[ $device == lo ]] || report interfaces device "$device" "${address%/*}"
  done < <(ip -4 -o addr show up 2>/dev/null)
}
