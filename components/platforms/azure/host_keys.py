"""The SSH host key of a machine. An Azure run command reads the key, so it is received over Azure's API, not SSH."""

from __future__ import annotations

import asyncio

import pulumi
from pulumi_azure_native import compute

from components.platforms.azure.resource_group import ResourceGroup
from components.platforms.first_boot import host_key_wait
from trainyard.outputs import HOST_KEY

_NAME = "trainyard-host-key"
_TOKEN = "azure-native:compute:getVirtualMachineRunCommandByVirtualMachine"  # noqa: S105  (a function's name)
_SCRIPT_SECONDS = 900
"""Timeout for the run command. cloud-init creates the key in the first minute, but the VM agent can start later."""
_PAUSE_SECONDS = 10
_SCRIPT = """\
key=/etc/ssh/ssh_host_ed25519_key.pub
i=0
while [ ! -s $key ] && [ $i -lt 600 ]; do i=$((i + 1)); sleep 1; done
cut -d ' ' -f 1,2 $key
"""


def host_key(machine: compute.VirtualMachine, name: str, resource_group: ResourceGroup) -> pulumi.Output[str]:
    """Return the host key ("ssh-ed25519 AAAA..."), or "" if the run command has no result.

    Azure creates, changes and deletes run commands only while the machine runs. Otherwise, Azure returns the error
    "Cannot modify extensions in the VM when the VM is not running" (terraform-provider-azurerm issues 477 and 6098,
    read 2026-11-22). Therefore a change to the program does not change the run command, and `destroy` does not delete
    it.
    """
    command = compute.VirtualMachineRunCommandByVirtualMachine(
        f"{name}-host-key",
        run_command_name=_NAME,
        vm_name=machine.name,
        source=compute.VirtualMachineRunCommandScriptSourceArgs(script=_SCRIPT),
        async_execution=False,
        timeout_in_seconds=_SCRIPT_SECONDS,
        # components/cluster reports all machines without a host key in one message.
        treat_failure_as_deployment_failure=False,
        **resource_group.common,
        opts=pulumi.ResourceOptions(
            parent=machine,
            replace_with=[machine],
            delete_before_replace=True,
            retain_on_delete=True,
            ignore_changes=["source", "asyncExecution", "timeoutInSeconds", "treatFailureAsDeploymentFailure", "tags"],
        ),
    )
    options = pulumi.InvokeOptions(parent=machine)
    # The id is an input so that the key is read only after the run command exists.
    facts = pulumi.Output.all(command.id, resource_group.name, machine.time_created)
    return facts.apply(lambda known: _read(name, str(known[1]), known[2], options))


async def _read(name: str, group: str, created: str | None, options: pulumi.InvokeOptions) -> str:
    """Return the host key, or "" if it cannot be read.

    During `up`, the key of a new machine is read repeatedly until it is available or the time limit has passed. In all
    other cases, the key is read once.

    The output of the command is in the instance view (REST API, "Virtual Machine Run Commands - Get By Virtual
    Machine", read 2026-11-22). The resource's own outputs do not include it.
    """
    where = {"resourceGroupName": group, "vmName": name, "runCommandName": _NAME, "expand": "instanceView"}
    for attempt in range(1 + host_key_wait(created) // _PAUSE_SECONDS):
        if attempt:
            await asyncio.sleep(_PAUSE_SECONDS)
        if key := await _invoke(where, options):
            return key
    return ""


async def _invoke(where: dict[str, str], options: pulumi.InvokeOptions) -> str:
    """Return the host key. Returns "" on any error, because `up` must not fail if a machine is deallocated."""
    try:
        answer = await pulumi.runtime.invoke_async(_TOKEN, where, options)
    except Exception as error:  # the SDK raises a plain Exception
        pulumi.log.debug(f"the SSH host key of {where['vmName']} cannot be read: {error}", options.parent)
        return ""
    view = answer.get("instanceView") or {}
    return key_in(str(view.get("output") or ""))


def key_in(output: str) -> str:
    """Return the public key in the output, or "" if the output has no key or several keys."""
    found = {line.strip() for line in output.splitlines() if HOST_KEY.fullmatch(line.strip())}
    return found.pop() if len(found) == 1 else ""
