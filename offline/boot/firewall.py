"""The cloud's firewall rules, which each booted machine applies to its own network cards with nftables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, ip_network

ANYWHERE = "0.0.0.0/0"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule for incoming connections. The first matching rule applies, and other connections are dropped."""

    sources: Sequence[str] = field(default_factory=lambda: [ANYWHERE])
    """Networks (CIDR)."""
    protocol: str = ""
    """tcp, udp or icmp, or "" for all."""
    ports: Sequence[str] = ()
    """Ports and ranges ("1024-65535"), or none for all."""
    accept: bool = True


def from_outside(rules: Iterable[Rule], inside: IPv4Network) -> list[Rule]:
    """Return the rules for connections from the Internet and from tunnels, which have an address of this computer.

    These are the rules with a source outside of the network `inside`.
    """
    found = [rule for rule in rules if not all(_is_inside(source, inside) for source in rule.sources)]
    # DHCP's answers have no request from the same address.
    return [Rule(protocol="udp"), *(replace(rule, sources=[ANYWHERE]) for rule in found)]


def render(cards: Mapping[str, Sequence[Rule]]) -> str:
    """Return the input of nft for the rules by the card's MAC address.

    A variable contains each card's name, for example $mac_525400123456. As in the clouds, answers are accepted. They
    are recognised without connection tracking, which would also follow the connections of jobs.
    """
    jumps = "".join(f"    iifname $mac_{mac.replace(':', '')} goto card_{number}\n" for number, mac in enumerate(cards))
    chains = "".join(
        f"  chain card_{number} {{\n{''.join(_lines(rules))}    drop\n  }}\n"
        for number, rules in enumerate(cards.values())
    )
    return f"""table inet offline_firewall
delete table inet offline_firewall
table inet offline_firewall {{
  set asked {{
    type ipv4_addr . inet_service . inet_service
    flags dynamic, timeout
    timeout 3m
    size 65536
  }}
  chain sent {{
    type filter hook output priority filter; policy accept;
    meta l4proto udp update @asked {{ ip daddr . udp dport . udp sport }}
  }}
  chain arrived {{
    type filter hook prerouting priority raw - 10; policy accept;
    tcp flags & (syn | ack) != syn accept
    icmp type != echo-request accept
    ip saddr . udp sport . udp dport @asked accept
{jumps}  }}
{chains}}}
"""


def _lines(rules: Iterable[Rule]) -> Iterator[str]:
    for rule in rules:
        source = "" if ANYWHERE in rule.sources else f"ip saddr {{ {', '.join(rule.sources)} }} "
        kind = f"meta l4proto {rule.protocol} " if rule.protocol else ""
        ports = f"th dport {{ {', '.join(rule.ports)} }} " if rule.ports else ""
        yield f"    {source}{kind}{ports}{'accept' if rule.accept else 'drop'}\n"


def _is_inside(source: str, network: IPv4Network) -> bool:
    found = ip_network(source, strict=False)
    return isinstance(found, IPv4Network) and found.subnet_of(network)
