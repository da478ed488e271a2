"""A machine's ssh host key, read where the machine itself published it: its guest attributes, not the network.

The bootstrap writes it (cloud-init/files, stage.sh); Google's API hands it to whoever may read the instance.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pulumi

from components.errors import PlatformError
from components.platforms.gcp.sdk import narrow_import

with narrow_import():
    from pulumi_gcp.compute.instance import Instance

KEY = "hostkeys/ssh-ed25519"
"""The place where Google's own tools look for host keys as well."""

_TOKEN = "gcp:compute/getInstanceGuestAttributes:getInstanceGuestAttributes"  # noqa: S105  (a function's name)
_PAUSE_SECONDS = 10
_ATTEMPTS = 90
"""A quarter of an hour: a machine with eight GPUs may take half of that to its first breath."""


def host_key(machine: Instance, project: str) -> pulumi.Output[str]:
    """Return the key ("ssh-ed25519 AAAA...") of a machine, once it exists and has published it."""
    # The machine's own number is in it so that a new machine of the same name is asked anew.
    place = pulumi.Output.all(machine.name, machine.zone, machine.instance_id)
    options = pulumi.InvokeOptions(parent=machine)
    return place.apply(lambda facts: _published(facts[0], facts[1].rpartition("/")[2], project, options))


async def _published(name: str, zone: str, project: str, options: pulumi.InvokeOptions) -> str:
    """Ask until the key is there. Raises PlatformError for a machine that never publishes it."""
    attempts = 1 if pulumi.runtime.is_dry_run() else _ATTEMPTS
    where = {"name": name, "zone": zone, "project": project, "variableKey": KEY}
    for attempt in range(attempts):
        if attempt:
            await asyncio.sleep(_PAUSE_SECONDS)
        if key := await _ask(where, options):
            return key
    raise PlatformError(
        f"{name} has not published its ssh host key as guest attribute {KEY}; "
        f"read `gcloud compute instances get-serial-port-output {name} --zone {zone}` for what its first boot says, "
        "then run `pulumi up` again"
    )


async def _ask(where: dict[str, Any], options: pulumi.InvokeOptions) -> str | None:
    """Return the key, or None while there is none. Any other refusal is raised as it is."""
    try:
        answer = await pulumi.runtime.invoke_async(_TOKEN, where, options)
    except Exception as error:
        # The provider knows no "not yet": the API answers 404 for a variable that nobody has written.
        if "404" in str(error) or "notfound" in str(error).lower().replace(" ", ""):
            return None
        raise
    value = str(answer["variableValue"] or "").strip()
    if not value:
        return None
    return value if value.startswith("ssh-") else f"ssh-ed25519 {value}"
