"""A machine's ssh host key, told by the Azure agent inside it: over Azure's own API, not the network."""

from __future__ import annotations

from typing import Any

import pulumi

from components.errors import PlatformError
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
_WAIT_SECONDS = 900
"""cloud-init makes the key in a first boot's first minute; a large machine may come late to it."""
_SCRIPT = """\
key=/etc/ssh/ssh_host_ed25519_key.pub
i=0
while [ ! -s $key ] && [ $i -lt 600 ]; do i=$((i + 1)); sleep 1; done
cut -d ' ' -f 1,2 $key
"""


def host_key(machine: VirtualMachine, name: str, site: Site) -> pulumi.Output[str]:
    """Return the key ("ssh-ed25519 AAAA...") of a machine, once it has made one. A new machine is asked anew."""
    asked = VirtualMachineRunCommandByVirtualMachine(
        f"{name}-host-key",
        run_command_name=_NAME,
        vm_name=machine.name,
        resource_group_name=site.group,
        location=site.region,
        source=VirtualMachineRunCommandScriptSourceArgs(script=_SCRIPT),
        async_execution=False,
        timeout_in_seconds=_WAIT_SECONDS,
        treat_failure_as_deployment_failure=True,
        tags=site.tags,
        opts=pulumi.ResourceOptions(
            parent=machine, replace_with=[machine], deleted_with=machine, delete_before_replace=True
        ),
    )
    options = pulumi.InvokeOptions(parent=machine)
    return asked.instance_view.apply(lambda view: site.group.apply(lambda group: _told(name, view, group, options)))


async def _told(name: str, view: Any, group: str, options: pulumi.InvokeOptions) -> str:
    """Return the key. Raises PlatformError where the machine told none."""
    words = _output(view)
    # The command's own answer is often without its output; asked again, with the view expanded, Azure tells it.
    if not words:
        where = {"resourceGroupName": group, "vmName": name, "runCommandName": _NAME}
        answer = await pulumi.runtime.invoke_async(_TOKEN, {**where, "expand": "instanceView"}, options)
        words = _output(answer.get("instanceView"))
    line = next((line for line in words.splitlines() if line.startswith("ssh-ed25519 ")), "")
    if not line:
        raise PlatformError(
            f"{name} told no ssh host key when it was asked; read `az vm boot-diagnostics get-boot-log -g "
            f"{group} -n {name}` for what its first boot says, then run `pulumi up` again"
        )
    return line.strip()


def _output(view: Any) -> str:
    """Return what a command wrote, of a view that may be a mapping or the SDK's object."""
    if view is None:
        return ""
    found = view.get("output") if isinstance(view, dict) else getattr(view, "output", None)
    return str(found or "")
