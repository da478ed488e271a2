"""New stacks of existing hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import get_args

from components.platforms.hosts.spec import HostsSpec
from components.spec.model import is_private
from trainyard.errors import RuleError
from yard.init.created import head_machine
from yard.init.known import GROUP, Known, Section, Starter

FORMAT = "[USER@]ADDRESS[:PORT][=PRIVATE_IP]"
KEY_OF = "host_key of "
"""Prefix of the answers that contain the host keys. ADDRESS:PORT follows."""

_HOST = re.compile(
    r"(?:(?P<user>[a-z_][a-z0-9_-]{0,31})@)?(?P<address>[A-Za-z0-9][A-Za-z0-9.-]{0,252})"
    r"(?::(?P<port>[0-9]{1,5}))?(?:=(?P<private_ip>[0-9.]{7,15}))?"
)
_ANY_HOSTS = ("root@10.0.0.10", "root@10.0.0.11")
"""Placeholder hosts, used until the answer is known."""
_ANY_KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'A' * 43}"
"""Placeholder key in the format of a real key, used until the hosts are scanned."""


@dataclass(frozen=True, kw_only=True)
class NewHost:
    """An existing host as given by the user."""

    user: str
    address: str
    port: int
    private_ip: str

    @property
    def target(self) -> str:
        """ADDRESS:PORT."""
        return f"{self.address}:{self.port}"


def images() -> tuple[str, ...]:
    """Return the operating systems that existing hosts can have."""
    return get_args(HostsSpec.model_fields["image"].annotation)


def parse_host(text: str) -> NewHost:
    """Return the host that a text in the format FORMAT describes. Raises RuleError."""
    found = _HOST.fullmatch(text)
    if found is None:
        raise RuleError(f"'{text}' must be {FORMAT}", "write for example ubuntu@203.0.113.10=10.0.0.10")
    private_ip = found["private_ip"] or found["address"]
    try:
        private = is_private(IPv4Network(IPv4Address(private_ip)))
    except ValueError:
        private = False
    if not private:
        rule = f"{text}: the private address of the host is unknown, or it is not in a private range"
        fix = f"add it: {text.partition('=')[0]}=10.0.0.10; `ip -4 address` on the host prints its addresses"
        raise RuleError(rule, fix)
    port = int(found["port"] or 22)
    return NewHost(user=found["user"] or "root", address=found["address"], port=port, private_ip=private_ip)


def hosts_in(known: Known) -> list[NewHost]:
    """Return the hosts in the answers. The first host becomes the head. Raises RuleError."""
    return [parse_host(text) for text in known.get("host").split()]


def has_own_head(base: Section) -> bool:
    """Return whether the head of a stack runs no jobs."""
    listed = [host for group in base.get("nodes", {}).values() for host in group.get("hosts", ())]
    return bool(base) and base["head"]["host"] not in listed


def behind_head(base: Section) -> bool:
    """Return whether SSH connections to the workers of a stack go through the head."""
    return any("proxy_jump" in host for host in base.get("platform", {}).get("hosts", ()))


def section(known: Known) -> Section:
    """Return the cluster section. Without a base, there is no Slurm, and the head also runs jobs."""
    base = known.base
    hosts = hosts_in(known) or [parse_host(text) for text in _ANY_HOSTS]
    names = [f"{known.get('name') or 'new'}-{number}" for number in range(1, len(hosts) + 1)]
    jump = {"proxy_jump": names[0]} if behind_head(base) else {}
    user = hosts[0].user
    platform = {
        **{key: value for key, value in base.get("platform", {}).items() if key not in {"image", "user", "hosts"}},
        "provider": "hosts",
        "image": known.get("image") or images()[0],
        "user": user,
        "hosts": [
            {
                "name": name,
                "address": host.address,
                **({"port": host.port} if host.port != 22 else {}),  # noqa: PLR2004  (SSH's default)
                **({"user": host.user} if host.user != user else {}),
                **(jump if name != names[0] else {}),
                "private_ip": host.private_ip,
                "host_key": known.get(KEY_OF + host.target) or _ANY_KEY,
            }
            for name, host in zip(names, hosts, strict=True)
        ],
    }
    machine = known.get("machine") or head_machine("hosts")
    own_head = has_own_head(base)
    return {
        "name": known.get("name") or "new",
        "platform": platform,
        "scheduler": base.get("scheduler", "none"),
        "network": {"cidr": str(network_of([host.private_ip for host in hosts]))},
        "head": {"machine": base["head"]["machine"] if own_head else machine, "host": names[0]},
        "nodes": {GROUP: {"machine": machine, "hosts": names[1:] if own_head else names}},
        "storage": base.get("storage", {"shared": {"kind": "head_nfs"}}),
    }


def network_of(addresses: Sequence[str]) -> IPv4Network:
    """Return the smallest network from /24 to /12 that contains all addresses, or the first host's /12 if none does."""
    for prefix in range(24, 12, -1):
        network = IPv4Network(f"{addresses[0]}/{prefix}", strict=False)
        if all(IPv4Address(address) in network for address in addresses):
            return network
    return IPv4Network(f"{addresses[0]}/12", strict=False)


COMMENTS: Mapping[str, str] = {
    "platform.hosts": "`yard init` read the host keys over the network. Compare their fingerprints on the hosts' "
    "consoles before `pulumi up`.",
}

STARTER = Starter(keys=("image", "machine", "host"), section=section, comments=COMMENTS)
