#!/usr/bin/env bash
# Creates a node, a second node (other), and a machine in the same network that is not in the cluster (neighbour).
# Sourced in a new namespace.
set -e
mount -t tmpfs none /run
mkdir /run/netns
ip link set lo up
for bridge in private extra; do
  ip link add "$bridge" type bridge
  ip link set "$bridge" up
done
ip addr add 10.1.1.1/24 dev private
ip addr add fd00::1/64 dev private nodad
ip addr add 10.1.2.1/24 dev extra
ip addr add fd01::1/64 dev extra nodad
# The default. When a queue of requests is full, the answers contain cookies.
sysctl -qw net.ipv4.tcp_syncookies=1
# join NAMESPACE BRIDGE ADDRESS...
join() {
  local name=$1 bridge=$2 address
  shift 2
  ip link add "${name:0:5}-$bridge" type veth peer name "$bridge" netns "$name"
  ip link set "${name:0:5}-$bridge" master "$bridge" up
  ip -n "$name" link set "$bridge" up
  ip -n "$name" link set lo up
  for address; do ip -n "$name" addr add "$address" dev "$bridge"; done
}
ip netns add other
ip netns add neighbour
join other private 10.1.1.2/24
join neighbour private 10.1.1.3/24
join neighbour extra 10.1.2.3/24
ip -n neighbour addr add fd00::3/64 dev private nodad
ip -n neighbour addr add fd01::3/64 dev extra nodad
