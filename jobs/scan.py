"""The host key that a machine shows, and its fingerprint: for a person to compare before it is believed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from jobs.errors import RemoteError

_TARGET = re.compile(r"(?P<address>[A-Za-z0-9][A-Za-z0-9.-]{0,252})(?::(?P<port>[0-9]{1,5}))?")
_KINDS = {"ssh-ed25519": "ed25519", "ecdsa-sha2-nistp256": "ecdsa", "ssh-rsa": "rsa"}
"""Types of keys, the best first, and how sshd calls the file of each."""
_SECONDS = 15


@dataclass(frozen=True)
class Shown:
    """What a machine shows. `host_key` is type and key; `file` is where the machine itself keeps the public half."""

    target: str
    host_key: str
    fingerprint: str
    file: str


def scan(target: str, through: str | None = None) -> Shown:
    """Return what ADDRESS[:PORT] shows, asked from here or from the host `through` (as ssh takes it).

    Raises RemoteError when nothing answers there. Nothing is stored.
    """
    found = _TARGET.fullmatch(target)
    if found is None:
        raise RemoteError(f"'{target}' is no address. Fix: write ADDRESS or ADDRESS:PORT, for example 203.0.113.10:22")
    asked = ["ssh-keyscan", "-T", str(_SECONDS), "-t", ",".join(_KINDS.values()), "-p", found["port"] or "22"]
    jump = ["ssh", "-o", "BatchMode=yes", through] if through else []
    said = _run([*jump, *asked, found["address"]], "")
    keys = dict(line.split()[1:3] for line in said.splitlines() if line and not line.startswith("#"))
    kind = next((kind for kind in _KINDS if kind in keys), None)
    if kind is None:
        where = f" from {through}" if through else ""
        raise RemoteError(f"no sshd answers at {target}{where}. Fix: check address, port and firewall; it may be off")
    host_key = f"{kind} {keys[kind]}"
    fingerprint = _run(["ssh-keygen", "-l", "-f", "-"], f"{host_key}\n").split()[1]
    return Shown(target, host_key, fingerprint, f"/etc/ssh/ssh_host_{_KINDS[kind]}_key.pub")


def _run(command: Sequence[str], text: str) -> str:
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, check=False, timeout=_SECONDS * 4
        )  # fmt: skip
    except FileNotFoundError as error:
        raise RemoteError(f"{command[0]} is missing. Fix: install the openssh-client package") from error
    except subprocess.TimeoutExpired as error:
        raise RemoteError(f"{command[0]} did not answer within {_SECONDS * 4} s. Fix: try again") from error
    return done.stdout
