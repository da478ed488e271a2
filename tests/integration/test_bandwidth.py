"""The bandwidth gate on virtual machines finds the node with a slow network card."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.project import FIRST, HEAD, SECOND, THIRD, Project

pytestmark = [pytest.mark.integration, pytest.mark.full]

SLOW = THIRD
RESULTS = "/var/lib/trainyard/busbw.json"


def set_gate(cluster: Project, floor: float) -> None:
    cluster.edit(lambda spec: spec.update(gates={"nccl_busbw": floor}))


def results(cluster: Project) -> dict[str, Any]:
    """Return the bandwidth gate's results for the group gpu."""
    found: dict[str, Any] = json.loads(cluster.on(HEAD, f"sudo cat {RESULTS}"))["groups"]["gpu"]
    return found


def state_of(cluster: Project, node: str) -> str:
    return cluster.on(HEAD, f"sinfo -h -n {node} -o '%T %E'").strip()


@pytest.fixture
def _third_worker(cluster: Project) -> Iterator[None]:
    """Add a worker for this test, and remove it and the gate afterwards."""
    cluster.edit(lambda spec: spec["nodes"]["gpu"].update(count=3))
    yield
    cluster.edit(lambda spec: spec["nodes"]["gpu"].update(count=2))
    cluster.edit(lambda spec: spec.pop("gates", None))
    cluster.stack("up", timeout=900)


@pytest.mark.usefixtures("_third_worker")
def test_slow_card_is_named_and_drained(cluster: Project) -> None:
    # All three nodes have the same network. The floor is far below their bandwidth.
    set_gate(cluster, 1e-5)
    cluster.stack("up", timeout=1500)
    healthy = results(cluster)
    assert healthy["faulty"] == {}
    assert len(healthy["pairs"]) == 3
    slowest = min(float(pair["busbw"]) for pair in healthy["pairs"])

    # One node's card is limited to a tenth of the slowest pair's bandwidth. The floor is a third of the slowest pair's
    # bandwidth.
    address = cluster.on(HEAD, f"getent hosts {SLOW}").split()[0]
    card = cluster.on(SLOW, f"ip -o address show to {address}").split()[1]
    kilobits = int(slowest / 10 * 8e6)
    cluster.on(SLOW, f"sudo tc qdisc add dev {card} root tbf rate {kilobits}kbit burst 32kbit latency 400ms")
    set_gate(cluster, round(slowest / 3, 6))
    output = cluster.stack("up", timeout=1500).out
    assert f"{SLOW} is drained: all-reduce with it-gpu-" in output
    assert f"3 nodes are ready; drained by the bandwidth gate: {SLOW}" in output
    assert state_of(cluster, SLOW).startswith("drained TY:bandwidth: with it-gpu-")
    assert {state_of(cluster, node).split()[0] for node in (FIRST, SECOND)} == {"idle"}

    # A reboot removes the limit. The gate measures the rebooted node and returns it to service.
    cluster.reboot(SLOW)
    set_gate(cluster, round(slowest / 4, 6))
    assert "4 nodes are ready" in cluster.stack("up", timeout=1500).out
    assert state_of(cluster, SLOW).split()[0] == "idle"
