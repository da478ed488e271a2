"""The cloud's firewall rules, which each booted machine applies to its own network cards with nftables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network, collapse_addresses, ip_network
from typing import Any

ANYWHERE = "0.0.0.0/0"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule for connections in one direction."""

    peers: Sequence[str] = field(default_factory=lambda: [ANYWHERE])
    """Networks (CIDR) on the other side of the connection."""
    protocol: str = ""
    """tcp, udp or icmp, or "" for all."""
    ports: Sequence[str] = ()
    """Destination ports and ranges ("1024-65535"), or none for all."""
    accept: bool = True


@dataclass(frozen=True, kw_only=True)
class Firewall:
    """A network card's rules. The first matching rule applies, and other connections are dropped."""

    inbound: Sequence[Rule]
    outbound: Sequence[Rule]


def google(firewalls: Iterable[Mapping[str, Any]], tags: Collection[str]) -> Firewall:
    """Return the rules of a network's Firewall resources for a machine with these tags.

    Lower priorities apply first, and of equal ones, those that deny. Each network has implied rules with priority
    65535, which deny inbound and allow outbound connections. Sources: docstring of compute.Firewall in pulumi_gcp
    10.2.0; description of Firewall.priority in Google's Compute API; Google, "VPC firewall rules", section "Implied
    rules", as quoted in public notes (all read 2026-11-28).
    """
    found: list[tuple[int, bool, bool, Rule]] = []
    for one in firewalls:
        targets = one.get("targetTags") or ()
        if one.get("disabled") or (targets and not set(targets) & set(tags)):
            continue
        inbound = one.get("direction") != "EGRESS"
        # A rule that selects its sources only by tags or accounts is not supported.
        peers = one["sourceRanges"] if inbound else one.get("destinationRanges") or [ANYWHERE]
        for accept, entries in ((True, one.get("allows")), (False, one.get("denies"))):
            for entry in entries or ():
                protocol = "" if entry["protocol"] == "all" else entry["protocol"]
                rule = Rule(peers=peers, protocol=protocol, ports=entry.get("ports") or (), accept=accept)
                found.append((int(one.get("priority", 1000)), accept, inbound, rule))
    found.sort(key=lambda item: item[:2])
    return Firewall(
        inbound=[rule for _, _, inbound, rule in found if inbound],
        outbound=[*(rule for _, _, inbound, rule in found if not inbound), Rule()],
    )


_AZURES_PLATFORM = "168.63.129.16/32"
_AZURES_DEFAULTS = [
    {
        "priority": priority,
        "direction": direction,
        "sourceAddressPrefix": source,
        "destinationAddressPrefix": destination,
        "destinationPortRange": "*",
        "protocol": "*",
        "access": access,
    }
    for priority, direction, source, destination, access in (
        (65000, "Inbound", "VirtualNetwork", "VirtualNetwork", "Allow"),
        (65001, "Inbound", "AzureLoadBalancer", "*", "Allow"),
        (65500, "Inbound", "*", "*", "Deny"),
        (65000, "Outbound", "VirtualNetwork", "VirtualNetwork", "Allow"),
        (65001, "Outbound", "*", "Internet", "Allow"),
        (65500, "Outbound", "*", "*", "Deny"),
    )
]
"""The rules that Azure adds to each security group (MicrosoftDocs/azure-docs@0088bfa77543:
articles/virtual-network/network-security-groups-overview.md of 2025-07-15, "Default security rules", read
2026-11-28)."""


def azure(rules: Iterable[Mapping[str, Any]], space: Sequence[str], address: IPv4Address) -> Firewall:
    """Return the rules of a security group for a machine with this address. Lower priorities apply first.

    `space` is the address space of the virtual network. Of the service tags, only those in the default rules are
    supported.
    """
    tags = {
        "*": [ANYWHERE],
        "AzureLoadBalancer": [_AZURES_PLATFORM],
        "Internet": [str(one) for one in _outside(space)],
        "VirtualNetwork": space,
    }

    def networks(rule: Mapping[str, Any], side: str) -> list[str]:
        return [
            cidr for value in _values(rule, f"{side}AddressPrefix", f"{side}AddressPrefixes")
            for cidr in tags.get(value, [value])
        ]  # fmt: skip

    found: dict[str, list[Rule]] = {"Inbound": [], "Outbound": []}
    for one in sorted([*rules, *_AZURES_DEFAULTS], key=lambda rule: int(rule["priority"])):
        own, peer = ("destination", "source") if one["direction"] == "Inbound" else ("source", "destination")
        if not any(address in IPv4Network(cidr) for cidr in networks(one, own)):
            continue
        protocol = one["protocol"].lower()
        ports = _values(one, "destinationPortRange", "destinationPortRanges")
        found[one["direction"]].append(
            Rule(
                peers=networks(one, peer),
                protocol="" if protocol == "*" else protocol,
                ports=() if "*" in ports else ports,
                accept=one["access"] == "Allow",
            )
        )
    return Firewall(inbound=found["Inbound"], outbound=found["Outbound"])


def _values(rule: Mapping[str, Any], one: str, several: str) -> Sequence[str]:
    return [*(rule.get(several) or ()), *([rule[one]] if rule.get(one) else ())]


def _outside(space: Iterable[str]) -> list[IPv4Network]:
    """Return all networks except those in `space`."""
    left = [IPv4Network(ANYWHERE)]
    for inside in map(IPv4Network, space):
        left = [
            part
            for network in left
            for part in (network.address_exclude(inside) if inside.subnet_of(network) else [network])
        ]
    return sorted(left)


_PLATFORM = (
    Rule(peers=["169.254.169.254/32", _AZURES_PLATFORM]),
    Rule(protocol="udp", ports=["53", "67"]),
)
"""Outbound connections to metadata, DNS and DHCP services, which neither cloud's rules filter (Azure: the page of the
default rules, "Azure platform considerations")."""


def outside(card: Firewall, network: IPv4Network) -> Firewall:
    """Return the rules for the card with Internet access, from those of the card in the cloud's network.

    Connections from the Internet and from tunnels have an address of this computer, so the rules with a source outside
    of the network apply to them.
    """
    found = [rule for rule in card.inbound if not all(_is_inside(peer, network) for peer in rule.peers)]
    # DHCP's answers have no request from the same address.
    inbound = [Rule(protocol="udp"), *(replace(rule, peers=[ANYWHERE]) for rule in found)]
    return Firewall(inbound=inbound, outbound=[*_PLATFORM, *card.outbound])


def _is_inside(source: str, network: IPv4Network) -> bool:
    found = ip_network(source, strict=False)
    return source == _AZURES_PLATFORM or (isinstance(found, IPv4Network) and found.subnet_of(network))


def render(cards: Mapping[str, Firewall]) -> str:
    """Return the input of nft for the rules by the card's MAC address.

    A variable contains each card's name, for example $mac_525400123456. As in the clouds, answers are accepted. They
    are recognised without connection tracking, which would also follow the connections of jobs.
    """
    names = {f"$mac_{mac.replace(':', '')}": rules for mac, rules in cards.items()}

    def jumps(selector: str, prefix: str) -> str:
        return "".join(f"    {selector} {name} goto {prefix}_{number}\n" for number, name in enumerate(names))

    chains = "".join(
        f"  chain {prefix}_{number} {{\n{''.join(_lines(rules, side))}    drop\n  }}\n"
        for number, found in enumerate(names.values())
        for prefix, side, rules in (("in", "saddr", found.inbound), ("out", "daddr", found.outbound))
    )
    sets = "".join(f"  set {name} {{\n{_SET}  }}\n" for name in ("asked", "heard"))
    return f"""table inet offline_firewall
delete table inet offline_firewall
table inet offline_firewall {{
{sets}  chain sent {{
    type filter hook postrouting priority filter; policy accept;
    meta l4proto udp update @asked {{ ip daddr . udp dport . udp sport }}
{_ANSWERS}    ip daddr . udp dport . udp sport @heard accept
{jumps("oifname", "out")}  }}
  chain received {{
    type filter hook input priority filter; policy accept;
    meta l4proto udp update @heard {{ ip saddr . udp sport . udp dport }}
  }}
  chain arrived {{
    type filter hook prerouting priority raw - 10; policy accept;
{_ANSWERS}    ip saddr . udp sport . udp dport @asked accept
{jumps("iifname", "in")}  }}
{chains}}}
"""


_SET = """    type ipv4_addr . inet_service . inet_service
    flags dynamic, timeout
    timeout 3m
    size 65536
"""
_ANSWERS = """    tcp flags & (syn | ack) != syn accept
    icmp type != echo-request accept
"""


def _lines(rules: Iterable[Rule], side: str) -> Iterator[str]:
    for rule in rules:
        # nft refuses a set with overlapping networks.
        networks = ", ".join(map(str, collapse_addresses(map(IPv4Network, rule.peers))))
        peers = "" if ANYWHERE in rule.peers else f"ip {side} {{ {networks} }} "
        kind = f"meta l4proto {rule.protocol} " if rule.protocol else ""
        ports = f"th dport {{ {', '.join(rule.ports)} }} " if rule.ports else ""
        yield f"    {peers}{kind}{ports}{'accept' if rule.accept else 'drop'}\n"
