"""What Azure refuses because of other resources, or because of the resource's own earlier state.

Each rule names its source and the day on which that was read. A message is this simulation's, unless it is quoted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from offline.cloud.world import Record, World
from offline.values import Properties, Value

EVICTED = "offlineEvicted"
"""Output of a machine that is deallocated."""


@dataclass(frozen=True)
class Attempt:
    """A create, or an update if there is a resource `before`. `inputs` are without secret marks."""

    identity: str
    inputs: Properties
    before: Record | None
    world: World


def _scale_set_member(attempt: Attempt) -> str:
    """New machines join a flexible set whose singlePlacementGroup is false; unset becomes null, which is refused too.

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
        f"{found.id} takes no machines: a scale set takes new virtual machines only with orchestrationMode Flexible "
        "and singlePlacementGroup false. Fix: make the set with both, or use an availability set"
    )


def _os_disk_name(attempt: Attempt) -> str:
    """The OS disk of a deleted machine (deleteOption Delete) may outlive it for a while, and its name with it.

    This simulation always refuses such a name: the worst case of that race. hashicorp/terraform-provider-azurerm issue
    23038 reports the race, Azure/azure-cli issue 3918 has the quoted message (2026-11-22).
    """
    name = _inner(attempt.inputs, "storageProfile", "osDisk").get("name")
    if attempt.before is not None or not name or attempt.world.seed(attempt.identity) == attempt.identity:
        return ""
    return (
        f"Code=ConflictingUserInput Message=Disk {name} already exists in resource group. Only CreateOption.Attach is "
        "supported. Fix: give the disk no name, and Azure chooses one"
    )


def _machine(attempt: Attempt) -> str:
    return _scale_set_member(attempt) or _os_disk_name(attempt)


def _availability_set(attempt: Attempt) -> str:
    """The portal: "The update domain count must be 1 when fault domain count is 1."

    MicrosoftDocs/azure-docs pull request 121752 (2026-11-22). Azure's own HPC templates ask for 1 and 1:
    Azure/azurehpc@6dac1ef9:pyazhpc/arm.py.
    """
    faults, updates = (attempt.inputs.get(f"platform{kind}DomainCount") for kind in ("Fault", "Update"))
    if faults == 1 and updates != 1:
        return "The update domain count must be 1 when fault domain count is 1. Fix: set platformUpdateDomainCount to 1"
    return ""


def _disk(attempt: Attempt) -> str:
    """A disk never becomes smaller. MicrosoftDocs/azure-docs pull request 57951 has the quoted message (2026-11-22)."""
    old = attempt.before.inputs.get("diskSizeGB") if attempt.before else None
    new = attempt.inputs.get("diskSizeGB")
    if isinstance(old, int | float) and isinstance(new, int | float) and new < old:
        return (
            f"The disk/snapshot resource with id {attempt.identity} cannot be resized down. Reducing disk/snapshot "
            f"size is not supported in Azure to prevent data loss. Fix: keep {old:g} GiB"
        )
    return ""


def run_command_refusal(identity: str, world: World) -> str:
    """Return why a run command of a deallocated machine cannot be made, changed or deleted; "" for a running machine.

    hashicorp/terraform-provider-azurerm issues 477 and 6098 have the quoted message for extensions, by one of which
    run commands are executed (2026-11-22).
    """
    machine = world.find(identity.partition("/runCommands/")[0])
    if machine is None or not machine.outputs.get(EVICTED):
        return ""
    return "Code=OperationNotAllowed Message=Cannot modify extensions in the VM when the VM is not running."


_RUN_COMMAND = "azure-native:compute:VirtualMachineRunCommandByVirtualMachine"
_RULES: Mapping[str, Callable[[Attempt], str]] = {
    "azure-native:compute:AvailabilitySet": _availability_set,
    "azure-native:compute:Disk": _disk,
    "azure-native:compute:VirtualMachine": _machine,
    _RUN_COMMAND: lambda attempt: run_command_refusal(attempt.identity, attempt.world),
}


def refusal(token: str, attempt: Attempt) -> str:
    """Return why Azure refuses a create or update, "" if it does not. Resources of other clouds are never refused."""
    rule = _RULES.get(token)
    return rule(attempt) if rule else ""


def deletion_refusal(token: str, identity: str, world: World) -> str:
    """Return why Azure refuses to delete it, "" if it does not."""
    return run_command_refusal(identity, world) if token == _RUN_COMMAND else ""


def _inner(properties: Properties, *path: str) -> Properties:
    """Return the object at a path of property names, {} if there is none."""
    found: Value = properties
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
