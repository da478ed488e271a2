"""Tests for all platforms: complete clusters with mocks instead of the engine."""

from __future__ import annotations

import asyncio
import base64
import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pulumi
import pytest

from components.cluster.cluster import Cluster, ClusterArgs
from components.platforms import PLATFORMS
from components.platforms.base import MACHINES
from components.platforms.registry import platform_facts
from components.stackfile.read import parse_stack
from tests.components.platforms.contract import Contract
from tests.components.platforms.recording import Answer, Built, Recorder, stack_text
from trainyard.errors import StackFileError
from trainyard.outputs import Cluster as ClusterOutputs
from trainyard.outputs import read_outputs

# Importing the command SDK causes a warning about a resource that this project does not use.
pytestmark = pytest.mark.filterwarnings("ignore:This resource is deprecated:DeprecationWarning")

KEYS = {
    "admin_private": "SECRET-OF-THE-ADMIN",
    "admin_public": "ssh-ed25519 AAAAadmin admin@cluster",
    "cluster_private": "SECRET-OF-THE-CLUSTER",
    "cluster_public": "ssh-ed25519 AAAAcluster cluster@cluster",
}
USER_KEY = {"private": "SECRET-OF-THE-USER", "public": "ssh-ed25519 AAAAuser user@cluster"}
MUNGE_KEY = {"key": "U0VDUkVULU9GLU1VTkdF"}
STACK_KEYS: Mapping[str, Mapping[str, str]] = {"-keys": KEYS, "-user-key": USER_KEY, "-munge-key": MUNGE_KEY}
"""Outputs of key resources, by the suffix of the resource name."""
HOST_KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'k' * 43}"
SECRETS = [word for keys in STACK_KEYS.values() for name, word in keys.items() if "public" not in name]
ANYBODY = {"0.0.0.0/0", "::/0", "*", "Internet"}

CHOICES: dict[str, dict[str, Any]] = {
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


@dataclass(frozen=True)
class Whole:
    """A declared cluster, with its resources and stack outputs."""

    built: Built
    outputs: ClusterOutputs


def bundle_file(built: Built, path: str) -> str:
    """Return the text of a file of the bundle."""
    [stdin] = [inputs["stdin"] for name, inputs in built.all("remote:Command").items() if name.endswith("-bundle")]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(stdin))) as outer:
        bundle = outer.extractfile("bundle.tar")
        assert bundle
        with tarfile.open(fileobj=io.BytesIO(bundle.read())) as archive:
            file = archive.extractfile(path)
            assert file
            return file.read().decode()


def contract(provider: str) -> Contract:
    """Return the contract for a platform."""
    found: Contract = import_module(f"tests.components.platforms.{provider}.contract").CONTRACT
    return found


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


def declare(part: Contract, text: str, keys: Mapping[str, Mapping[str, str]] = STACK_KEYS) -> Whole:
    stack = parse_stack(text, "test")
    recorder, told = Recorder(whole_answer(part, keys), part.tell), list[Any]()
    pulumi.runtime.set_mocks(recorder, preview=False)

    async def program() -> pulumi.Output[Any]:
        cluster = Cluster(stack.plan.name, ClusterArgs(plan=stack.plan))
        return cluster.outputs.apply(told.append)

    pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
    return Whole(Built(plan=stack.plan, resources=recorder.made, hosts=[]), read_outputs(told[0]))


@pytest.fixture(params=sorted(PLATFORMS))
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Contract:
    """The contract for each platform."""
    found = contract(request.param)
    found.prepare(monkeypatch)
    return found


Declare = Callable[..., Whole]


@pytest.fixture
def cluster(part: Contract, loops: asyncio.AbstractEventLoop) -> Declare:
    """Declare a cluster from the platform's stack and the given edits."""
    return lambda **edits: declare(part, stack_text(part.stack, **edits))


def test_a_cluster_satisfies_the_platform_contract(part: Contract, cluster: Declare) -> None:
    whole = cluster()
    built, plan = whole.built, whole.built.plan
    # The hosts have the same order as in the plan, and the same addresses as in slurm.conf and /etc/hosts.
    assert part.addresses(built) == {host.name: str(host.private_ip) for host in plan.hosts}
    assert [node.name for node in whole.outputs.nodes] == [host.name for host in plan.workers]
    assert [node.private_ip for node in whole.outputs.nodes] == [str(host.private_ip) for host in plan.workers]
    assert whole.outputs.head.name == plan.head.name
    assert all(key.startswith("ssh-ed25519 ") for key in [whole.outputs.head.host_key, whole.outputs.nodes[0].host_key])
    # Each host has its own user-data, which is within the limit of the platform.
    given = part.user_data(built)
    platform = platform_facts(plan.provider)
    assert set(given) == {host.name for host in plan.hosts}
    for name, text in given.items():
        assert f"TRAINYARD_NODE={name}\n" in text
        assert len(text.encode()) < platform.user_data_limit * 2 / 3
    # Only the bring-up commands over SSH contain secrets.
    for kind, name, inputs in built.resources:
        if (kind, "-bringup-" in name) != ("command:remote:Command", True):
            assert not [word for word in SECRETS if word in repr(inputs)], name
    assert not [word for word in SECRETS for text in given.values() if word in text]
    # SSH is allowed only from the networks in the stack file.
    allowed = {str(network) for network in parse_stack(stack_text(part.stack), "test").plan.access.allow_ssh_from}
    assert part.ssh_from(built) <= allowed
    assert not part.ssh_from(built) & ANYBODY


def test_an_additional_node_does_not_change_others(part: Contract, cluster: Declare) -> None:
    few, many = cluster(**part.smaller), cluster(**part.larger)
    before, after = ({(kind, name): inputs for kind, name, inputs in made.built.resources} for made in (few, many))
    # The inputs of the bring-up commands contain all hosts. So do the inputs of the connection test for existing hosts,
    # but changes to them are ignored.
    own = {key: inputs for key, inputs in before.items() if "-bringup-" not in key[1] and not key[1].endswith("-reach")}
    # The platform's component has a digest of each machine.
    (platform,) = (key for key in own if key[0].endswith("Platform"))
    assert own.pop(platform)[MACHINES].items() <= after[platform][MACHINES].items()
    assert {key for key, inputs in own.items() if inputs != after.get(key)} == set()
    assert after.keys() - before.keys() != set()


def test_each_data_disk_gets_one_permission_to_be_formatted(part: Contract, cluster: Declare) -> None:
    whole = cluster()
    commands = whole.built.all("remote:Command").items()
    permissions = [inputs for name, inputs in commands if name.endswith("-format-permission")]
    heads_disk = "TRAINYARD_SHARED_DISK=/dev/" in bundle_file(whole.built, "kinds/head/storage.env")
    assert len(permissions) == heads_disk
    for inputs in permissions:
        # Without `update`, pulumi-command runs `create` again if the connection changes, for example to a new head.
        assert (inputs["create"], inputs["update"]) == (
            "sudo trainyard-allow-format",
            "sudo trainyard-allow-format --refuse",
        )
        assert "stdin" not in inputs


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
@pytest.mark.parametrize("choice", CHOICES)
def test_exactly_the_unsupported_choices_are_refused(provider: str, choice: str) -> None:
    text = stack_text(contract(provider).stack, **{"limits": {}, **CHOICES[choice]})
    if choice not in REFUSED[provider]:
        assert parse_stack(text, "test").plan.workers
        return
    with pytest.raises(StackFileError) as refused:
        parse_stack(text, "test")
    assert all(problem.path.startswith("cluster.") and problem.fix for problem in refused.value.problems)


def test_no_command_sends_its_previous_output(cluster: Declare) -> None:
    # sshd refuses these environment variables, and the official plugin warns about each of them.
    commands = cluster().built.all("remote:Command")
    assert {name for name, inputs in commands.items() if inputs.get("addPreviousOutputInEnv") is not False} == set()
