"""Tests for the effects of stack changes, with the real engine and a simulated Google Cloud."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from offline.cloud.faults import evicted
from tests.components.platforms.recording import stack_text
from tests.offline.cloud.stack import ROOT, TestStack

pytestmark = pytest.mark.engine

PROGRAM = f"import runpy, sys\nsys.path.insert(0, {str(ROOT)!r})\nrunpy.run_path({str(ROOT / '__main__.py')!r})\n"
NODES = ["neox-gpu-0", "neox-gpu-1"]
COMMANDS = ["neox-bringup-gate", "neox-bringup-handover"]
SPOT = {"kind": "spot"}


class Cluster(TestStack):
    """The stack gcp-a2 with head_nfs and edits."""

    __test__ = False

    def put(self, **edits: Any) -> None:
        """Set the stack file. `edits`: see `stack_text`."""
        shared = {"kind": "head_nfs", "size_gib": 1024}
        file = self.folder / "Pulumi.test.yaml"
        salt = [line for line in file.read_text().splitlines() if line.startswith("encryptionsalt:")]
        file.write_text("\n".join([*salt, stack_text("gcp-a2", **{"storage__shared": shared, **edits})]))

    def planned(self, *options: str, **edits: Any) -> dict[str, str]:
        """Return the operations of a preview by resource name, without components and unchanged resources."""
        self.put(**edits)
        text = self.preview("--json", *options).text
        steps = json.loads(text[text.index("{") : text.rindex("}") + 1])["steps"]
        real = [step for step in steps if "trainyard:" not in step["urn"].split("::")[2].rpartition("$")[2]]
        return {step["urn"].rpartition("::")[2]: step["op"] for step in real if step["op"] != "same"}


def cluster(folder: Path, **edits: Any) -> Cluster:
    """Deploy the stack with the given edits, and return it. Skips the test if the Pulumi CLI is missing."""
    if not (shutil.which("pulumi") or (ROOT / ".trainyard" / "bin" / "pulumi").exists()):
        pytest.skip("the Pulumi CLI is missing (make setup)")
    stack = Cluster(folder)
    (stack.folder / "__main__.py").write_text(PROGRAM)
    stack.put(**edits)
    made = stack.up()
    assert made.code == 0, made
    return stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A cluster for tests that only run previews."""
    return cluster(tmp_path_factory.mktemp("cluster"))


@pytest.fixture
def own(stack: Cluster, tmp_path: Path) -> Cluster:
    """A copy of the cluster that a test can change."""
    copy = Cluster(tmp_path, stack)
    copy.put()
    return copy


def test_a_larger_boot_disk_is_resized_in_place(stack: Cluster) -> None:
    assert stack.planned(platform__boot_disk_gib=300) == dict.fromkeys(["neox-head", *NODES], "update")


def test_compact_placement_changes_the_nodes_in_place(stack: Cluster) -> None:
    planned = stack.planned(nodes__gpu__placement="compact")
    assert planned == {"neox-gpu-compact": "create", **dict.fromkeys(NODES, "update")}


def test_a_larger_disk_changes_nothing_else(stack: Cluster) -> None:
    assert stack.planned(storage__shared__size_gib=2048) == {"neox-shared": "update"}


def test_another_head_machine_does_not_run_the_gate_again(stack: Cluster) -> None:
    assert stack.planned(head__machine="n2-standard-16") == {"neox-head": "update"}


@pytest.mark.parametrize("key", ["neox-user-key", "neox-munge-key"])
def test_a_rotated_key_replaces_no_machine(stack: Cluster, key: str) -> None:
    urn = f"urn:pulumi:test::small::trainyard:index:Cluster$pulumi-python:dynamic:Resource::{key}"
    planned = stack.planned("--replace", urn)
    assert sorted(planned) == sorted([key, *COMMANDS])
    assert planned["neox-bringup-handover"] == "update"


def test_a_bastion_updates_the_commands(stack: Cluster) -> None:
    planned = stack.planned(access={"via": "bastion"})
    assert "replace" not in "".join(planned.values()), planned
    assert {name: planned[name] for name in ["neox-head", *COMMANDS]} == dict.fromkeys(
        ["neox-head", *COMMANDS], "update"
    )


def test_default_labels_are_on_every_machine(stack: Cluster) -> None:
    for name in ("neox-head", *NODES, "neox-shared"):
        assert stack.record(name).inputs["labels"] == {"trainyard-cluster": "neox"}


def test_metadata_keys_of_others_do_not_replace_machines(own: Cluster) -> None:
    machine = own.record("neox-gpu-0")
    for properties in (machine.inputs, machine.outputs):
        properties["metadata"] |= {"ssh-keys": "somebody:ssh-rsa AAAA"}  # type: ignore[operator]
    own.world.put(machine)
    assert own.refresh().code == 0
    assert own.planned() == {"neox-gpu-0": "update"}


def test_a_smaller_disk_is_refused_before_anything_changes(own: Cluster) -> None:
    own.put(platform__protect_storage=False)
    assert own.up().code == 0
    before = {record.urn: record for record in own.world.records()}
    smaller = {"kind": "head_nfs", "size_gib": 512}
    own.put(storage__shared=smaller, nodes__gpu__count=3, platform__boot_disk_gib=300, platform__protect_storage=False)
    for refused in (own.preview(), own.up()):
        assert refused.code != 0, refused
        assert "the disk has 1024 GiB and cannot shrink to 512 GiB" in refused.text, refused
        assert {record.urn: record for record in own.world.records()} == before
    own.put(storage__shared={"kind": "head_nfs", "size_gib": 2048}, platform__protect_storage=False)
    grown = own.up()
    assert grown.code == 0, grown
    assert own.record("neox-shared").inputs["size"] == 2048


@pytest.mark.full
def test_a_filestore_is_unchanged_in_the_next_preview(tmp_path: Path) -> None:
    files = {"storage__shared": {"kind": "filestore", "size_gib": 2560}}
    assert cluster(tmp_path, **files).planned(**files) == {}


@pytest.mark.full
def test_a_preempted_node_needs_a_refresh_to_start(own: Cluster) -> None:
    own.put(nodes__gpu__capacity=SPOT)
    assert own.up().code == 0
    stopped = evicted(own.record("neox-gpu-1"))
    assert stopped
    own.world.put(stopped)
    plain = own.up("--expect-no-changes")
    assert plain.code == 0, plain
    assert "neox-gpu-1 is stopped. `pulumi up --refresh` starts it" in plain.text, plain
    assert own.record("neox-gpu-1").outputs["currentStatus"] == "TERMINATED"
    refreshed = own.up("--refresh")
    assert refreshed.code == 0, refreshed
    assert own.record("neox-gpu-1").outputs["currentStatus"] == "RUNNING"


@pytest.mark.full
def test_a_deleted_machine_leads_to_a_refresh(own: Cluster) -> None:
    own.world.remove(own.record("neox-gpu-0").id)
    planned = own.preview()
    assert planned.code == 0, planned
    assert "neox-gpu-0 does not exist" in planned.text, planned
    assert "Run `pulumi refresh`" in planned.text
    assert own.refresh().code == 0
    again = own.up()
    assert again.code == 0, again
    assert "neox-gpu-0" in [record.urn.rpartition("::")[2] for record in own.world.records()]


def test_only_the_first_head_may_format_a_disk(own: Cluster) -> None:
    replaced = own.up("--replace", own.record("neox-head").urn)
    assert replaced.code == 0, replaced
    log = [json.loads(line)["command"] for line in (own.world.folder / "commands.jsonl").read_text().splitlines()]
    assert [command for command in log if "allow-format" in command] == [
        "sudo trainyard-allow-format",
        "sudo trainyard-allow-format --refuse",
    ]
