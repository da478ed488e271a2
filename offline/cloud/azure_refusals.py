"""Requests that Azure refuses because of other resources, or because of the resource's earlier state.

Each rule names its source and the date on which it was read. Only the messages in quotation marks are Azure's original
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from offline.cloud.world import Record, World
from offline.values import Properties

EVICTED = "offlineEvicted"
"""Name of an output that exists only on deallocated machines."""
RUN_COMMAND = "azure-native:compute:VirtualMachineRunCommandByVirtualMachine"


@dataclass(frozen=True)
class Attempt:
    """A create request, or an update request for the resource `before`. Secrets in `inputs` are plain values."""

    identity: str
    inputs: Properties
    before: Record | None
    world: World


def _scale_set_member(attempt: Attempt) -> str:
    """Only a flexible scale set whose singlePlacementGroup is false (not unset) accepts a new machine.

    MicrosoftDocs/azure-compute-docs@01e1fb7d:articles/virtual-machine-scale-sets/
    virtual-machine-scale-sets-attach-detach-vm.md, "Exceptions to attaching a new Virtual Machine" (2026-11-22).
    """
    members_of = attempt.inputs.get("virtualMachineScaleSet")
    found = attempt.world.find(str(members_of.get("id"))) if isinstance(members_of, dict) else None
    if found is None:
        return ""
    mode, single = found.inputs.get("orchestrationMode"), found.inputs.get("singlePlacementGroup")
    if mode == "Flexible" and single is False:
        return ""
    return (
        f"{found.id} accepts no machines: a scale set accepts new virtual machines only with orchestrationMode "
        "Flexible and singlePlacementGroup false. Fix: set both, or use an availability set"
    )


def _os_disk_name(attempt: Attempt) -> str:
    """The OS disk of a deleted machine (deleteOption Delete) can exist for some time after the machine has been
    deleted.

    Azure then refuses a new disk with that name. This simulation always refuses the new disk, which is the worst case.
    hashicorp/terraform-provider-azurerm issue 23038 reports the race. Azure/azure-cli issue 3918 contains the quoted
    message (2026-11-22).
    """
    profile: Any = attempt.inputs.get("storageProfile") or {}
    name = (profile.get("osDisk") or {}).get("name")
    if attempt.before is not None or not name or attempt.world.seed(attempt.identity) == attempt.identity:
        return ""
    return (
        f"Code=ConflictingUserInput Message=Disk {name} already exists in resource group. Only CreateOption.Attach is "
        "supported. Fix: omit the disk's name, so that Azure chooses one"
    )


def _availability_set(attempt: Attempt) -> str:
    """The portal's message is "The update domain count must be 1 when fault domain count is 1."

    MicrosoftDocs/azure-docs pull request 121752 (2026-11-22). Azure's HPC templates set both to 1:
    Azure/azurehpc@6dac1ef9:pyazhpc/arm.py.
    """
    faults, updates = (attempt.inputs.get(f"platform{kind}DomainCount") for kind in ("Fault", "Update"))
    if faults == 1 and updates != 1:
        return "The update domain count must be 1 when fault domain count is 1. Fix: set platformUpdateDomainCount to 1"
    return ""


def _disk(attempt: Attempt) -> str:
    """A disk cannot shrink. MicrosoftDocs/azure-docs pull request 57951 contains the quoted message (2026-11-22)."""
    old = attempt.before.inputs.get("diskSizeGB") if attempt.before else None
    new = attempt.inputs.get("diskSizeGB")
    if isinstance(old, int | float) and isinstance(new, int | float) and new < old:
        return (
            f"The disk/snapshot resource with id {attempt.identity} cannot be resized down. Reducing disk/snapshot "
            f"size is not supported in Azure to prevent data loss. Fix: keep {old:g} GiB"
        )
    return ""


def run_command_refusal(identity: str, world: World) -> str:
    """Return Azure's error message for a change to a run command on a deallocated machine, or "" for a running machine.

    hashicorp/terraform-provider-azurerm issues 477 and 6098 contain the quoted message for extensions. An extension
    executes run commands (2026-11-22).
    """
    machine = world.find(identity.partition("/runCommands/")[0])
    if machine is None or not machine.outputs.get(EVICTED):
        return ""
    return "Code=OperationNotAllowed Message=Cannot modify extensions in the VM when the VM is not running."


_RULES: Mapping[str, Callable[[Attempt], str]] = {
    "azure-native:compute:AvailabilitySet": _availability_set,
    "azure-native:compute:Disk": _disk,
    "azure-native:compute:VirtualMachine": lambda attempt: _scale_set_member(attempt) or _os_disk_name(attempt),
    RUN_COMMAND: lambda attempt: run_command_refusal(attempt.identity, attempt.world),
}


def refusal(token: str, attempt: Attempt) -> str:
    """Return Azure's error message for a refused create or update, or "". Other clouds' resources are never refused."""
    rule = _RULES.get(token)
    return rule(attempt) if rule else ""


def deletion_refusal(token: str, identity: str, world: World) -> str:
    """Return Azure's error message for a refused deletion, or ""."""
    return run_command_refusal(identity, world) if token == RUN_COMMAND else ""
