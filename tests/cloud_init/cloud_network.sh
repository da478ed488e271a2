#!/usr/bin/env bash
# Creates a node, a container on a bridge (box), and a cloud network with its services. Sourced in a new namespace.
set -e
mount -t tmpfs none /run
mkdir /run/netns
ip link set lo up
for name in box cloud; do
  ip netns add "$name"
  ip link add "$name" type veth peer name eth0 netns "$name"
  ip link set "$name" up
  ip -n "$name" link set eth0 up
  ip -n "$name" link set lo up
done
ip addr add 10.1.1.1/24 dev box
ip -n box addr add 10.1.1.2/24 dev eth0
ip -n box route add default via 10.1.1.1
ip addr add 10.1.2.1/24 dev cloud
ip -n cloud addr add 10.1.2.2/24 dev eth0
ip -n cloud route add default via 10.1.2.1
for address in 169.254.169.254/32 168.63.129.16/32; do
  ip -n cloud addr add "$address" dev lo
  ip route add "$address" via 10.1.2.2
done
ip addr add fd00::1/64 dev cloud nodad
ip -n cloud addr add fd00::2/64 dev eth0 nodad
ip -n cloud addr add fd20:ce::254/128 dev lo nodad
ip route add fd20:ce::254/128 via fd00::2
ip addr add fd01::1/64 dev box nodad
ip -n box addr add fd01::2/64 dev eth0 nodad
ip -n box route add default via fd01::1
ip -n cloud route add default via fd00::1
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
