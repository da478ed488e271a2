"""The bandwidth gate on virtual machines finds the node with a slow network card."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.integration.project import FIRST, HEAD, SECOND, THIRD, Project

pytestmark = [pytest.mark.integration, pytest.mark.full]

SLOW = THIRD


def measured(cluster: Project, floor: float) -> str:
    """Run `up` with another floor, which makes the gate measure. Return the output."""
    cluster.edit(lambda spec: spec.update(gates={"nccl_busbw": floor}))
    return cluster.stack("up", timeout=1500).out


@pytest.fixture
def _third_worker(cluster: Project) -> Iterator[None]:
    cluster.edit(lambda spec: spec["nodes"]["gpu"].update(count=3))
    yield
    cluster.edit(lambda spec: spec["nodes"]["gpu"].update(count=2))
    cluster.edit(lambda spec: spec.pop("gates", None))
    cluster.stack("up", timeout=900)


@pytest.mark.usefixtures("_third_worker")
def test_slow_card_is_named_and_drained(cluster: Project) -> None:
    # All three nodes have the same network. The floor is far below their bandwidth.
    measured(cluster, 1e-5)
    healthy = json.loads(cluster.on(HEAD, "sudo cat /var/lib/trainyard/busbw.json"))["groups"]["gpu"]
    assert healthy["faulty"] == {}
    assert len(healthy["pairs"]) == 3
    slowest = min(float(pair["busbw"]) for pair in healthy["pairs"])

    # One node's card is limited to a tenth of the slowest pair's bandwidth. The floor is a third of the slowest pair's
    # bandwidth.
    address = cluster.on(HEAD, f"getent hosts {SLOW}").split()[0]
    card = cluster.on(SLOW, f"ip -o address show to {address}").split()[1]
    kilobits = int(slowest / 10 * 8e6)
    cluster.on(SLOW, f"sudo tc qdisc add dev {card} root tbf rate {kilobits}kbit burst 32kbit latency 400ms")
    output = measured(cluster, round(slowest / 3, 6))
    assert f"{SLOW} is drained: all-reduce with it-gpu-" in output
    assert f"3 nodes are ready; drained by the bandwidth gate: {SLOW}" in output
    assert cluster.shown(SLOW).startswith("drained|TY:bandwidth: with it-gpu-")
    assert {cluster.states()[node] for node in (FIRST, SECOND)} == {"idle"}

    # A reboot removes the limit. The gate measures the rebooted node and returns it to service.
    cluster.reboot(SLOW)
    assert "4 nodes are ready" in measured(cluster, round(slowest / 4, 6))
    assert cluster.states()[SLOW] == "idle"
