"""A machine's SSH host key, read over Google's API, never over the network.

The bootstrap publishes the key as a guest attribute and prints it on the serial console (publish_host_key and main of
cloud-init/files/usr/local/lib/trainyard/bootstrap). The console is the fallback: an organisation may forbid guest
attributes (constraints/compute.disableGuestAttributesAccess).

The provider's data source for guest attributes reports a missing machine, and answers every other error, a missing
attribute or permission among them, with an empty result (terraform-provider-google-beta@93c65b2d60fe,
services/compute/data_source_google_compute_instance_guest_attributes.go, read 2026-11-22). So an empty result may mean
"not yet".
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pulumi

from components.host_key_format import HOST_KEY
from components.platforms.gcp.sdk import narrow_import

with narrow_import():
    from pulumi_gcp.compute.instance import Instance

KEY = "hostkeys/ssh-ed25519"
"""The guest attribute; Google's own guest agent publishes host keys under the same name."""
CONSOLE_MARK = "trainyard-hostkey: "
"""Begins the line of the console with the key."""

_ATTRIBUTES = "gcp:compute/getInstanceGuestAttributes:getInstanceGuestAttributes"
_CONSOLE = "gcp:compute/getInstanceSerialPort:getInstanceSerialPort"
_CONSOLE_PORT = 1
_PATIENCE_SECONDS = 900
"""How long to wait for a new machine: one with eight GPUs may take half of it to start."""
_LONGEST_PAUSE_SECONDS = 10
_CONSOLE_EVERY = 6
"""Attempts per reading of the console, which is up to 1 MB for each machine."""
_YOUNG = timedelta(minutes=20)
"""Age up to which a machine may be in its first boot. An older one without a key is stopped or broken."""
_TYPE = "ssh-ed25519 "


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """A machine in the API's terms. `resource` is the one that messages refer to."""

    name: str
    zone: str
    project: str
    resource: Instance | None = None


class _GoneError(Exception):
    """The machine does not exist, although it is in Pulumi's state."""


class _StoppedError(Exception):
    """The machine does not run."""


def host_key(machine: Instance, project: str) -> pulumi.Output[str]:
    """Return the key ("ssh-ed25519 AAAA..."), or "" if the machine has published none at present.

    A real `up` waits up to a quarter of an hour for a machine that is new. A preview, and an `up` for an older machine
    (a stopped Spot machine publishes nothing), read once.
    """
    # The instance id is a part of it so that a new machine under an old name is read again.
    facts = pulumi.Output.all(machine.name, machine.zone, machine.instance_id, machine.creation_timestamp)
    return facts.apply(
        lambda known: _read(
            _Machine(name=known[0], zone=known[1].rpartition("/")[2], project=project, resource=machine),
            _patience(known[3]),
        )
    )


def _patience(created: str | None) -> int:
    """Return how many seconds to wait for the key of a machine that was created at that time (RFC 3339)."""
    if pulumi.runtime.is_dry_run() or not created:
        return 0
    return _PATIENCE_SECONDS if datetime.now(UTC) - datetime.fromisoformat(created) < _YOUNG else 0


async def _read(machine: _Machine, patience: int) -> str:
    try:
        return await _published(machine, patience)
    except _GoneError:
        _warn(
            machine,
            f"{machine.name} does not exist in {machine.project}, {machine.zone}: it was deleted outside Pulumi. "
            "Run `pulumi refresh`, then `pulumi up` creates it again",
        )
    except _StoppedError:
        _warn(machine, f"{machine.name} is stopped. `pulumi up --refresh` starts it")
    except Exception as error:
        if not pulumi.runtime.is_dry_run():
            raise
        _warn(machine, f"the SSH host key of {machine.name} cannot be read: {error}")
    return ""


async def _published(machine: _Machine, patience: int) -> str:
    """Return the key, or "" if there is none within `patience` seconds. Raises _GoneError and _StoppedError."""
    waited = attempt = 0
    while True:
        pause = min(2**attempt, _LONGEST_PAUSE_SECONDS)
        last = waited + pause > patience
        key = await _attribute(machine)
        if not key and (last or attempt % _CONSOLE_EVERY == 0):
            key = await _console(machine, last)
        if key or last:
            return key
        await asyncio.sleep(pause)
        waited += pause
        attempt += 1


async def _attribute(machine: _Machine) -> str:
    """Return the key in the guest attributes, or "". Raises _GoneError, and any error of reading the machine."""
    where = {"name": machine.name, "zone": machine.zone, "project": machine.project, "variableKey": KEY}
    answer = await _ask(_ATTRIBUTES, where, machine)
    value = str(answer.get("variableValue") or "").strip()
    return _valid(value if value.startswith("ssh-") else f"{_TYPE}{value}")


async def _console(machine: _Machine, report: bool) -> str:
    """Return the key on the console, or "". `report`: warn if the console cannot be read.

    Raises _GoneError and _StoppedError.
    """
    where = {"instance": machine.name, "zone": machine.zone, "project": machine.project, "port": _CONSOLE_PORT}
    try:
        answer = await _ask(_CONSOLE, where, machine)
    except _GoneError:
        raise
    except Exception as error:
        # A machine that does not run has no console (Google, "View serial port output"). Unverified: the error's name.
        if "resourceNotReady" in str(error):
            raise _StoppedError from error
        if report:
            _warn(machine, f"{machine.name} has no guest attribute {KEY}, and its console cannot be read: {error}")
        return ""
    lines = (line.rstrip("\r") for line in str(answer.get("contents") or "").split("\n"))
    # The first one: no user's process runs yet when the bootstrap prints it.
    return next(
        (key for line in lines if line.startswith(CONSOLE_MARK) and (key := _valid(line[len(CONSOLE_MARK) :]))), ""
    )


async def _ask(token: str, where: dict[str, Any], machine: _Machine) -> dict[str, Any]:
    options = pulumi.InvokeOptions(parent=machine.resource)
    try:
        return await pulumi.runtime.invoke_async(token, where, options) or {}
    except Exception as error:
        # HandleDataSourceNotFoundError of the provider, and the API's own 404 for the console.
        if re.search(rf"instances/{re.escape(machine.name)}'? (was )?not found", str(error)):
            raise _GoneError from error
        raise


def _valid(key: str) -> str:
    """Return the key, or "" if it is none: any process of a machine may write guest attributes."""
    return key if key.startswith(_TYPE) and HOST_KEY.fullmatch(key) else ""


def _warn(machine: _Machine, message: str) -> None:
    pulumi.log.warn(message, machine.resource)
