"""Parameters of the bandwidth gate."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

import pytest

from components.catalog import Floors, floors
from components.node.parameters import render_gates
from components.plan.plan import ClusterPlan
from components.platforms import PLATFORMS

SMALL_GPUS = {"Standard_ND40rs_v2": 32, "Standard_ND96asr_v4": 40}
"""GPU memory in GB of the machines with floors and less than 80 GB."""
Gate = float | Literal["default", "off"]
FLOORS = Floors(name="m", source="s", dated="2026-11-23", node=431, node_gib=16, pair=400, pair_gib=8)


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
    assert group["sizes"] == (["16G", "8G"] if floors else ["4G", "4G"])


@pytest.mark.parametrize("unmeasured", ["warn", "drain"])
def test_the_stack_file_decides_about_unmeasured_nodes(
    local_plan: ClusterPlan, unmeasured: Literal["warn", "drain"]
) -> None:
    group = group_of(replace(local_plan, unmeasured=unmeasured), 2, "default")
    assert group["drain_unmeasured"] == (unmeasured == "drain")


def test_each_floor_is_measured_at_the_size_of_its_source(local_plan: ClusterPlan) -> None:
    found = {
        name: group_of(local_plan, 2, "default", row)
        for provider in PLATFORMS
        for name, row in floors(provider).items()
    }
    assert len(found) > 5
    for name, group in found.items():
        row = floors("azure")[name]
        assert (row.node is None, row.pair is None) == (row.node_gib is None, row.pair_gib is None), name
        expected = [f"{gib or 4}G" for gib in (row.node_gib, row.pair_gib)]
        assert group["sizes"] == expected, name
        memory = SMALL_GPUS.get(name, 80)
        # nccl-tests with -c 1 allocates three buffers (src/common.cu at v2.17.1; read 2026-11-22).
        assert all(3 * int(size[:-1]) < memory for size in expected), name
