"""The simulated Azure: ids, names and outputs of its resources, and its data sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from offline.cloud.addressing import Wish, azure_ranges, azure_wishes
from offline.cloud.azure_refusals import run_command_refusal
from offline.cloud.cloud import Function
from offline.cloud.kinds import Scalar
from offline.cloud.outputs import host_key, private_address, public_address, stable_uuid
from offline.cloud.places import azure_refusal
from offline.cloud.rules import Rules, fill_path
from offline.cloud.sdk import Described, Sdk, snake
from offline.cloud.world import World
from offline.resources import ResourceError
from offline.values import Properties, Value

SUBSCRIPTION = "00000000-0000-0000-0000-00000offline"
"""No real subscription can have this id: its last letters are not hexadecimal."""
_GROUPS = f"/subscriptions/{SUBSCRIPTION}/resourceGroups"
_GUID_NAMES = frozenset({"roleAssignmentName", "roleDefinitionId"})
_INTERFACE = "azure-native:network:NetworkInterface"
_RUN_COMMAND = "azure-native:compute:VirtualMachineRunCommandByVirtualMachine"


class Azure:
    """See Cloud."""

    package = "azure-native"
    reserved_addresses = (4, 1)

    def __init__(self) -> None:
        self.sdk = Sdk("pulumi_azure_native")
        self.rules = Rules(self.package)
        self.functions: Mapping[str, Function] = {
            "azure-native:authorization:getClientConfig": lambda world, arguments: _client(),
            "azure-native:compute:getVirtualMachineRunCommandByVirtualMachine": _run_command,
        }
        self._location = ""

    def configure(self, config: Properties) -> None:
        """See Cloud."""
        self._location = str(config.get("location") or "")

    def name_property(self, described: Described) -> str:
        """See Cloud. The type's path tells; else the optional "...Name" that is most like the type's own name."""
        known = self.rules.of(described.token).own_name
        if known:
            return known
        own = snake(described.token.rpartition(":")[2])
        texts = [found for found in described.inputs.values() if found.kind == Scalar("string") and not found.required]
        named = [found for found in texts if found.python.endswith("_name")]
        return max(named, key=lambda found: _likeness(found.python, own)).name if named else ""

    def automatic_name(self, described: Described, logical: str, suffix: str) -> str:
        """See Cloud."""
        if self.name_property(described) in _GUID_NAMES:
            return stable_uuid(f"{logical}{suffix}")
        name = f"{logical}{suffix}"
        plain = self.rules.of(described.token).plain_name
        return "".join(filter(str.isalnum, name.lower()))[-24:] if plain else name

    def checked(self, described: Described, inputs: Properties) -> Properties:
        """See Cloud."""
        return inputs

    def reported(self, described: Described, inputs: Properties) -> Properties:
        """See Cloud."""
        return inputs

    def identity(self, described: Described, inputs: Properties) -> str:
        """See Cloud."""
        rule = self.rules.of(described.token)
        values = {name: str(value) for name, value in inputs.items()}
        group = f"{_GROUPS}/{values.get('resourceGroupName', 'offline')}"
        if rule.holds_all:
            return f"{_GROUPS}/{fill_path(rule.path, values)}"
        if "scope" in described.inputs and "scope" in values:
            group = values["scope"]
        return f"{group}/providers/{fill_path(rule.path or self._guessed_path(described), values)}"

    def given(self, described: Described, inputs: Properties) -> Properties:
        """See Cloud."""
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
        """See Cloud."""
        match described.token.rpartition(":")[2]:
            case "PublicIPAddress":
                own: Properties = {"ipAddress": public_address(identity)}
            case "NetworkInterface":
                own = {"ipConfigurations": _addressed(identity, outputs.get("ipConfigurations"))}
            case "RoleAssignment":
                own = {"principalType": outputs.get("principalType") or "ServicePrincipal"}
            case "CapacityPoolVolume":
                own = {"mountTargets": [_mount_target(identity)]}
            case "VirtualNetwork":
                own = {"subnets": _identified(f"{identity}/subnets", outputs.get("subnets"))}
            case _:
                own = {"instanceView": _view("")} if described.token == _RUN_COMMAND else {}
        return {**outputs, **own}

    def refers(self, text: str) -> str:
        """See Cloud."""
        return text if text.lower().startswith(f"/subscriptions/{SUBSCRIPTION}/".lower()) else ""

    def misplaced(self, inputs: Properties) -> str:
        """See Cloud."""
        return azure_refusal(str(inputs.get("location") or ""))

    def wishes(self, token: str, inputs: Properties) -> Sequence[Wish]:
        """See Cloud."""
        return tuple(azure_wishes(inputs)) if token == _INTERFACE else ()

    def ranges(self, inputs: Properties) -> Sequence[str]:
        """See Cloud."""
        return azure_ranges(inputs)

    def refused(self, path: str) -> str:
        """See Cloud."""
        return (
            f"Code=PropertyChangeNotAllowed Message=Changing property '{path}' is not allowed. Fix: ignore the change "
            f"(ignore_changes), or have the resource replaced (replace_on_changes with delete_before_replace)"
        )

    def _guessed_path(self, described: Described) -> str:
        """Make up a resource path out of the required names, parents first."""
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


def _likeness(name: str, own: str) -> float:
    return SequenceMatcher(a=name.removesuffix("_name"), b=own).ratio()


def _client() -> Properties:
    return {
        "clientId": stable_uuid("client"),
        "objectId": stable_uuid("object"),
        "subscriptionId": SUBSCRIPTION,
        "tenantId": stable_uuid("tenant"),
    }


def _addressed(identity: str, configurations: Value) -> Value:
    """Give each IP configuration without a private address one."""
    return [
        {"privateIPAddress": private_address(f"{identity}/{index}"), "primary": index == 0, **item}
        if isinstance(item, dict)
        else item
        for index, item in enumerate(configurations if isinstance(configurations, list) else [])
    ]


def _mount_target(identity: str) -> Properties:
    return {
        "fileSystemId": stable_uuid(identity),
        "ipAddress": private_address(identity),
        "mountTargetId": stable_uuid(f"{identity}/mount"),
    }


def _identified(parent: str, items: Value) -> Value:
    return [
        {"id": f"{parent}/{item.get('name', 'offline')}", **item} if isinstance(item, dict) else item
        for item in (items if isinstance(items, list) else [])
    ]


def _run_command(world: World, arguments: Properties) -> Properties:
    """Return a run command. What it wrote is only in the expanded view, and a deallocated machine has no view.

    REST API, "Virtual Machine Run Commands - Get By Virtual Machine": instanceView with $expand=instanceView only.
    Raises ResourceError if there is no such run command.
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


def _view(output: str) -> Properties:
    return {
        "executionState": "Succeeded",
        "exitCode": 0,
        "output": output,
        "error": "",
        "executionMessage": "offline: nothing ran",
    }
