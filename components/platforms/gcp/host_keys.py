"""The SSH host key of a machine, read through Google's API instead of over SSH.

The bootstrap publishes the key as a guest attribute and prints it on the serial console (publish_host_key and main in
cloud-init/files/usr/local/lib/trainyard/bootstrap). The console is the fallback, because an organisation can forbid
guest attributes (constraints/compute.disableGuestAttributesAccess).

If a machine does not exist, the provider's data source for guest attributes raises an error. For any other error, for
example a missing attribute or permission, the data source returns an empty result
(terraform-provider-google-beta@93c65b2d60fe, services/compute/data_source_google_compute_instance_guest_attributes.go,
read 2026-11-22). Therefore an empty result can mean that the key is not published yet.

The API returns only the last 1 MB of the console's output (Google, "Method: instances.getSerialPortOutput", read
2026-11-24), and the data source does not return the position at which this output starts. Therefore a process that can
write to the console could print its own key and enough text to push the real one out of the output. The console is
trusted only during a machine's first boot, and only if its output is far too short to have lost its beginning.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi_gcp import compute

from components.platforms.first_boot import host_key_wait
from trainyard.outputs import HOST_KEY

KEY = "hostkeys/ssh-ed25519"
"""Name of the guest attribute. Google's guest agent publishes host keys under the same name."""
CONSOLE_MARK = "trainyard-hostkey: "
"""Prefix of the console line that contains the key."""

_ATTRIBUTES = "gcp:compute/getInstanceGuestAttributes:getInstanceGuestAttributes"
_CONSOLE = "gcp:compute/getInstanceSerialPort:getInstanceSerialPort"
_CONSOLE_PORT = 1
_LONGEST_PAUSE_SECONDS = 10
_CONSOLE_EVERY = 6
"""Number of attempts between two reads of the console, whose output can be up to 1 MB."""
_TRUSTED_BYTES = 500_000
"""Half of the output that the API keeps, because the API may drop bytes that are not UTF-8 from its answer."""
_TYPE = "ssh-ed25519 "


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """Identifiers of a machine in the API, and the resource that warnings refer to."""

    name: str
    zone: str
    project: str
    resource: compute.Instance | None = None

    def warn(self, message: str) -> None:
        pulumi.log.warn(message, self.resource)


class _UnavailableError(Exception):
    """The machine is stopped or does not exist. The text is a warning that includes the fix."""


def host_key(machine: compute.Instance, project: str) -> pulumi.Output[str]:
    """Return the host key ("ssh-ed25519 AAAA..."), or "" if the machine has not published it.

    `up` waits for the key of a new machine. In a preview, the key is read once, without waiting. The same
    applies to a machine that is not new, for example a stopped Spot machine.
    """
    # The instance id is an input so that the key of a replaced machine is read again.
    facts = pulumi.Output.all(machine.name, machine.zone, machine.instance_id, machine.creation_timestamp)
    return facts.apply(
        lambda known: _read(
            _Machine(name=known[0], zone=known[1].rpartition("/")[2], project=project, resource=machine),
            host_key_wait(known[3]),
        )
    )


async def _read(machine: _Machine, wait: int) -> str:
    try:
        return await _published(machine, wait)
    except _UnavailableError as reason:
        machine.warn(str(reason))
    except Exception as error:
        if not pulumi.runtime.is_dry_run():
            raise
        machine.warn(f"the SSH host key of {machine.name} cannot be read: {error}")
    return ""


async def _published(machine: _Machine, wait: int) -> str:
    """Return the key, or "" if it is not published within `wait` seconds. Raises _UnavailableError."""
    waited = attempt = 0
    while True:
        pause = min(2**attempt, _LONGEST_PAUSE_SECONDS)
        last = waited + pause > wait
        key = await _attribute(machine)
        if not key and (last or attempt % _CONSOLE_EVERY == 0):
            key = await _console(machine, first_boot=wait > 0, report=last)
        if key or last:
            return key
        await asyncio.sleep(pause)
        waited += pause
        attempt += 1


async def _attribute(machine: _Machine) -> str:
    """Return the key from the guest attributes, or ""."""
    where = {"name": machine.name, "zone": machine.zone, "project": machine.project, "variableKey": KEY}
    answer = await _invoke(_ATTRIBUTES, where, machine)
    value = str(answer.get("variableValue") or "").strip()
    return _valid(value if value.startswith("ssh-") else f"{_TYPE}{value}")


async def _console(machine: _Machine, *, first_boot: bool, report: bool) -> str:
    """Return the key from the serial console, or "" if there is none or the console is not trusted.

    If `report` is true, an unreadable console and a key that is not trusted cause a warning.
    """
    where = {"instance": machine.name, "zone": machine.zone, "project": machine.project, "port": _CONSOLE_PORT}
    try:
        answer = await _invoke(_CONSOLE, where, machine)
    except _UnavailableError:
        raise
    except Exception as error:
        # A stopped machine has no console (Google, "View serial port output"). The name of the error is unverified.
        if "resourceNotReady" in str(error):
            raise _UnavailableError(f"{machine.name} is stopped. `pulumi up --refresh` starts it") from error
        if report:
            machine.warn(f"{machine.name} has no guest attribute {KEY}, and its console cannot be read: {error}")
        return ""
    contents = str(answer.get("contents") or "")
    lines = (line.rstrip("\r") for line in contents.split("\n"))
    keys = (_valid(line.removeprefix(CONSOLE_MARK)) for line in lines if line.startswith(CONSOLE_MARK))
    # The first valid key is the machine's, because the bootstrap prints it before any user process runs.
    key = next(filter(None, keys), "")
    if first_boot and len(contents.encode()) < _TRUSTED_BYTES:
        return key
    if key and report:
        machine.warn(
            f"the key on the serial console of {machine.name} is not used, because processes on the machine may have "
            "printed it: `up` trusts a console only during a machine's first boot, while its output is shorter than "
            f"{_TRUSTED_BYTES // 1000} kB. A key in the stack's state remains in use. If `up` reports that no key is "
            "known, replace the machine: `pulumi up --replace URN`"
        )
    return ""


async def _invoke(token: str, where: dict[str, Any], machine: _Machine) -> dict[str, Any]:
    """Return the result of a data source. Raises _UnavailableError if the machine does not exist."""
    try:
        return await pulumi.runtime.invoke_async(token, where, pulumi.InvokeOptions(parent=machine.resource)) or {}
    except Exception as error:
        # The pattern matches the provider's HandleDataSourceNotFoundError and the API's 404 error for the console.
        if re.search(rf"instances/{re.escape(machine.name)}'? (was )?not found", str(error)):
            raise _UnavailableError(
                f"{machine.name} does not exist in {machine.project}, {machine.zone}: it was deleted outside Pulumi. "
                "Run `pulumi refresh`, then `pulumi up` creates it again"
            ) from error
        raise


def _valid(key: str) -> str:
    """Return the key, or "" if it is invalid. Any process on the machine can write guest attributes."""
    return key if key.startswith(_TYPE) and HOST_KEY.fullmatch(key) else ""
