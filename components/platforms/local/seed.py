"""The NoCloud seed: user-data, identity and network of one machine, as cloud-init finds them on a second disk."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tempfile
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

from components.errors import PlatformError

EXTERNAL_ADDRESS = "10.0.2.15/24"
_GATEWAY = "10.0.2.2"
_RESOLVER = "10.0.2.3"
"""The addresses of QEMU's user-mode network: its manual, "Using the user mode network stack"."""


@dataclass(frozen=True, kw_only=True)
class Macs:
    """Hardware addresses of a machine's two cards: towards the outside, and towards the other machines."""

    external: str
    private: str


def macs(stack: str, name: str) -> Macs:
    """Return addresses that depend on the names only. 52:54:00 is QEMU's prefix."""
    digest = hashlib.sha256(f"{stack}/{name}".encode()).hexdigest()
    tail = f"{digest[0:2]}:{digest[2:4]}:{int(digest[4:6], 16) & 0xFE:02x}"
    last = f"{int(digest[4:6], 16) | 0x01:02x}"
    return Macs(external=f"52:54:00:{tail}", private=f"52:54:00:{tail[:-2]}{last}")


def network_config(cards: Macs, private: IPv4Interface) -> str:
    """Return the network configuration, version 2: cards found by address, named ext0 and clu0."""
    # `to: default` is what people write; cloud-init 25.1 fails on it with networkd.
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
    """Return the identity. dsmode: what cloud-init does here needs no network, so it need not wait for one."""
    return json.dumps({"instance-id": machine_id, "local-hostname": name, "dsmode": "local"})


def write_seed(path: Path, user_data: str, meta: str, network: str) -> None:
    """Write the seed disk, an ISO 9660 image labelled cidata. Raises PlatformError without genisoimage."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for name, content in (("user-data", user_data), ("meta-data", meta), ("network-config", network)):
            (Path(folder) / name).write_text(content)
        made = ["genisoimage", "-quiet", "-input-charset", "utf-8", "-volid", "cidata", "-rock", "-output", str(path)]
        try:
            done = subprocess.run([*made, folder], capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise PlatformError(f"{path.name}: genisoimage is missing. Fix: install the genisoimage package") from error
    if done.returncode:
        raise PlatformError(f"{path.name}: genisoimage failed: {done.stderr.strip()}")
