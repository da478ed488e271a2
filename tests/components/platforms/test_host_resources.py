"""Resources of hosts in a stack's state, for clusters whose host names contain each other."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from components.platforms import PLATFORMS
from tests.components.platforms.contract import Contract
from tests.components.platforms.recording import Built, record, stack_text
from tests.components.platforms.test_contract import contract
from trainyard.errors import StackError
from trainyard.strict_yaml import load_own
from yard.repair.machines import machines
from yard.stack import hosts as yard_hosts
from yard.stack import pulumi

# Importing the command SDK causes a warning about a resource that this project does not use.
pytestmark = pytest.mark.filterwarnings("ignore:This resource is deprecated:DeprecationWarning")

_WORDS = st.lists(st.sampled_from(["gpu", "h100", "0", "lease"]), min_size=1, max_size=3).map("-".join)
_NAMES = _WORDS.filter(lambda name: name[0].isalpha() and len(name) <= 16)
_GROUPS = st.lists(_NAMES.filter(lambda name: name != "head"), min_size=1, max_size=3, unique=True)
_FEW = settings(
    max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


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


@pytest.fixture(params=sorted(set(PLATFORMS) - {"hosts"}))
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Contract:
    """The contract for each platform that creates machines."""
    found = contract(request.param)
    found.prepare(monkeypatch)
    return found


def _parts(*names: str) -> list[str]:
    """Return the ends of all names that begin after a hyphen."""
    return sorted({name.split("-", cut)[-1] for name in names for cut in range(1, name.count("-") + 1)} - {*names})


@given(cluster=_NAMES, groups=_GROUPS)
@example(cluster="gpu", groups=["h100", "gpu-h100"])
@_FEW
def test_the_machine_with_exactly_this_name_is_found(part: Contract, cluster: str, groups: list[str]) -> None:
    [section] = _cluster(part)["nodes"].values()
    nodes = {name: {**copy.deepcopy(section), "count": 1} for name in groups}
    edits = {"name": cluster, "nodes": nodes, "network": {"cidr": "10.77.0.0/20"}, "limits": {}}
    built = record(part.stack, edits, part.answer, part.tell)
    names = [host.name for host in built.plan.hosts]
    state = _State(built)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulumi, "run", state.run)
        patch.setattr(pulumi, "environment", lambda required=False: {})
        found = machines("s", [*names, *_parts(*names)])
    assert {name: _node(state.inputs[machine.urn]) for name, machine in found.items()} == {n: n for n in names}


def _cluster(part: Contract) -> dict[str, Any]:
    cluster: dict[str, Any] = load_own(stack_text(part.stack))["config"]["trainyard:cluster"]
    return cluster


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
    part = contract("hosts")
    [host, *_] = _cluster(part)["platform"]["hosts"]
    addresses = [f"10.40.0.{number}" for number, _ in enumerate(names, 10)]
    entries = [
        {**host, "name": name, "address": address, "private_ip": address}
        for name, address in zip(names, addresses, strict=True)
    ]
    edits = {"platform__hosts": entries, "nodes__gpu__hosts": names[1:], "head__host": names[0]}
    with pytest.MonkeyPatch.context() as patch:
        part.prepare(patch)
        state = _State(record(part.stack, edits, part.answer, part.tell))
        patch.setattr(pulumi, "run", state.run)
        patch.setattr(pulumi, "environment", dict)
        for name in names:
            yard_hosts.forget_host("s", name)
        for name in _parts(*names):
            with suppress(StackError):
                pytest.fail(yard_hosts.forget_host("s", name))
    assert [state.inputs[urn]["connection"]["value"]["host"] for urn in state.deleted] == addresses
