"""Tests for all platforms: complete clusters with mocks instead of the engine."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pulumi
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pulumi.runtime.mocks import MockMonitor

from components.cluster.cluster import Cluster, ClusterArgs
from components.platforms import PLATFORMS
from components.platforms.azure import facts as azure
from components.platforms.base import INPUT, MACHINES, refuse_smaller
from components.platforms.gcp import facts as gcp
from components.platforms.registry import platform_facts
from components.stackfile.read import parse_stack
from tests.components.platforms.recording import (
    CONTRACTS,
    HOST_KEY,
    ROOT,
    Answer,
    Built,
    Contract,
    Edits,
    Recorder,
    record,
    stack_text,
)
from trainyard.errors import StackError, StackFileError
from trainyard.outputs import Cluster as ClusterOutputs
from trainyard.outputs import read_outputs
from trainyard.strict_yaml import load_own
from yard.stack import hosts as yard_hosts
from yard.stack import pulumi as yard_pulumi
from yard.stack.workspace import machines

# Importing the command SDK causes a warning about a resource that this project does not use.
pytestmark = pytest.mark.filterwarnings("ignore:This resource is deprecated:DeprecationWarning")

KEYS = {
    "admin_private": "SECRET-OF-THE-AUTHORITY",
    "admin_public": "ssh-ed25519 AAAAauthority authority@cluster",
    "cluster_private": "",
    "cluster_public": "",
}


def certified(login: str, secret: str) -> dict[str, str]:
    return {
        "private": secret,
        "public": f"ssh-ed25519 AAAA{login} {login}@cluster",
        "certificate": f"certificate of {secret.lower()}",
    }


USER_KEY = {"private": "SECRET-OF-THE-USER", "public": "ssh-ed25519 AAAAuser user@cluster"}
MUNGE_KEY = {"key": "U0VDUkVULU9GLU1VTkdF"}
STACK_KEYS: Mapping[str, Mapping[str, str]] = {
    "-keys": KEYS,
    "-admin-key": certified("admin", "SECRET-OF-THE-ADMIN"),
    "-cluster-key": certified("cluster", "SECRET-OF-THE-CLUSTER"),
    "-user-key": USER_KEY,
    "-munge-key": MUNGE_KEY,
    "-database-password": {"password": "SECRETOFTHEDATABASE"},
}
"""Outputs of key resources, by the suffix of the resource name."""
SECRET_OUTPUTS = ("admin_private", "cluster_private", "private", "key", "password")
SECRETS = [word for keys in STACK_KEYS.values() for name, word in keys.items() if name in SECRET_OUTPUTS and word]
ANYBODY = {"0.0.0.0/0", "::/0", "*", "Internet"}

CHOICES: dict[str, Edits] = {
    **{kind: {"nodes__gpu__placement": kind} for kind in ("none", "compact", "same_fabric")},
    **{kind: {"nodes__gpu__capacity": {"kind": kind}} for kind in ("on_demand", "spot")},
    "reservation": {"nodes__gpu__capacity": {"kind": "reservation", "reservation": "mine"}},
    **{
        kind: {"storage": {"shared": {"kind": kind, "size_gib": 1024}}}
        for kind in ("head_nfs", "filestore", "azure_files", "azure_netapp")
    },
    "external": {"storage": {"shared": {"kind": "external", "address": "10.9.9.9", "path": "/export"}}},
    **{via: {"access__via": via} for via in ("public", "bastion", "private")},
    "scheduler none": {"scheduler": "none"},
}
"""Settings that are tested on each platform, as edits to the stack."""
_CLOUD_SETTINGS = {"compact", "same_fabric", "spot", "reservation", "bastion", "private"}
_CLOUD_STORAGE = {"filestore", "azure_files", "azure_netapp"}
REFUSED: dict[str, set[str]] = {
    "azure": {"compact", "reservation", "filestore"},
    "gcp": {"same_fabric", "azure_files", "azure_netapp"},
    "hosts": {*_CLOUD_SETTINGS, *_CLOUD_STORAGE, "external"},
    "local": {*_CLOUD_SETTINGS, *_CLOUD_STORAGE, "external"},
}
"""Settings that each provider rejects for the machine types in its stack."""


def whole_answer(part: Contract, keys: Mapping[str, Mapping[str, str]] = STACK_KEYS) -> Answer:
    """Return the mock outputs for a platform and for the resources that all clusters have."""

    def answer(args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        if args.name.endswith("-host-keys"):
            # The platforms' mock keys are too short.
            names = [offer["name"] for offer in args.inputs["offers"]]
            return "host-keys", {**args.inputs, "known": {name: {"machine": name, "key": HOST_KEY} for name in names}}
        for end, outputs in keys.items():
            if args.name.endswith(end):
                return "keys", {**args.inputs, **outputs}
        if args.typ == "command:remote:Command":
            return args.name, {**args.inputs, "stdout": "so many nodes are ready\n"}
        return part.answer(args)

    return answer


def declare(
    part: Contract, text: str, keys: Mapping[str, Mapping[str, str]] = STACK_KEYS
) -> tuple[Built, ClusterOutputs]:
    """Declare a cluster, and return its resources and outputs."""
    stack = parse_stack(text, "test")
    recorder, told = Recorder(whole_answer(part, keys), part.tell), list[Any]()
    pulumi.runtime.set_mocks(recorder, preview=False)

    async def program() -> pulumi.Output[Any]:
        cluster = Cluster(stack.plan.name, ClusterArgs(plan=stack.plan))
        return cluster.outputs.apply(told.append)

    pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
    return Built(plan=stack.plan, resources=recorder.made, hosts=[]), read_outputs(told[0])


@pytest.fixture(params=sorted(PLATFORMS))
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Contract:
    """The contract for each platform."""
    CONTRACTS[request.param].prepare(monkeypatch)
    return CONTRACTS[request.param]


Declare = Callable[..., tuple[Built, ClusterOutputs]]


@pytest.fixture
def cluster(part: Contract, loops: asyncio.AbstractEventLoop) -> Declare:
    """Declare a cluster from the platform's stack and the given edits."""
    return lambda **edits: declare(part, stack_text(part.stack, **edits))


def test_a_cluster_satisfies_the_platform_contract(part: Contract, cluster: Declare) -> None:
    built, outputs = cluster()
    plan = built.plan
    # The hosts have the same order as in the plan, and the same addresses as in slurm.conf and /etc/hosts.
    assert part.addresses(built) == {host.name: str(host.private_ip) for host in plan.hosts}
    assert [node.name for node in outputs.nodes] == [host.name for host in plan.workers]
    assert [node.private_ip for node in outputs.nodes] == [str(host.private_ip) for host in plan.workers]
    assert outputs.head.name == plan.head.name
    assert all(key.startswith("ssh-ed25519 ") for key in [outputs.head.host_key, outputs.nodes[0].host_key])
    # Each host has its own user-data, which is within the limit of the platform.
    given = part.user_data(built)
    platform = platform_facts(plan.provider)
    assert set(given) == {host.name for host in plan.hosts}
    for name, text in given.items():
        assert f"TRAINYARD_NODE={name}\n" in text
        assert len(text.encode()) < platform.user_data_limit * 2 / 3
    # Only the signed keys and the bring-up commands over SSH contain secrets.
    for kind, name, inputs in built.resources:
        if not name.endswith(("-admin-key", "-cluster-key")) and (kind, "-bringup-" in name) != (
            "command:remote:Command",
            True,
        ):
            assert not [word for word in SECRETS if word in repr(inputs)], name
    assert not [word for word in SECRETS for text in given.values() if word in text]
    # SSH is allowed only from the networks in the stack file.
    allowed = {str(network) for network in parse_stack(stack_text(part.stack), "test").plan.access.allow_ssh_from}
    assert part.ssh_from(built) <= allowed
    assert not part.ssh_from(built) & ANYBODY
    # sshd refuses the environment variables of previous output, and the official plugin warns about each of them.
    commands = built.all("remote:Command")
    assert {name for name, inputs in commands.items() if inputs.get("addPreviousOutputInEnv") is not False} == set()
    # These commands can be the first on a machine whose user-data has not installed the programs yet.
    first = [inputs for name, inputs in commands.items() if name.endswith(("-format-permission", "-bundle"))]
    assert [inputs["create"] for inputs in first if "[ ! -x /usr/local/sbin/trainyard-" not in inputs["create"]] == []
    permissions = [inputs for name, inputs in commands.items() if name.endswith("-format-permission")]
    # In the stacks of these platforms, the head has a data disk.
    assert len(permissions) == (plan.provider in {"azure", "local"})
    for inputs in permissions:
        # Without `update`, pulumi-command runs `create` again if the connection changes, for example to a new head.
        assert inputs["update"].endswith("; sudo trainyard-allow-format --refuse")
        assert inputs["create"].endswith("; sudo trainyard-allow-format")
        assert "stdin" not in inputs


def test_an_additional_node_does_not_change_others(part: Contract, cluster: Declare) -> None:
    few, many = cluster(**part.resize(2)), cluster(**part.resize(3))
    before, after = ({(kind, name): inputs for kind, name, inputs in made.resources} for made, _ in (few, many))
    # The inputs of the bring-up commands contain all hosts. So do the inputs of the connection test for existing hosts,
    # but changes to them are ignored.
    own = {key: inputs for key, inputs in before.items() if "-bringup-" not in key[1] and not key[1].endswith("-reach")}
    # The platform's component has a digest of each machine.
    (platform,) = (key for key in own if key[0].endswith("Platform"))
    assert own.pop(platform)[MACHINES].items() <= after[platform][MACHINES].items()
    assert {key for key, inputs in own.items() if inputs != after.get(key)} == set()
    assert after.keys() - before.keys() != set()


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
@pytest.mark.parametrize("choice", CHOICES)
def test_exactly_the_unsupported_choices_are_refused(provider: str, choice: str) -> None:
    text = stack_text(CONTRACTS[provider].stack, **{"limits": {}, **CHOICES[choice]})
    if choice not in REFUSED[provider]:
        assert parse_stack(text, "test").plan.workers
        return
    with pytest.raises(StackFileError) as refused:
        parse_stack(text, "test")
    assert all(problem.path.startswith("cluster.") and problem.fix for problem in refused.value.problems)


@pytest.mark.parametrize(("old", "new"), [({INPUT: 1024.0}, {INPUT: 4096.0}), ({}, {INPUT: 1.0}), ({INPUT: 1.0}, {})])
def test_only_a_smaller_shared_disk_is_refused(old: dict[str, float], new: dict[str, float]) -> None:
    refuse_smaller(pulumi.ResourceHookArgs("urn", "", "c", "trainyard:index:P", new_inputs=new, old_inputs=old))


@pytest.mark.parametrize("provider", ["azure", "gcp"])
def test_external_storage_declares_no_storage_resource(provider: str, loops: asyncio.AbstractEventLoop) -> None:
    built = record(CONTRACTS[provider].stack, {"limits": {}, **CHOICES["external"]})
    assert not {kind for kind, _, _ in built.resources} & platform_facts(provider).storage_types
    assert "TRAINYARD_SHARED_SOURCE=10.9.9.9:/export\n" in built.storage(built.plan.workers[0].name)


ROTATED = {
    "-admin-key": certified("new", "NEW-SECRET"),
    "-cluster-key": certified("new", "NEW-SECRET"),
    "-database-password": {"password": "NEWSECRET"},
    "-user-key": {"private": "NEW-SECRET", "public": "ssh-ed25519 AAAAnew user@cluster"},
    "-munge-key": {"key": "TkVXLVNFQ1JFVA=="},
}


@pytest.mark.engine
@pytest.mark.parametrize("name", sorted(path.name.split(".")[1] for path in (ROOT / "stacks").glob("Pulumi.*.yaml")))
def test_a_rotated_key_changes_only_the_bring_up(
    name: str, loops: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = stack_text(name)
    part = CONTRACTS[parse_stack(text, "test").plan.provider]
    part.prepare(monkeypatch)
    # The test does not open a tunnel, because the clouds' command-line tools may be missing.
    monkeypatch.setattr("components.cluster.cluster.require_tunnel", lambda _: None)
    monkeypatch.setattr("components.cluster.bringup.open_tunnel", lambda *_: "127.0.0.1")
    before, *others = (
        {(kind, name): inputs for kind, name, inputs in declare(part, text, keys)[0].resources}
        for keys in (STACK_KEYS, *({**STACK_KEYS, end: outputs} for end, outputs in ROTATED.items()))
    )
    for after in others:
        assert after.keys() == before.keys()
        changed = [key for key, inputs in before.items() if inputs != after[key]]
        assert sorted(name.partition("-bringup-")[2] for _, name in changed) == ["gate", "handover"]
    assert not [name for (_, name), inputs in before.items() if USER_KEY["public"] in repr(inputs)]


STEP = 8


class Counting(MockMonitor):
    """Mock monitor that counts resource dependencies and records invokes."""

    def __init__(self, mocks: pulumi.runtime.Mocks) -> None:
        super().__init__(mocks)
        self.named: list[int] = []
        self.asked: list[str] = []

    def RegisterResource(self, request: Any) -> Any:
        if request.custom:
            by_property = sum(len(named.urns) for named in request.propertyDependencies.values())
            self.named.append(len(request.dependencies) + by_property + len(request.aliases))
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]

    def Invoke(self, request: Any) -> Any:
        self.asked.append(request.tok)
        return super().Invoke(request)  # type: ignore[no-untyped-call]


def counted(provider: str, nodes: int) -> Counting:
    """Declare a cluster with a number of nodes."""
    part = CONTRACTS[provider]
    plan = parse_stack(stack_text(part.stack, nodes__gpu__count=nodes, limits={}), "test").plan
    counting = Counting(Recorder(whole_answer(part), part.tell))
    pulumi.runtime.set_mocks(counting.mocks, preview=False, monitor=counting)
    pulumi.runtime.test(lambda: Cluster(plan.name, ClusterArgs(plan=plan)).outputs)()  # type: ignore[no-untyped-call]
    return counting


@pytest.mark.engine
@pytest.mark.parametrize(("provider", "resources", "questions"), [("azure", 3, 1), ("gcp", 1, 1)])
def test_an_additional_node_has_constant_cost(
    loops: asyncio.AbstractEventLoop, provider: str, resources: int, questions: int
) -> None:
    some, more, most = (counted(provider, nodes) for nodes in (STEP, 2 * STEP, 3 * STEP))
    assert len(more.named) - len(some.named) == STEP * resources
    assert len(more.asked) - len(some.asked) == STEP * questions
    assert sum(most.named) - sum(more.named) == sum(more.named) - sum(some.named)


ELASTIC = {"min": 0, "idle_minutes": 20}
VARIANTS: dict[str, list[tuple[str, Edits]]] = {
    "azure": [
        ("azure-a100", {}),
        ("azure-a100", {"storage__shared": {"kind": "azure_files", "size_gib": 1024}}),
        ("azure-h100", {"nodes__gpu__elastic": ELASTIC}),
    ],
    "gcp": [
        ("gcp-a2", {}),
        ("gcp-a2", {"nodes__gpu__placement": "compact", "storage__shared": {"kind": "head_nfs", "size_gib": 1024}}),
        ("gcp-a3-mega", {"nodes__gpu__elastic": ELASTIC, "nodes__gpu__capacity": {"kind": "spot"}}),
    ],
}
"""Stacks and edits that together declare every type of resource on a cloud."""


@pytest.mark.parametrize(
    ("provider", "services", "words"),
    [
        ("azure", azure.SERVICES, [*azure.SERVICES.values(), *azure.ROLES]),
        (
            "gcp",
            gcp.SERVICES,
            [gcp.enable_command("PROJECT", gcp.required_services()), *(f"`{role}`" for role in gcp.ROLES)],
        ),
    ],
)
def test_every_declared_type_has_a_documented_service(
    provider: str, services: Mapping[str, str], words: list[str], loops: asyncio.AbstractEventLoop
) -> None:
    facts = platform_facts(provider)
    made = {
        kind
        for stack, edits in VARIANTS[provider]
        for kind, _, _ in record(stack, edits).resources
        if kind.startswith((f"{provider}:", f"{provider}-native:"))
    }
    assert {kind.split(":")[1].partition("/")[0] for kind in made} == set(services)
    assert set(facts.billed) <= made
    assert facts.storage_types | facts.gateway_types <= set(facts.billed)
    page = (ROOT / "docs" / "platforms" / f"{provider}.md").read_text()
    assert [word for word in words if word not in page] == []


class _State:
    """Stands in for `pulumi`: prints the state of a declared platform, and records the URN that is deleted."""

    def __init__(self, built: Built) -> None:
        self.inputs = {_urn(kind, name): inputs for kind, name, inputs in built.resources}
        self.deleted: list[str] = []
        self._resources = [
            {"urn": _urn(kind, name), "type": kind, "inputs": inputs, "parent": _urn("trainyard:x:Platform", "c")}
            for kind, name, inputs in built.resources
        ]

    def run(self, arguments: Sequence[str], _environment: Mapping[str, str]) -> Any:
        self.deleted += arguments[2:3] if arguments[:2] == ("state", "delete") else []
        state = {"deployment": {"resources": self._resources}}
        return type("Done", (), {"returncode": 0, "stdout": json.dumps(state, default=str), "stderr": ""})


def _urn(kind: str, name: str) -> str:
    return f"urn:pulumi:s::trainyard::trainyard:index:Cluster${kind}::{name}"


def _parts(*names: str) -> list[str]:
    """Return the ends of all names that begin after a hyphen."""
    return sorted({name.split("-", cut)[-1] for name in names for cut in range(1, name.count("-") + 1)} - {*names})


_WORDS = st.lists(st.sampled_from(["gpu", "h100", "0", "lease"]), min_size=1, max_size=3).map("-".join)
_NAMES = _WORDS.filter(lambda name: name[0].isalpha() and len(name) <= 16)
_FEW = settings(max_examples=8, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


def _section(part: Contract) -> dict[str, Any]:
    section: dict[str, Any] = load_own(stack_text(part.stack))["config"]["trainyard:cluster"]
    return section


@pytest.mark.parametrize("provider", sorted(set(PLATFORMS) - {"hosts"}))
@given(cluster=_NAMES, groups=st.lists(_NAMES, min_size=1, max_size=3, unique=True))
@example(cluster="gpu", groups=["h100", "gpu-h100"])
@_FEW
def test_the_machine_with_exactly_this_name_is_found(provider: str, cluster: str, groups: list[str]) -> None:
    part = CONTRACTS[provider]
    [group] = _section(part)["nodes"].values()
    nodes = {name: {**copy.deepcopy(group), "count": 1} for name in groups}
    with pytest.MonkeyPatch.context() as patch:
        part.prepare(patch)
        edits = {"name": cluster, "nodes": nodes, "network": {"cidr": "10.77.0.0/20"}, "limits": {}}
        built = record(part.stack, edits)
        names = [host.name for host in built.plan.hosts]
        state = _State(built)
        patch.setattr(yard_pulumi, "run", state.run)
        patch.setattr(yard_pulumi, "environment", lambda required=False: {})
        found = machines("s", [*names, *_parts(*names)])
    assert {name: _node(state.inputs[machine.urn]) for name, machine in found.items()} == {n: n for n in names}


def _node(inputs: Mapping[str, Any]) -> str:
    """Return the name of the node in a machine's user-data."""
    text = inputs.get("user_data") or inputs.get("metadata", {}).get("user-data")
    text = text or base64.b64decode(inputs["osProfile"]["customData"]).decode()
    [line] = {line.strip() for line in text.splitlines() if line.strip().startswith("TRAINYARD_NODE=")}
    return str(line.partition("=")[2])


@given(names=st.lists(_NAMES, min_size=2, max_size=4, unique=True))
@example(names=["node2", "my-node2"])
@_FEW
def test_the_host_with_exactly_this_name_is_forgotten(names: list[str]) -> None:
    part = CONTRACTS["hosts"]
    [host, *_] = _section(part)["platform"]["hosts"]
    addresses = [f"10.40.0.{number}" for number, _ in enumerate(names, 10)]
    entries = [
        {**host, "name": name, "address": address, "private_ip": address}
        for name, address in zip(names, addresses, strict=True)
    ]
    edits = {"platform__hosts": entries, "nodes__gpu__hosts": names[1:], "head__host": names[0]}
    with pytest.MonkeyPatch.context() as patch:
        part.prepare(patch)
        state = _State(record(part.stack, edits))
        patch.setattr(yard_pulumi, "run", state.run)
        patch.setattr(yard_pulumi, "environment", dict)
        for name in names:
            yard_hosts.forget_host("s", name)
        for name in _parts(*names):
            with suppress(StackError):
                pytest.fail(yard_hosts.forget_host("s", name))
    assert [state.inputs[urn]["connection"]["value"]["host"] for urn in state.deleted] == addresses
