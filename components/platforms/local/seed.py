"""The NoCloud seed disk, which contains a machine's user-data, metadata and network configuration for cloud-init."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

from components.platforms.local.process import run_program

EXTERNAL_ADDRESS = "10.0.2.15/24"
_GATEWAY = "10.0.2.2"
_RESOLVER = "10.0.2.3"
"""Addresses of QEMU's user-mode network (QEMU's manual, "Using the user mode network stack")."""


@dataclass(frozen=True, kw_only=True)
class Macs:
    """MAC addresses of a machine's external and private network interfaces."""

    external: str
    private: str


def macs(stack: str, name: str) -> Macs:
    """Return MAC addresses that depend only on the names, with QEMU's prefix 52:54:00."""
    digest = hashlib.sha256(f"{stack}/{name}".encode()).hexdigest()
    tail = f"{digest[0:2]}:{digest[2:4]}:{int(digest[4:6], 16) & 0xFE:02x}"
    last = f"{int(digest[4:6], 16) | 0x01:02x}"
    return Macs(external=f"52:54:00:{tail}", private=f"52:54:00:{tail[:-2]}{last}")


def network_config(cards: Macs, private: IPv4Interface) -> str:
    """Return the network configuration (version 2), which names the interfaces ext0 and clu0."""
    # cloud-init 25.1 fails on `to: default` with networkd.
    outside = {
        "match": {"macaddress": cards.external},
        "set-name": "ext0",
        "addresses": [EXTERNAL_ADDRESS],
        "routes": [{"to": "0.0.0.0/0", "via": _GATEWAY}],
        "nameservers": {"addresses": [_RESOLVER]},
    }
    inside = {"match": {"macaddress": cards.private}, "set-name": "clu0", "addresses": [private.with_prefixlen]}
    return json.dumps({"version": 2, "ethernets": {"ext0": outside, "clu0": inside}}, indent=1)


def meta_data(machine_id: str, name: str) -> str:
    """Return the metadata. With `dsmode: local`, cloud-init does not wait for the network."""
    return json.dumps({"instance-id": machine_id, "local-hostname": name, "dsmode": "local"})


def write_seed(path: Path, user_data: str, meta: str, network: str) -> None:
    """Write the seed disk, an ISO 9660 image with the label cidata. Raises PlatformError if genisoimage fails."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for name, content in (("user-data", user_data), ("meta-data", meta), ("network-config", network)):
            (Path(folder) / name).write_text(content)
        command = ["genisoimage", "-quiet", "-input-charset", "utf-8", "-volid", "cidata", "-rock"]
        run_program(path.name, "install the genisoimage package", *command, "-output", str(path), folder)
