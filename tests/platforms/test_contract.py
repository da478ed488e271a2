"""What holds for every platform of the registry: whole clusters, with a recorder in the engine's place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pulumi
import pytest

from components.cluster import Cluster
from components.errors import StackFileError
from components.outputs import ClusterOutputs, read_outputs
from components.platforms import PLATFORMS, platform_class
from components.stackfile import parse_stack
from tests.platforms.contract import Contract
from tests.platforms.recording import Answer, Built, Recorder, stack_text

# The command SDK warns of one of its own resources when it is imported; ours are others.
pytestmark = pytest.mark.filterwarnings("ignore:This resource is deprecated:DeprecationWarning")

KEYS = {
    "admin_private": "SECRET-OF-THE-ADMIN",
    "admin_public": "ssh-ed25519 AAAAadmin admin@cluster",
    "cluster_private": "SECRET-OF-THE-CLUSTER",
    "cluster_public": "ssh-ed25519 AAAAcluster cluster@cluster",
    "munge_key": "U0VDUkVULU9GLU1VTkdF",
}
HOST_KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'k' * 43}"
SECRETS = [word for name, word in KEYS.items() if "public" not in name]
ANYBODY = {"0.0.0.0/0", "::/0", "*", "Internet"}

CHOICES: list[dict[str, Any]] = [
    *({"nodes__gpu__placement": placement} for placement in ("none", "compact", "same_fabric")),
    *({"nodes__gpu__capacity": {"kind": kind}} for kind in ("on_demand", "spot")),
    {"nodes__gpu__capacity": {"kind": "reservation", "reservation": "mine"}},
    *(
        {"storage": {"shared": {"kind": kind, "size_gib": 1024}}}
        for kind in ("head_nfs", "filestore", "azure_files", "azure_netapp")
    ),
    {"storage": {"shared": {"kind": "external", "address": "10.9.9.9", "path": "/export"}}},
    *({"access__via": via} for via in ("public", "bastion", "private")),
    {"scheduler": "none"},
]


@dataclass(frozen=True)
class Whole:
    """A cluster as it was declared: what was made, and what the stack tells."""

    built: Built
    outputs: ClusterOutputs


def contract(provider: str) -> Contract:
    """Return a platform's part; a platform without one is not finished."""
    found: Contract = import_module(f"tests.platforms.{provider}.contract").CONTRACT
    return found


def whole_answer(part: Contract) -> Answer:
    """Return a platform's answers, with those of what every cluster has."""

    def answer(args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        if args.name.endswith("-host-keys"):
            # What the platforms' recorders offer is too short for a key.
            names = [offer["name"] for offer in args.inputs["offers"]]
            return "host-keys", {**args.inputs, "known": {name: {"machine": name, "key": HOST_KEY} for name in names}}
        if args.name.endswith("-keys"):
            return "keys", {**args.inputs, **KEYS}
        if args.typ == "command:remote:Command":
            return args.name, {**args.inputs, "stdout": "so many nodes are ready\n"}
        return part.answer(args)

    return answer


def declare(part: Contract, text: str) -> Whole:
    stack = parse_stack(text, "test")
    recorder, told = Recorder(whole_answer(part), part.tell), list[Any]()
    pulumi.runtime.set_mocks(recorder, preview=False)

    async def program() -> pulumi.Output[Any]:
        cluster = Cluster(stack.spec.name, stack.spec, stack.plan)
        await cluster.declare()
        return cluster.outputs.apply(told.append)

    pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
    return Whole(Built(plan=stack.plan, resources=recorder.made, hosts=[]), read_outputs(told[0]))


@pytest.fixture(params=sorted(PLATFORMS))
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Contract:
    """Each platform's part, made ready."""
    found = contract(request.param)
    found.prepare(monkeypatch)
    return found


Declare = Callable[..., Whole]


@pytest.fixture
def cluster(part: Contract, loops: asyncio.AbstractEventLoop) -> Declare:
    """Declare the platform's stack, edited."""
    return lambda **edits: declare(part, stack_text(part.stack, **edits))


def test_one_cluster_keeps_all_that_a_platform_promises(part: Contract, cluster: Declare) -> None:
    whole = cluster()
    built, plan = whole.built, whole.built.plan
    # Hosts, in the plan's order, with the addresses that slurm.conf and /etc/hosts have been given already.
    assert part.addresses(built) == {host.name: str(host.private_ip) for host in plan.hosts}
    assert [node.name for node in whole.outputs.nodes] == [host.name for host in plan.workers]
    assert [node.private_ip for node in whole.outputs.nodes] == [str(host.private_ip) for host in plan.workers]
    assert whole.outputs.head.name == plan.head.name
    assert all(key.startswith("ssh-ed25519 ") for key in [whole.outputs.head.host_key, whole.outputs.nodes[0].host_key])
    # User-data: every host's own, within what the platform accepts.
    given = part.user_data(built)
    platform = platform_class(plan.provider)
    assert set(given) == {host.name for host in plan.hosts}
    for name, text in given.items():
        assert f"TRAINYARD_NODE={name}\n" in text
        assert len(platform.wire_user_data(text)) < platform.user_data_limit / 2
    # Secrets go to the head over ssh, and into nothing else.
    for kind, name, inputs in built.resources:
        if (kind, "-bringup-" in name) != ("command:remote:Command", True):
            assert not [word for word in SECRETS if word in repr(inputs)], name
    assert not [word for word in SECRETS for text in given.values() if word in text]
    # Ssh: from where the stack says, and never from everywhere.
    allowed = {str(network) for network in parse_stack(stack_text(part.stack), "test").spec.access.allow_ssh_from}
    assert part.ssh_from(built) <= allowed
    assert not part.ssh_from(built) & ANYBODY


def test_one_more_node_changes_nothing_of_the_others(part: Contract, cluster: Declare) -> None:
    few, many = cluster(**part.smaller), cluster(**part.larger)
    before, after = ({(kind, name): inputs for kind, name, inputs in made.built.resources} for made in (few, many))
    # The bring-up's commands list all hosts, and so does the test of an existing host's connections, which ignores
    # changes of its input.
    own = {key: inputs for key, inputs in before.items() if "-bringup-" not in key[1] and not key[1].endswith("-reach")}
    assert {key for key, inputs in own.items() if inputs != after.get(key)} == set()
    assert after.keys() - before.keys() != set()


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
@pytest.mark.parametrize("edits", CHOICES, ids=lambda edits: "-".join(map(str, *edits.items())))
def test_what_a_platform_cannot_do_is_refused_in_words(provider: str, edits: dict[str, Any]) -> None:
    text = stack_text(contract(provider).stack, **{"limits": {}, **edits})
    try:
        parse_stack(text, "test")
    except StackFileError as refused:
        _, *problems = str(refused).splitlines()
        assert problems
        assert all(line.strip().startswith("test:cluster.") and " Fix: " in line for line in problems), problems
