"""Parameters of the bandwidth gate."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

import pytest

from components.catalog import Floors
from components.node.gates import render_gates
from components.plan.plan import ClusterPlan

Gate = float | Literal["default", "off"]
FLOORS = Floors(name="m", source="s", dated="2026-11-23", node=431, pair=400)


def group_of(plan: ClusterPlan, workers: int, gate: Gate, floors: Floors | None = None) -> dict[str, Any]:
    """Return the parameters of a group with this number of nodes."""
    machine = plan.workers[0].machine.model_copy(update={"floors": floors, "gpu_device": "/dev/nvidia"})
    hosts = tuple(replace(plan.workers[0], machine=machine, name=f"gpu-{index}") for index in range(workers))
    text = render_gates(replace(plan, workers=hosts, busbw_gate=gate))
    assert text is not None
    found: dict[str, Any] = json.loads(text)["gpu"]
    return found


@pytest.mark.parametrize(
    ("workers", "gate", "floors", "expected"),
    [
        (2, 185.0, None, (None, 185.0)),
        (1, 185.0, None, (185.0, 185.0)),
        (1, 185.0, FLOORS, (431, 185.0)),
        (2, "default", FLOORS, (431, 400)),
        (1, "default", None, (None, None)),
    ],
)
def test_a_number_applies_to_a_single_node(
    local_plan: ClusterPlan,
    workers: int,
    gate: Gate,
    floors: Floors | None,
    expected: tuple[float | None, float | None],
) -> None:
    group = group_of(local_plan, workers, gate, floors)
    assert (group["alone"], group["pair"]) == expected
    assert group["required"] == (gate != "default")
