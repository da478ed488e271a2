"""InfiniBand partitions: the report from a node, and the gate's check for same_fabric groups."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import gate.nodes
import pytest

from components.node.bundle import Bundle
from components.node.handover import Secrets, handover_files
from components.plan.plan import ClusterPlan
from tests.cloud_init.stage_sandbox import STAGES, Sandbox


def report(tmp_path: Path, keys: dict[str, list[str]]) -> str | None:
    """Run 90-health on a head with these cards in sysfs. Return the partition file, or None if it does not exist."""
    for card, entries in keys.items():
        folder = tmp_path / "sys/class/infiniband" / card / "ports/1/pkeys"
        folder.mkdir(parents=True)
        for index, entry in enumerate(entries):
            (folder / str(index)).write_text(f"{entry}\n")
    for path in ("run/trainyard", "shared"):
        (tmp_path / path).mkdir(parents=True)
    node = Sandbox(tmp_path, ("timeout",), {})
    ran = node.run("90-health", ROLE="head", SCHEDULER="none", NODE="a-0", SHARED_SOURCE="", GPUS="0")
    assert ran.code == 0, ran.errors
    file = tmp_path / "run/trainyard/partition"
    return file.read_text() if file.exists() else None


@pytest.mark.parametrize(
    ("keys", "written"),
    [
        ({"mlx5_ib0": ["0x8045", "0x7fff", "0x0000"], "mlx5_ib1": ["0x8045", "0x7fff"]}, "0x8045\n"),
        ({"mlx5_ib0": ["0x8046", "0x7fff"], "mlx5_ib1": ["0x7fff", "0x8045"]}, "0x8045,0x8046\n"),
        ({"mlx5_ib0": ["0x7fff"], "mlx5_an0": ["0x8001"]}, "\n"),
        ({}, None),
    ],
)
def test_node_reports_the_partitions_of_its_infiniband_cards(
    tmp_path: Path, keys: dict[str, list[str]], written: str | None
) -> None:
    assert report(tmp_path, keys) == written


@pytest.mark.parametrize(("written", "partition"), [("0x8045\n", "0x8045"), ("\n", ""), (None, "")])
def test_status_of_a_node_contains_its_partition(tmp_path: Path, written: str | None, partition: str) -> None:
    [status] = re.findall(r"^status\(\) \{.*?^\}$", (STAGES.parent / "bootstrap").read_text(), re.M | re.S)
    if written is not None:
        (tmp_path / "partition").write_text(written)
    script = (
        f"set -euo pipefail\nstate={tmp_path} boot_id=b TRAINYARD_NODE=a-0 TRAINYARD_ROLE=worker lib=/b\n"
        "read_uptime() { uptime=1.5; }\n" + status.replace("/run/trainyard", str(tmp_path)) + "\nstatus ready '' 0\n"
    )
    subprocess.run(["bash", "-c", script], check=True, timeout=30)
    assert json.loads((tmp_path / "status.json").read_text())["partition"] == partition


def split(monkeypatch: pytest.MonkeyPatch, state: Path, *nodes: tuple[str, str, str | None]) -> str:
    """Run the gate's check on nodes, given as name, placement and reported partition. Return the message."""
    monkeypatch.setattr(gate.nodes, "STATE", state)
    (state / "nodes").mkdir()
    for name, _, partition in nodes:
        status = {"state": "ready"} | ({} if partition is None else {"partition": partition})
        (state / "nodes" / f"{name}.json").write_text(json.dumps(status))
    lines = [[name, "10.0.0.1", name.split("-")[0], "8", placement] for name, placement, _ in nodes]
    return "\n".join(gate.nodes.check_partitions(lines))


def test_nodes_in_one_partition_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A different group may be in a different partition.
    nodes = [("a-0", "same_fabric", "0x8045"), ("a-1", "same_fabric", "0x8045"), ("b-0", "same_fabric", "0x8046")]
    assert split(monkeypatch, tmp_path, *nodes) == ""


def test_nodes_in_two_partitions_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nodes = [(f"a-{index}", "same_fabric", key) for index, key in enumerate(["0x8045", "0x8046", "0x8045"])]
    message = split(monkeypatch, tmp_path, *nodes)
    assert message.startswith("group a: placement same_fabric")
    assert "0x8045: a-0, a-2; 0x8046: a-1" in message


@pytest.mark.parametrize("others", [["0x8045"], []])
def test_node_without_a_partition_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, others: list[str]
) -> None:
    nodes = [(f"a-{index}", "same_fabric", key) for index, key in enumerate(["", *others])]
    assert "no partition: a-0" in split(monkeypatch, tmp_path, *nodes)


def test_groups_without_same_fabric_are_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert split(monkeypatch, tmp_path, ("a-0", "none", "0x8045"), ("a-1", "none", None)) == ""


def test_hand_over_marks_nodes_of_same_fabric_groups(local_plan: ClusterPlan) -> None:
    apart, together = local_plan.workers[0], replace(local_plan.workers[1], placement="same_fabric")
    plan = replace(local_plan, workers=(apart, together))
    secrets = Secrets(munge_key="bXVuZ2U=", cluster_key="cluster", user_public="ssh-ed25519 AAAAuser user@yard")
    files = handover_files(plan, {host.name: "key" for host in plan.hosts}, secrets, Bundle(archive=b"", digest=""))
    assert [line.split()[-1] for line in files["nodes"].decode().splitlines()] == ["any", "same_fabric"]
