"""Simulated Azure: resource ids, names and outputs, and data sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from offline.cloud.addressing import AddressRequest
from offline.cloud.azure_refusals import RUN_COMMAND, run_command_refusal
from offline.cloud.cloud import Cloud
from offline.cloud.kinds import Scalar
from offline.cloud.outputs import host_key, private_address, public_address, stable_uuid
from offline.cloud.places import azure_refusal
from offline.cloud.rules import Rules, fill_path
from offline.cloud.sdk import Described, Sdk, snake
from offline.cloud.world import World
from offline.resources import ResourceError
from offline.values import Properties, Value, objects

SUBSCRIPTION = "00000000-0000-0000-0000-00000offline"
"""This is not a valid subscription id, because its last letters are not hexadecimal."""
_GROUPS = f"/subscriptions/{SUBSCRIPTION}/resourceGroups"
_OS_DISK = "_OsDisk_"
"""Part of the names that Azure gives to OS disks."""
_BAKE = "trainyard-bake"
"""Name of the run command that waits until a bake has finished."""
_INTERFACE = "azure-native:network:NetworkInterface"


class Azure(Cloud):
    """The simulated Azure."""

    package = "azure-native"
    reserved_addresses = (4, 1)

    def __init__(self) -> None:
        self.sdk = Sdk("pulumi_azure_native")
        self.rules = Rules(self.package)
        self.functions = {
            "azure-native:authorization:getClientConfig": lambda world, arguments: _client(),
            "azure-native:compute:getVirtualMachine": _machine,
            "azure-native:compute:getVirtualMachineRunCommandByVirtualMachine": _run_command,
        }
        self._location = ""

    def configure(self, config: Properties) -> None:
        self._location = str(config.get("location") or "")

    def name_property(self, described: Described) -> str:
        # If the rules contain no path for a type, the optional "...Name" input most similar to the type's name is used.
        known = self.rules.of(described.token).own_name
        if known:
            return known
        own = snake(described.token.rpartition(":")[2])
        texts = [found for found in described.inputs.values() if found.kind == Scalar("string") and not found.required]
        likeness = {
            found.name: SequenceMatcher(a=found.python.removesuffix("_name"), b=own).ratio()
            for found in texts
            if found.python.endswith("_name")
        }
        return max(likeness, key=likeness.__getitem__, default="")

    def automatic_name(self, described: Described, logical: str, suffix: str) -> str:
        name = f"{logical}{suffix}"
        plain = self.rules.of(described.token).plain_name
        return "".join(filter(str.isalnum, name.lower()))[-24:] if plain else name

    def identity(self, described: Described, inputs: Properties) -> str:
        rule = self.rules.of(described.token)
        values = {name: str(value) for name, value in inputs.items()}
        group = f"{_GROUPS}/{values.get('resourceGroupName', 'offline')}"
        if rule.holds_all:
            return f"{_GROUPS}/{fill_path(rule.path, values)}"
        return f"{group}/providers/{fill_path(rule.path or self._guessed_path(described), values)}"

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

    def computed(self, described: Described, identity: str, outputs: Properties, world: World) -> Properties:
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
                own = {"instanceView": _view("")} if described.token == RUN_COMMAND else {}
        return {**outputs, **own}

    def refers(self, text: str) -> str:
        # Azure creates the OS disk of a machine, so the disk is not a resource of the stack.
        if _OS_DISK in text:
            return ""
        return text if text.lower().startswith(f"/subscriptions/{SUBSCRIPTION}/".lower()) else ""

    def refused_location(self, inputs: Properties) -> str:
        return azure_refusal(str(inputs.get("location") or ""))

    def requested_addresses(self, token: str, inputs: Properties) -> Iterator[AddressRequest]:
        for item in objects(inputs.get("ipConfigurations")) if token == _INTERFACE else ():
            subnet, address = item.get("subnet"), item.get("privateIPAddress")
            if isinstance(subnet, dict) and isinstance(subnet.get("id"), str) and isinstance(address, str):
                yield AddressRequest(str(subnet["id"]), address)

    def ranges(self, inputs: Properties) -> Sequence[str]:
        several = inputs.get("addressPrefixes")
        found = several if isinstance(several, list) else [inputs.get("addressPrefix")]
        return [item for item in found if isinstance(item, str)]

    def refused(self, path: str) -> str:
        return (
            f"Code=PropertyChangeNotAllowed Message=Changing property '{path}' is not allowed. Fix: ignore the change "
            f"(ignore_changes), or have the resource replaced (replace_on_changes with delete_before_replace)"
        )

    def _guessed_path(self, described: Described) -> str:
        """Return the id's path for a type that has no rules.

        The path contains the names of the parents and of the resource.
        """
        own = self.name_property(described)
        parents = [found.name for found in described.inputs.values() if found.required and found.name.endswith("Name")]
        chain = [name for name in parents if name not in ("resourceGroupName", own)]
        pieces = [f"{name.removesuffix('Name')}s/{{{name}}}" for name in chain]
        kind = described.token.rpartition(":")[2]
        own_piece = f"{kind[0].lower()}{kind[1:]}s/{{{own or 'name'}}}"
        return "/".join([f"Microsoft.{described.token.split(':')[1].capitalize()}", *pieces, own_piece])

    def _arm_type(self, described: Described) -> str:
        rule = self.rules.of(described.token)
        if rule.holds_all:
            return "Microsoft.Resources/resourceGroups"
        pieces = (rule.path or self._guessed_path(described)).split("/")
        return "/".join([pieces[0], *pieces[1::2]])


def _client() -> Properties:
    return {
        "clientId": stable_uuid("client"),
        "objectId": stable_uuid("object"),
        "subscriptionId": SUBSCRIPTION,
        "tenantId": stable_uuid("tenant"),
    }


def _addressed(identity: str, configurations: Value) -> Value:
    """Return the IP configurations, each with a private address."""
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


def _run_command(world: World, arguments: Properties) -> Properties:
    """Return a run command. Raises ResourceError if it does not exist.

    The output is in instanceView, which is present only with $expand=instanceView (REST API, "Virtual Machine Run
    Commands - Get By Virtual Machine"). A run command on a deallocated machine has no instanceView.
    """
    group, machine, name = (str(arguments.get(key)) for key in ("resourceGroupName", "vmName", "runCommandName"))
    owner = f"{_GROUPS}/{group}/providers/Microsoft.Compute/virtualMachines/{machine}"
    found = world.find(f"{owner}/runCommands/{name}")
    if found is None:
        raise ResourceError(f"404 ResourceNotFound: {owner}/runCommands/{name} was not found")
    answer: Properties = {"id": found.id, **found.outputs, "instanceView": None}
    if arguments.get("expand") == "instanceView" and not run_command_refusal(found.id, world):
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
    identity = f"{_GROUPS}/{group}/providers/Microsoft.Compute/virtualMachines/{name}"
    found = world.find(identity)
    if found is None:
        raise ResourceError(f"404 ResourceNotFound: {identity} was not found")
    bakes = world.find(f"{identity}/runCommands/{_BAKE}") is not None
    stopped = bakes and world.count(f"power of {world.seed(identity)}") > 1
    disk: Value = {"id": f"{_GROUPS}/{group}/providers/Microsoft.Compute/disks/{name}{_OS_DISK}{stable_uuid(identity)}"}
    profile: Value = {"osDisk": {"managedDisk": disk}}
    view: Value = {"statuses": [{"code": "PowerState/stopped" if stopped else "PowerState/running"}]}
    return {"id": found.id, **found.outputs, "storageProfile": profile, "instanceView": view}


def _view(output: str) -> Properties:
    return {
        "executionState": "Succeeded",
        "exitCode": 0,
        "output": output,
        "error": "",
        "executionMessage": "offline: no command ran",
    }
