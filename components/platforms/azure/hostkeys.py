"""The ssh host key of a machine, printed by a run command: over Azure's API and the agent inside, not the network."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pulumi

from components.host_key_format import HOST_KEY
from components.platforms.azure.site import Site
from components.platforms.narrow import narrow_import

with narrow_import("pulumi_azure_native.compute"):
    from pulumi_azure_native.compute._inputs import VirtualMachineRunCommandScriptSourceArgs
    from pulumi_azure_native.compute.virtual_machine import VirtualMachine
    from pulumi_azure_native.compute.virtual_machine_run_command_by_virtual_machine import (
        VirtualMachineRunCommandByVirtualMachine,
    )

_NAME = "trainyard-host-key"
_TOKEN = "azure-native:compute:getVirtualMachineRunCommandByVirtualMachine"  # noqa: S105  (a function's name)
_SCRIPT_SECONDS = 900
"""cloud-init makes the key in the first minute of a first boot; the agent of a large machine may start late."""
_YOUNG = timedelta(minutes=20)
_PAUSE_SECONDS = 10
_ATTEMPTS = 90
"""A quarter of an hour."""
_SCRIPT = """\
key=/etc/ssh/ssh_host_ed25519_key.pub
i=0
while [ ! -s $key ] && [ $i -lt 600 ]; do i=$((i + 1)); sleep 1; done
cut -d ' ' -f 1,2 $key
"""


def host_key(machine: VirtualMachine, name: str, site: Site) -> pulumi.Output[str]:
    """Return the key ("ssh-ed25519 AAAA..."), or "" if the machine does not answer with its key at present.

    Azure creates, changes and deletes run commands only while the machine runs: it refuses anything else with "Cannot
    modify extensions in the VM when the VM is not running" (terraform-provider-azurerm issues 477 and 6098, read
    2026-11-22). So the command of an existing machine is never changed, and it is deleted only with its machine.
    """
    command = VirtualMachineRunCommandByVirtualMachine(
        f"{name}-host-key",
        run_command_name=_NAME,
        vm_name=machine.name,
        resource_group_name=site.group,
        location=site.region,
        source=VirtualMachineRunCommandScriptSourceArgs(script=_SCRIPT),
        async_execution=False,
        timeout_in_seconds=_SCRIPT_SECONDS,
        # A machine without a key fails in the neutral code, which names all such machines at once.
        treat_failure_as_deployment_failure=False,
        tags=site.tags,
        opts=pulumi.ResourceOptions(
            parent=machine,
            replace_with=[machine],
            delete_before_replace=True,
            retain_on_delete=True,
            ignore_changes=["source", "asyncExecution", "timeoutInSeconds", "treatFailureAsDeploymentFailure", "tags"],
        ),
    )
    options = pulumi.InvokeOptions(parent=machine)
    # The id is waited for: there is nothing to read before the command exists.
    facts = pulumi.Output.all(command.id, site.group, machine.time_created)
    return facts.apply(lambda known: _learned(name, str(known[1]), str(known[2] or ""), options))


async def _learned(name: str, group: str, created: str, options: pulumi.InvokeOptions) -> str:
    """Return the key, or "". A young machine is asked again and again, an older one once, and so is any in a preview.

    What the command wrote is only in the expanded view (REST API, "Virtual Machine Run Commands - Get By Virtual
    Machine", read 2026-11-22), so the resource's own outputs do not have it.
    """
    where = {"resourceGroupName": group, "vmName": name, "runCommandName": _NAME, "expand": "instanceView"}
    attempts = _ATTEMPTS if not pulumi.runtime.is_dry_run() and _is_young(created, datetime.now(UTC)) else 1
    for attempt in range(attempts):
        if attempt:
            await asyncio.sleep(_PAUSE_SECONDS)
        if key := await _ask(where, options):
            return key
    return ""


def _is_young(created: str, now: datetime) -> bool:
    """Return whether a machine, by its timeCreated, is at most 20 minutes old; false if the time is not known."""
    try:
        return now - datetime.fromisoformat(created) < _YOUNG
    except (TypeError, ValueError):
        return False


async def _ask(where: dict[str, str], options: pulumi.InvokeOptions) -> str:
    """Return the key, or "" for any other answer, refusals included: a deallocated machine must not fail an `up`."""
    try:
        answer = await pulumi.runtime.invoke_async(_TOKEN, where, options)
    except Exception as error:
        # The engine raises nothing narrower.
        pulumi.log.debug(f"{where['vmName']} did not answer with its ssh host key: {error}", options.parent)
        return ""
    view = answer.get("instanceView")
    return key_in(str(view.get("output") or "")) if isinstance(view, dict) else ""


def key_in(output: str) -> str:
    """Return the one public key that a command's output has as a line of its own; "" for none or several."""
    found = {line.strip() for line in output.splitlines() if HOST_KEY.fullmatch(line.strip())}
    return found.pop() if len(found) == 1 else ""
