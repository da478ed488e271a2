"""Reads the host keys of existing hosts, and removes dead hosts from a stack's state."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainyard.errors import RemoteError, StackError
from yard.stack import pulumi

_TARGET = re.compile(r"(?P<address>[A-Za-z0-9][A-Za-z0-9.-]{0,252})(?::(?P<port>[0-9]{1,5}))?")
_KINDS = {"ssh-ed25519": "ed25519", "ecdsa-sha2-nistp256": "ecdsa", "ssh-rsa": "rsa"}
"""Mapping from key type to its name in sshd's key files, in order of preference."""
_LEASE_TYPE, _SUFFIX = "command:remote:Command", "-lease"
"""Type and name suffix of the resource whose deletion connects to its host."""
_SECONDS = 15
_NOT_SCANNED = (255, 127)
"""ssh's exit codes for a failed connection and for a remote host without ssh-keyscan."""


@dataclass(frozen=True)
class ScannedKey:
    """A machine's host key ("TYPE BASE64"), and the path of the public key on the machine."""

    target: str
    host_key: str
    fingerprint: str
    file: str


def scan(target: str, through: str | None = None) -> ScannedKey:
    """Return the host key of `target` (ADDRESS[:PORT]). The scan runs on the SSH host `through` or on this machine.

    Raises RemoteError if no SSH server answers, or if the scan cannot run on `through`.
    """
    found = _TARGET.fullmatch(target)
    if found is None:
        raise RemoteError(
            f"'{target}' is not an address. Fix: write ADDRESS or ADDRESS:PORT, for example 203.0.113.10:22"
        )
    keyscan = ["ssh-keyscan", "-T", str(_SECONDS), "-t", ",".join(_KINDS.values()), "-p", found["port"] or "22"]
    jump = ["ssh", "-o", "BatchMode=yes", through] if through else []
    done = _run([*jump, *keyscan, found["address"]], "")
    keys = dict(line.split()[1:3] for line in done.stdout.splitlines() if line and not line.startswith("#"))
    kind = next((kind for kind in _KINDS if kind in keys), None)
    if through and kind is None and done.returncode in _NOT_SCANNED:
        reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        raise RemoteError(
            f"cannot scan {target} from {through}: {reason}. Fix: make `ssh -o BatchMode=yes {through} ssh-keyscan "
            "localhost` work"
        )
    if kind is None:
        origin = f" from {through}" if through else ""
        raise RemoteError(
            f"no sshd answers at {target}{origin}. Fix: check the address, the port, the firewall and the host's power"
        )
    host_key = f"{kind} {keys[kind]}"
    fingerprint = _run(["ssh-keygen", "-l", "-f", "-"], f"{host_key}\n").stdout.split()[1]
    return ScannedKey(target, host_key, fingerprint, f"/etc/ssh/ssh_host_{_KINDS[kind]}_key.pub")


def _run(command: Sequence[str], text: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=_SECONDS * 4)
    except FileNotFoundError as error:
        raise RemoteError(f"{command[0]} is missing. Fix: install the openssh-client package") from error
    except subprocess.TimeoutExpired as error:
        raise RemoteError(f"{command[0]} did not finish within {_SECONDS * 4} s. Fix: try again") from error


def forget_host(stack: str, host: str) -> str:
    """Remove the host from the stack's state, so that Pulumi no longer connects to it. Returns the resource's URN.

    Raises StackError if the host is unknown or pulumi fails.
    """
    environment = pulumi.environment()
    state = json.loads(_pulumi(environment, "stack", "export", "-s", stack))
    leases = _leases(state.get("deployment", {}).get("resources", ()))
    if host not in leases:
        raise StackError(f"stack '{stack}' has no host {host}; its hosts: {', '.join(leases) or 'none'}")
    _pulumi(environment, "state", "delete", leases[host], "-s", stack, "--yes", "--non-interactive")
    return leases[host]


def _leases(resources: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return a mapping from host to its lease's URN. The names of leases have the form PARENT-HOST-lease."""
    found = dict[str, str]()
    for resource in resources:
        name, prefix = (_name(resource.get(key, "")) for key in ("urn", "parent"))
        prefix += "-"
        if resource["type"] == _LEASE_TYPE and name.startswith(prefix) and name.endswith(_SUFFIX):
            found[name.removeprefix(prefix).removesuffix(_SUFFIX)] = resource["urn"]
    return found


def _name(urn: str) -> str:
    return urn.rpartition("::")[2]


def _pulumi(environment: Mapping[str, str], *words: str) -> str:
    done = pulumi.run(words, environment)
    if done.returncode:
        reason = done.stderr.strip() or done.stdout.strip()
        raise StackError(
            f"pulumi {words[0]} {words[1]} failed: {reason[-500:]}. Fix: if other resources depend on the host, remove "
            "the host from the stack file and run `pulumi up`; then run this command again"
        )
    return done.stdout
