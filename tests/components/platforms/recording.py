"""Plans for edited stack files, and Pulumi mocks that record the inputs of the resources that a platform declares."""

from __future__ import annotations

import base64
import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from components.catalog import images
from components.node.bake import baked_name
from components.node.parameters import ON_HEAD, SharedFiles, storage_env
from components.node.user_data import AccessKeys
from components.plan.check import Planned
from components.plan.plan import ClusterPlan, plan_cluster
from components.platforms.base import Host, PlatformArgs
from components.platforms.registry import Baking, platform_class, platform_facts
from components.spec.model import machine_types
from components.stackfile.read import cluster_spec, parse_stack
from offline.cloud.outputs import host_key
from trainyard.strict_yaml import load_own

ROOT = Path(__file__).parents[3]
KEYS = AccessKeys("ssh-ed25519 AAAAauthority authority@cluster")
HOST_KEY = host_key("local")

Edits = dict[str, Any]
"""Edits to a stack (see `stack_text`)."""
Inputs = dict[str, Any]


def stack_text(stack: str, **edits: Any) -> str:
    """Return a stack file with edits to its cluster. Two underscores in a key separate nested keys."""
    document = load_own((ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text())
    cluster = document["config"]["trainyard:cluster"]
    for path, value in edits.items():
        place = cluster
        *folders, last = path.split("__")
        for folder in folders:
            place = place[int(folder)] if isinstance(place, list) else place.setdefault(folder, {})
        place[last] = copy.deepcopy(value)
    return yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)


def planned(stack: str, edits: Edits) -> Planned:
    """Return the plan for an edited stack. The checks do not run, so the plan can be invalid."""
    spec = cluster_spec(load_own(stack_text(stack, **edits))["config"]["trainyard:cluster"])
    return Planned(plan=plan_cluster(spec, machine_types(spec.platform), images()[spec.platform.image]))


def current_name(plan: ClusterPlan) -> str:
    """Return the name of the image that `yard bake` builds for a plan."""
    baking = platform_facts(plan.provider).baking
    assert isinstance(baking, Baking)
    return baked_name(plan, baking.base(plan))


class Recorder(pulumi.runtime.Mocks):
    """Mocks that record the inputs of each resource by type and name."""

    def __init__(self, answer: Answer, tell: Tell) -> None:
        self.made: list[tuple[str, str, Inputs]] = []
        self.asked: list[Inputs] = []
        self._answer, self._tell = answer, tell

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, Inputs]:
        self.made.append((args.typ, args.name, dict(args.inputs)))
        return self._answer(args)

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        self.asked.append(dict(args.args))
        return self._tell(args), []


@dataclass
class Built:
    """The resources that a platform declared for a plan."""

    plan: ClusterPlan
    resources: list[tuple[str, str, Inputs]]
    hosts: list[dict[str, Any]]
    asked: list[Inputs] = field(default_factory=list)
    shared: SharedFiles = ON_HEAD
    """Location of the shared files."""

    def storage(self, name: str) -> str:
        """Return the parameters of a host that locate the shared files."""
        [host] = [host for host in self.plan.hosts if host.name == name]
        return storage_env(host, self.shared)

    def all(self, kind: str) -> dict[str, Inputs]:
        """Return the inputs of every resource whose type ends with `kind`, by name."""
        return {name: inputs for typ, name, inputs in self.resources if typ.endswith(kind)}

    def one(self, kind: str, name: str) -> Inputs:
        return self.all(kind)[name]

    def only(self, kind: str) -> Inputs:
        [inputs] = self.all(kind).values()
        return inputs


Build = Callable[..., Built]

_BUILT: dict[str, Built] = {}
"""Cache of declared platforms, because each declaration takes half a second. Tests do not change the platforms."""


def record(stack: str, edits: Edits) -> Built:
    """Declare the platform for an edited stack, with mocks instead of the engine. Results are cached."""
    asked = repr((stack, edits))
    if asked not in _BUILT:
        _BUILT[asked] = _record(parse_stack(stack_text(stack, **edits), "test").plan)
    return _BUILT[asked]


def _record(plan: ClusterPlan) -> Built:
    part = CONTRACTS[plan.provider]
    recorder, told, shared = Recorder(part.answer, part.tell), list[dict[str, Any]](), list[SharedFiles]()
    pulumi.runtime.set_mocks(recorder, preview=False)

    def program() -> pulumi.Output[Any]:
        args = PlatformArgs(plan=plan, access=pulumi.Output.from_input(KEYS))
        platform = platform_class(plan.provider)("c", args)
        location: pulumi.Output[SharedFiles] = pulumi.Output.from_input(platform.shared)
        return pulumi.Output.all(
            pulumi.Output.all(*map(_told, platform.hosts)).apply(told.extend), location.apply(shared.append)
        )

    pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
    return Built(plan=plan, resources=recorder.made, hosts=told, asked=recorder.asked, shared=shared[0])


def _told(host: Host) -> pulumi.Output[dict[str, Any]]:
    names = ("address", "port", "host_key", "machine_id", "boots", "tunnel", "through_head")
    return pulumi.Output.all(name=host.plan.name, **{name: getattr(host, name) for name in names})


Answer = Callable[[pulumi.runtime.MockResourceArgs], tuple[str, Inputs]]
"""Returns the id and the outputs of a resource."""
Tell = Callable[[pulumi.runtime.MockCallArgs], Inputs]
"""Returns the result of a data source."""


def _nothing(args: pulumi.runtime.MockCallArgs) -> Inputs:
    raise AssertionError(f"this platform must not invoke functions, but invoked {args.token}")


@dataclass(frozen=True, kw_only=True)
class Contract:
    stack: str
    """Name of a stack on the platform."""
    answer: Answer
    tell: Tell = _nothing
    addresses: Callable[[Built], Mapping[str, str]]
    """Returns the private address of each machine by host name."""
    user_data: Callable[[Built], Mapping[str, str]]
    """Returns the decoded user-data of each machine by host name."""
    ssh_from: Callable[[Built], set[str]] = lambda built: set()
    """Returns the source ranges that can connect to port 22, in the cloud's notation."""
    resize: Callable[[int], Edits] = lambda nodes: {"nodes__gpu__count": nodes, "limits": {}}
    """Returns edits to the stack for a number of nodes."""
    prepare: Callable[[pytest.MonkeyPatch], None] = lambda patch: None
    """Replaces functions that would modify this computer."""


_AZURE_GROUP = "/subscriptions/s/resourceGroups"


def _azure_answer(args: pulumi.runtime.MockResourceArgs) -> tuple[str, Inputs]:
    name = next((args.inputs[key] for key in ("accountName", "resourceGroupName") if key in args.inputs), args.name)
    outputs = {**args.inputs, "name": args.name}
    match args.typ.rpartition(":")[2]:
        case "ResourceGroup":
            return f"{_AZURE_GROUP}/{name}", {**outputs, "name": name}
        case "VirtualMachine":
            outputs |= {"vmId": f"number-of-{args.name}", "timeCreated": "2026-01-01T00:00:00Z"}
            if "identity" in outputs:
                identities = outputs["identity"]["userAssignedIdentities"]
                outputs["identity"] = {**outputs["identity"], "userAssignedIdentities": {key: {} for key in identities}}
        case "BastionHost":
            return f"{_AZURE_GROUP}/{name}/providers/Microsoft.Network/bastionHosts/{args.name}", outputs
        case "UserAssignedIdentity":
            outputs["principalId"] = f"principal-of-{args.name}"
        case "PublicIPAddress":
            outputs["ipAddress"] = "192.0.2.7"
        case "StorageAccount":
            outputs["name"] = args.inputs["accountName"]
        case "CapacityPool":
            # Azure reports the name of a pool as <account>/<pool>.
            outputs["name"] = f"{args.inputs['accountName']}/{args.inputs['poolName']}"
        case "CapacityPoolVolume":
            outputs["mountTargets"] = [{"ipAddress": "10.78.0.68", "fileSystemId": "f", "mountTargetId": "m"}]
    return f"id-{args.name}", outputs


def _azure_tell(args: pulumi.runtime.MockCallArgs) -> Inputs:
    """Return the result of a run command. Its output is included only in the expanded view."""
    written = f"Enable succeeded:\n{host_key(args.args['vmName'])}\n"
    return {"instanceView": {"output": written} if args.args.get("expand") == "instanceView" else None}


def _azure_addresses(built: Built) -> dict[str, str]:
    cards = built.all("network:NetworkInterface").items()
    return {name.removesuffix("-nic"): card["ipConfigurations"][0]["privateIPAddress"] for name, card in cards}


def _azure_user_data(built: Built) -> dict[str, str]:
    machines = built.all("compute:VirtualMachine").items()
    return {name: base64.b64decode(inputs["osProfile"]["customData"]).decode() for name, inputs in machines}


def _azure_ssh_from(built: Built) -> set[str]:
    rules = [rule for group in built.all("network:NetworkSecurityGroup").values() for rule in group["securityRules"]]
    allowed = [rule for rule in rules if (rule["access"], rule["direction"]) == ("Allow", "Inbound")]
    reach = [rule for rule in allowed if rule.get("destinationPortRange") in {"22", "*"}]
    sources = {source for rule in reach for source in rule.get("sourceAddressPrefixes", ())}
    return (sources | {rule.get("sourceAddressPrefix") for rule in reach}) - {None, str(built.plan.network)}


def _gcp_answer(args: pulumi.runtime.MockResourceArgs) -> tuple[str, Inputs]:
    extra: Inputs = {
        "creationTimestamp": "2026-11-22T03:00:00.000-08:00",
        "selfLink": f"link:{args.name}",
        "email": f"{args.name}@mail",
        **({"name": f"name-of-{args.name}"} if args.typ.endswith(":IAMCustomRole") else {}),
        "address": "192.0.2.7",
    }
    if args.typ == "gcp:filestore/instance:Instance":
        extra["networks"] = [{**net, "ipAddresses": ["10.9.8.2"]} for net in args.inputs["networks"]]
        return args.name, {**args.inputs, **extra}
    return f"id-{args.name}", {**extra, **args.inputs, "instanceId": f"number-of-{args.name}"}


_INSTANCE = "compute/instance:Instance"


def _gcp_ssh_from(built: Built) -> set[str]:
    def reaches(allowed: Inputs) -> bool:
        return allowed["protocol"] in {"all", "tcp"} and ("22" in allowed.get("ports", ["22"]))

    rules = [rule for rule in built.all("compute/firewall:Firewall").values() if any(map(reaches, rule["allows"]))]
    sources = {source for rule in rules for source in rule.get("sourceRanges", ["0.0.0.0/0"])}
    return sources - {str(built.plan.network)}


def _hosts_scripts(built: Built) -> dict[str, str]:
    """Return the script that installs each host's files, which takes the place of user-data."""
    commands, names = built.all("remote:Command"), [host.name for host in built.plan.hosts]
    return {
        host: str(commands[name]["stdin"]) for host in names for name in commands if name.endswith(f"-{host}-files")
    }


def _hosts_addresses(built: Built) -> dict[str, str]:
    scripts = _hosts_scripts(built).items()
    found = {name: re.search(r"^TRAINYARD_PRIVATE_IP=(\S+)$", text, re.MULTILINE) for name, text in scripts}
    return {name: match[1] if match else "" for name, match in found.items()}


def _hosts_resize(nodes: int) -> Edits:
    entries = load_own(stack_text("baremetal-h100"))["config"]["trainyard:cluster"]["platform"]["hosts"]
    names = [f"h100-{number}" for number in range(1, nodes)]
    return {"nodes__gpu__hosts": names, "platform__hosts": entries[:nodes]}


def _local(built: Built, key: str) -> dict[str, str]:
    return {inputs["host"]: inputs[key] for inputs in built.all("local:Vm").values()}


def _local_answer(args: pulumi.runtime.MockResourceArgs) -> tuple[str, Inputs]:
    machine = {"machine_id": f"number-of-{args.name}", "boots": 1, "address": "127.0.0.1", "host_key": HOST_KEY}
    given = {name: value for name, value in args.inputs.items() if value is not None}
    return f"id-{args.name}", {**machine, "starts": 1, **given}


CONTRACTS = {
    "azure": Contract(
        stack="azure-a100",
        answer=_azure_answer,
        tell=_azure_tell,
        addresses=_azure_addresses,
        user_data=_azure_user_data,
        ssh_from=_azure_ssh_from,
    ),
    "gcp": Contract(
        stack="gcp-a2",
        answer=_gcp_answer,
        tell=lambda args: {"variableValue": host_key(args.args["name"]).split()[1]},
        addresses=lambda built: {
            name: inputs["networkInterfaces"][0]["networkIp"] for name, inputs in built.all(_INSTANCE).items()
        },
        user_data=lambda built: {
            name: inputs["metadata"]["user-data"] for name, inputs in built.all(_INSTANCE).items()
        },
        ssh_from=_gcp_ssh_from,
    ),
    # The stack does not change firewalls on existing hosts.
    "hosts": Contract(
        stack="baremetal-h100",
        answer=lambda args: (f"id-{args.name}", {**args.inputs, "stdout": f"output of {args.name}\n", "stderr": ""}),
        addresses=_hosts_addresses,
        user_data=_hosts_scripts,
        resize=_hosts_resize,
        prepare=lambda patch: patch.setattr("components.platforms.hosts.connect._key", lambda file, name: "a key"),
    ),
    # Each machine's sshd listens on 127.0.0.1, so no external network can connect.
    "local": Contract(
        stack="local",
        answer=_local_answer,
        addresses=lambda built: {name: text.partition("/")[0] for name, text in _local(built, "private_ip").items()},
        user_data=lambda built: _local(built, "user_data"),
        prepare=lambda patch: patch.setattr("components.platforms.local.platform._prepare", lambda spec: None),
    ),
}
"""Each platform's test data by provider."""
