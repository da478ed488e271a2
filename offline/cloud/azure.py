"""Simulated Azure: resource ids, names, outputs, data sources, and the requests that Azure refuses.

Each refusal names its source and the date on which it was read. Only the messages in quotation marks are Azure's
original messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from offline.cloud.cloud import AddressRequest, Cloud, catalog
from offline.cloud.faults import EVICTED
from offline.cloud.outputs import host_key, private_address, public_address, stable_uuid
from offline.cloud.rules import Rules, fill_path
from offline.cloud.sdk import Described, Sdk
from offline.cloud.world import Record, World
from offline.protocol import ResourceError
from offline.values import Properties, Value, objects

SUBSCRIPTION = "00000000-0000-0000-0000-00000offline"
"""This is not a valid subscription id, because its last letters are not hexadecimal."""
_GROUPS = f"/subscriptions/{SUBSCRIPTION}/resourceGroups"
_EVERYWHERE = "global"
"""The location of resources that have no region, for example private DNS zones."""
_OS_DISK = "_OsDisk_"
"""Part of the names that Azure gives to OS disks."""
_BAKE = "trainyard-bake"
"""Name of the run command that waits until a bake has finished."""
_INTERFACE = "azure-native:network:NetworkInterface"
_RUN_COMMAND = "azure-native:compute:VirtualMachineRunCommandByVirtualMachine"


class Azure(Cloud):
    """The simulated Azure."""

    package = "azure-native"
    reserved_addresses = (4, 1)

    def __init__(self) -> None:
        self.sdk = Sdk("pulumi_azure_native")
        self.rules = Rules(self.package)
        self.functions = {
            "azure-native:compute:getVirtualMachine": _machine,
            "azure-native:compute:getVirtualMachineRunCommandByVirtualMachine": _run_command,
        }
        self._location = ""

    def configure(self, config: Properties) -> None:
        self._location = str(config.get("location") or "")

    def name_property(self, described: Described) -> str:
        kind = described.token.rpartition(":")[2]
        guess = f"{kind[0].lower()}{kind[1:]}Name"
        return self.rules.of(described.token).own_name or (guess if guess in described.inputs else "")

    def automatic_name(self, described: Described, logical: str, suffix: str) -> str:
        name = f"{logical}{suffix}"
        plain = self.rules.of(described.token).plain_name
        return "".join(filter(str.isalnum, name.lower()))[-24:] if plain else name

    def identity(self, described: Described, inputs: Properties) -> str:
        values = {name: str(value) for name, value in inputs.items()}
        path = fill_path(self._path(described), values)
        if self.rules.of(described.token).holds_all:
            return f"{_GROUPS}/{path}"
        return f"{_GROUPS}/{values.get('resourceGroupName', 'offline')}/providers/{path}"

    def given(self, described: Described, inputs: Properties) -> Properties:
        known: Properties = {}
        if "location" in described.outputs and "location" not in inputs:
            known["location"] = self._location or "offline"
        name = inputs.get(self.name_property(described))
        if "name" in described.outputs and name is not None:
            known["name"] = name
        if "type" in described.outputs:
            known["type"] = self._arm_type(described)
        return known

    def computed(self, described: Described, identity: str, outputs: Properties) -> Properties:
        match described.token.rpartition(":")[2]:
            case "PublicIPAddress":
                own: Properties = {"ipAddress": public_address(identity)}
            case "NetworkInterface":
                own = {"ipConfigurations": _addressed(identity, outputs.get("ipConfigurations"))}
            case "CapacityPoolVolume":
                own = {"mountTargets": [_mount_target(identity)]}
            case "VirtualNetwork":
                own = {"subnets": _identified(f"{identity}/subnets", outputs.get("subnets"))}
            case _:
                own = {"instanceView": _view("")} if described.token == _RUN_COMMAND else {}
        return {**outputs, **own}

    def refers(self, text: str) -> str:
        # Azure creates the OS disk of a machine, so the disk is not a resource of the stack.
        if _OS_DISK in text:
            return ""
        return text if text.lower().startswith(f"/subscriptions/{SUBSCRIPTION}/".lower()) else ""

    def refused_change(self, path: str) -> str:
        return (
            f"Code=PropertyChangeNotAllowed Message=Changing property '{path}' is not allowed. Fix: ignore the change "
            f"(ignore_changes), or have the resource replaced (replace_on_changes with delete_before_replace)"
        )

    def refused_location(self, inputs: Properties) -> str:
        # The error code is from Azure Resource Manager.
        location = str(inputs.get("location") or _EVERYWHERE)
        regions = catalog("azure_regions.yaml", "regions")
        name = location.replace(" ", "").lower()
        if name == _EVERYWHERE or name in (*regions["with_zones"], *regions["without_zones"]):
            return ""
        return (
            f"Code=LocationNotAvailableForResourceType Message=The provided location '{location}' is not available. "
            "Fix: use a region that `az account list-locations` prints"
        )

    def refused_write(self, wanted: Record, before: Record | None, world: World) -> str:
        refusals = (refuse(wanted, before, world) for refuse in _REFUSALS.get(wanted.token, ()))
        return next(filter(None, refusals), "")

    def refused_deletion(self, record: Record, world: World) -> str:
        return _run_command_refusal(record.id, world) if record.token == _RUN_COMMAND else ""

    def requested_addresses(self, token: str, inputs: Properties) -> Iterator[AddressRequest]:
        for item in objects(inputs.get("ipConfigurations")) if token == _INTERFACE else ():
            subnet, address = item.get("subnet"), item.get("privateIPAddress")
            if isinstance(subnet, dict) and isinstance(subnet.get("id"), str) and isinstance(address, str):
                yield AddressRequest(str(subnet["id"]), address)

    def ranges(self, inputs: Properties) -> Sequence[str]:
        several = inputs.get("addressPrefixes")
        found = several if isinstance(several, list) else [inputs.get("addressPrefix")]
        return [item for item in found if isinstance(item, str)]

    def _path(self, described: Described) -> str:
        """Return the pattern of a type's ids. For a type without rules, it contains the names of the resource and of
        its parents.
        """
        if known := self.rules.of(described.token).path:
            return known
        _, module, kind = described.token.split(":")
        names = [name for name, found in described.inputs.items() if found.required and name.endswith("Name")]
        parents = [f"{name.removesuffix('Name')}s/{{{name}}}" for name in names if name != "resourceGroupName"]
        own = f"{kind[0].lower()}{kind[1:]}s/{{{self.name_property(described) or 'name'}}}"
        return "/".join([f"Microsoft.{module.capitalize()}", *parents, own])

    def _arm_type(self, described: Described) -> str:
        if self.rules.of(described.token).holds_all:
            return "Microsoft.Resources/resourceGroups"
        namespace, *pieces = self._path(described).split("/")
        return "/".join([namespace, *pieces[::2]])


def _addressed(identity: str, configurations: Value) -> Value:
    return [
        {"privateIPAddress": private_address(f"{identity}/{index}"), "primary": index == 0, **item}
        for index, item in enumerate(objects(configurations))
    ]


def _mount_target(identity: str) -> Properties:
    return {
        "fileSystemId": stable_uuid(identity),
        "ipAddress": private_address(identity),
        "mountTargetId": stable_uuid(f"{identity}/mount"),
    }


def _identified(parent: str, items: Value) -> Value:
    return [{"id": f"{parent}/{item.get('name', 'offline')}", **item} for item in objects(items)]


def _view(output: str) -> Properties:
    return {
        "executionState": "Succeeded",
        "exitCode": 0,
        "output": output,
        "error": "",
        "executionMessage": "offline: no command ran",
    }


def _found(world: World, identity: str) -> Record:
    found = world.find(identity)
    if found is None:
        raise ResourceError(f"404 ResourceNotFound: {identity} was not found")
    return found


def _run_command(world: World, arguments: Properties) -> Properties:
    """Return a run command. Raises ResourceError if it does not exist.

    The output is in instanceView, which is present only with $expand=instanceView (REST API, "Virtual Machine Run
    Commands - Get By Virtual Machine"). A run command on a deallocated machine has no instanceView.
    """
    group, machine, name = (str(arguments.get(key)) for key in ("resourceGroupName", "vmName", "runCommandName"))
    owner = f"{_GROUPS}/{group}/providers/Microsoft.Compute/virtualMachines/{machine}"
    found = _found(world, f"{owner}/runCommands/{name}")
    answer: Properties = {"id": found.id, **found.outputs, "instanceView": None}
    if arguments.get("expand") == "instanceView" and not _run_command_refusal(found.id, world):
        asks_for_key = "ssh_host" in str(found.inputs.get("source"))
        answer["instanceView"] = _view(f"{host_key(world.seed(owner))}\n" if asks_for_key else "offline\n")
    return answer


def _machine(world: World, arguments: Properties) -> Properties:
    """Return a machine with its power state. Raises ResourceError if it does not exist.

    A machine with the run command that waits for a bake is running at the first request and stopped at later requests.
    Other machines keep running. The power state codes are from Microsoft's "States and billing status of Azure Virtual
    Machines" (2026-11-22).
    """
    group, name = str(arguments.get("resourceGroupName")), str(arguments.get("vmName"))
    found = _found(world, f"{_GROUPS}/{group}/providers/Microsoft.Compute/virtualMachines/{name}")
    bakes = world.find(f"{found.id}/runCommands/{_BAKE}") is not None
    stopped = bakes and world.count(f"power of {world.seed(found.id)}") > 1
    disk: Value = {"id": f"{_GROUPS}/{group}/providers/Microsoft.Compute/disks/{name}{_OS_DISK}{stable_uuid(found.id)}"}
    profile: Value = {"osDisk": {"managedDisk": disk}}
    view: Value = {"statuses": [{"code": "PowerState/stopped" if stopped else "PowerState/running"}]}
    return {"id": found.id, **found.outputs, "storageProfile": profile, "instanceView": view}


def _scale_set_member(machine: Record, before: Record | None, world: World) -> str:
    """Only a flexible scale set whose singlePlacementGroup is false (not unset) accepts a new machine.

    MicrosoftDocs/azure-compute-docs@01e1fb7d:articles/virtual-machine-scale-sets/
    virtual-machine-scale-sets-attach-detach-vm.md, "Exceptions to attaching a new Virtual Machine" (2026-11-22).
    """
    members_of = machine.inputs.get("virtualMachineScaleSet")
    found = world.find(str(members_of.get("id"))) if isinstance(members_of, dict) else None
    if found is None:
        return ""
    mode, single = found.inputs.get("orchestrationMode"), found.inputs.get("singlePlacementGroup")
    if mode == "Flexible" and single is False:
        return ""
    return (
        f"{found.id} accepts no machines: a scale set accepts new virtual machines only with orchestrationMode "
        "Flexible and singlePlacementGroup false. Fix: set both, or use an availability set"
    )


def _os_disk_name(machine: Record, before: Record | None, world: World) -> str:
    """The OS disk of a deleted machine (deleteOption Delete) can exist for some time after the machine has been
    deleted.

    Azure then refuses a new disk with that name. This simulation always refuses the new disk, which is the worst case.
    hashicorp/terraform-provider-azurerm issue 23038 reports the race. Azure/azure-cli issue 3918 contains the quoted
    message (2026-11-22).
    """
    profile: Any = machine.inputs.get("storageProfile") or {}
    name = (profile.get("osDisk") or {}).get("name")
    if before is not None or not name or world.seed(machine.id) == machine.id:
        return ""
    return (
        f"Code=ConflictingUserInput Message=Disk {name} already exists in resource group. Only CreateOption.Attach is "
        "supported. Fix: omit the disk's name, so that Azure chooses one"
    )


def _domain_counts(availability_set: Record, before: Record | None, world: World) -> str:
    """The portal's message is "The update domain count must be 1 when fault domain count is 1."

    MicrosoftDocs/azure-docs pull request 121752 (2026-11-22). Azure's HPC templates set both to 1:
    Azure/azurehpc@6dac1ef9:pyazhpc/arm.py.
    """
    faults, updates = (availability_set.inputs.get(f"platform{kind}DomainCount") for kind in ("Fault", "Update"))
    if faults == 1 and updates != 1:
        return "The update domain count must be 1 when fault domain count is 1. Fix: set platformUpdateDomainCount to 1"
    return ""


def _smaller_disk(disk: Record, before: Record | None, world: World) -> str:
    """A disk cannot shrink. MicrosoftDocs/azure-docs pull request 57951 contains the quoted message (2026-11-22)."""
    old, new = before.inputs.get("diskSizeGB") if before else None, disk.inputs.get("diskSizeGB")
    if isinstance(old, int | float) and isinstance(new, int | float) and new < old:
        return (
            f"The disk/snapshot resource with id {disk.id} cannot be resized down. Reducing disk/snapshot "
            f"size is not supported in Azure to prevent data loss. Fix: keep {old:g} GiB"
        )
    return ""


def _run_command_refusal(identity: str, world: World) -> str:
    """A deallocated machine accepts no change to its run commands.

    hashicorp/terraform-provider-azurerm issues 477 and 6098 contain the quoted message for extensions (read
    2026-11-22). It applies to run commands too, because an extension executes them.
    """
    machine = world.find(identity.partition("/runCommands/")[0])
    if machine is None or not machine.outputs.get(EVICTED):
        return ""
    return "Code=OperationNotAllowed Message=Cannot modify extensions in the VM when the VM is not running."


_REFUSALS: Mapping[str, Sequence[Callable[[Record, Record | None, World], str]]] = {
    "azure-native:compute:AvailabilitySet": [_domain_counts],
    "azure-native:compute:Disk": [_smaller_disk],
    "azure-native:compute:VirtualMachine": [_scale_set_member, _os_disk_name],
    _RUN_COMMAND: [lambda command, before, world: _run_command_refusal(command.id, world)],
}
