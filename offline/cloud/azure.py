"""Simulated Azure: its resource IDs, names, outputs and data sources, and the requests that it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from offline.cloud.cloud import AddressRequest, Cloud, catalog
from offline.cloud.faults import EVICTED
from offline.cloud.outputs import host_key, private_address, public_address, stable_uuid
from offline.cloud.rules import Rules, fill_path
from offline.cloud.sdk import Described, Sdk
from offline.cloud.world import Record, World
from offline.protocol import ResourceError
from offline.values import Properties, Value, objects

SUBSCRIPTION = "00000000-0000-0000-0000-00000offline"
"""This is not a valid subscription ID, because its last letters are not hexadecimal."""
_GROUPS = f"/subscriptions/{SUBSCRIPTION}/resourceGroups"
_EVERYWHERE = "global"
"""The location of resources that have no region, for example private DNS zones."""
_OS_DISK = "_OsDisk_"
"""Azure puts this text into the name of each OS disk."""
_BAKE = "trainyard-bake"
"""The run command that waits until a bake has finished."""
_INTERFACE = "azure-native:network:NetworkInterface"
_RUN_COMMAND = "azure-native:compute:VirtualMachineRunCommandByVirtualMachine"


class Azure(Cloud):
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
                uuids = {"fileSystemId": stable_uuid(identity), "mountTargetId": stable_uuid(f"{identity}/mount")}
                own = {"mountTargets": [{**uuids, "ipAddress": private_address(identity)}]}
            case "VirtualNetwork":
                place, subnets = f"{identity}/subnets", objects(outputs.get("subnets"))
                own = {"subnets": [{"id": f"{place}/{one.get('name', 'offline')}", **one} for one in subnets]}
            case _:
                own = {"instanceView": _view("")} if described.token == _RUN_COMMAND else {}
        return {**outputs, **own}

    def refers(self, text: str) -> str:
        # An OS disk is not a resource of the stack, because Azure creates it with its machine.
        if _OS_DISK in text:
            return ""
        return text if text.lower().startswith(f"/subscriptions/{SUBSCRIPTION}/".lower()) else ""

    def refused_change(self, path: str) -> str:
        return (
            f"Code=PropertyChangeNotAllowed Message=Changing property '{path}' is not allowed. Fix: ignore the change "
            f"(ignore_changes), or have the resource replaced (replace_on_changes with delete_before_replace)"
        )

    def refused_location(self, inputs: Properties) -> str:
        location = str(inputs.get("location") or _EVERYWHERE)
        regions = catalog("azure_regions.yaml", "regions")
        name = location.replace(" ", "").lower()
        if name == _EVERYWHERE or name in (*regions["with_zones"], *regions["without_zones"]):
            return ""
        return (
            f"Code=LocationNotAvailableForResourceType Message=The provided location '{location}' is not available. "
            "Fix: use a region that `az account list-locations` prints"
        )

    def refused_now(self, record: Record, world: World) -> str:
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
        """Return a type's ID pattern. If the type has no rules, guess it from the names of the type and its inputs."""
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

    Its output is in instanceView. Azure returns this property only while the machine is allocated, and only for
    $expand=instanceView (REST API, "Virtual Machine Run Commands - Get By Virtual Machine").
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

    A machine that bakes an image has stopped when it is read again. Other machines are still running. The codes are
    from Microsoft's "States and billing status of Azure Virtual Machines" (read 2026-11-22).
    """
    group, name = str(arguments.get("resourceGroupName")), str(arguments.get("vmName"))
    found = _found(world, f"{_GROUPS}/{group}/providers/Microsoft.Compute/virtualMachines/{name}")
    bakes = world.find(f"{found.id}/runCommands/{_BAKE}") is not None
    stopped = bakes and world.count(f"power of {world.seed(found.id)}") > 1
    disk: Value = {"id": f"{_GROUPS}/{group}/providers/Microsoft.Compute/disks/{name}{_OS_DISK}{stable_uuid(found.id)}"}
    profile: Value = {"osDisk": {"managedDisk": disk}}
    view: Value = {"statuses": [{"code": "PowerState/stopped" if stopped else "PowerState/running"}]}
    return {"id": found.id, **found.outputs, "storageProfile": profile, "instanceView": view}


def _run_command_refusal(identity: str, world: World) -> str:
    """Return Azure's error message if the run command's machine is deallocated, or "" otherwise.

    hashicorp/terraform-provider-azurerm issues 477 and 6098 quote the message for extensions (read 2026-11-22). The
    message applies to run commands too, because an extension executes them.
    """
    machine = world.find(identity.partition("/runCommands/")[0])
    if machine is None or not machine.outputs.get(EVICTED):
        return ""
    return "Code=OperationNotAllowed Message=Cannot modify extensions in the VM when the VM is not running."
