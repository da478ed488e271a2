"""Tests that run the project's program and stacks on simulated clouds: changes, faults, replacements and `destroy`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from offline.cloud.faults import evicted
from tests.components.platforms.living import WholeStack, whole_stack
from tests.components.platforms.recording import Edits
from tests.offline.loopback_sshd import free_port
from tests.people import person
from tools.stack import EXCLUDE
from trainyard.outputs import read_outputs

pytestmark = pytest.mark.engine

NODES = ["neox-gpu-0", "neox-gpu-1"]
COMMANDS = ["neox-bringup-gate", "neox-bringup-handover"]
HEAD_NFS: Edits = {"storage__shared": {"kind": "head_nfs", "size_gib": 1024}}
DISK = "storage__shared__size_gib"


@pytest.fixture
def stack(tmp_path: Path) -> WholeStack:
    return whole_stack(tmp_path)


@pytest.fixture(scope="module")
def gcp(tmp_path_factory: pytest.TempPathFactory) -> WholeStack:
    """The cluster of gcp-a2 with a data disk, for tests that only run previews."""
    made = whole_stack(tmp_path_factory.mktemp("cluster"))
    made.put("gcp-a2", **HEAD_NFS)
    made.deploy()
    return made


@pytest.fixture
def own(gcp: WholeStack, tmp_path: Path) -> WholeStack:
    copy = WholeStack(tmp_path, gcp)
    copy.put("gcp-a2", **HEAD_NFS)
    return copy


@pytest.mark.parametrize(
    ("edits", "operations"),
    [
        ({"platform__boot_disk_gib": 300}, dict.fromkeys(["neox-head", *NODES], "update")),
        ({"nodes__gpu__placement": "compact"}, {"neox-gpu-compact": "create", **dict.fromkeys(NODES, "update")}),
        ({DISK: 2048}, {"neox-shared": "update"}),
        # The gate does not run again.
        ({"head__machine": "n2-standard-16"}, {"neox-head": "update"}),
    ],
)
def test_a_change_updates_only_its_resources(gcp: WholeStack, edits: Edits, operations: dict[str, str]) -> None:
    gcp.put("gcp-a2", **HEAD_NFS, **edits)
    assert gcp.planned() == operations


@pytest.mark.parametrize("key", ["neox-user-key", "neox-munge-key"])
def test_a_rotated_key_replaces_no_machine(gcp: WholeStack, key: str) -> None:
    gcp.put("gcp-a2", **HEAD_NFS)
    urn = f"urn:pulumi:test::small::trainyard:index:Cluster$pulumi-python:dynamic:Resource::{key}"
    planned = gcp.planned("--replace", urn)
    assert sorted(planned) == sorted([key, *COMMANDS])
    assert planned["neox-bringup-handover"] == "update"


def test_people_change_only_the_hand_over(own: WholeStack) -> None:
    ann, bob = person("ann"), person("bob")
    edits: Edits = {**HEAD_NFS, "scheduler": "slurm", "containers": "none"}
    own.put("gcp-a2", users=[ann], **edits)
    own.deploy()
    own.put("gcp-a2", users=[ann, bob], **edits)
    # Nothing on the machines is replaced: the gate is a command that runs again.
    assert own.planned() == {"neox-bringup-handover": "update", "neox-bringup-gate": "replace"}
    own.put("gcp-a2", users=[bob], **edits)
    warning = "`pulumi up` locks the account, and ends all sessions and jobs of ann"
    assert warning in own.preview().passed()
    assert warning in own.deploy()
    assert read_outputs(own.outputs()["cluster"]).users == {"bob": "user"}


def test_a_bastion_updates_the_commands(gcp: WholeStack) -> None:
    gcp.put("gcp-a2", **HEAD_NFS, access={"via": "bastion"})
    planned = gcp.planned()
    assert "replace" not in "".join(planned.values()), planned
    assert {planned[name] for name in ["neox-head", *COMMANDS]} == {"update"}
    for name in ("neox-head", *NODES, "neox-shared"):
        assert gcp.record(name).inputs["labels"] == {"trainyard-cluster": "neox"}


def test_metadata_keys_of_others_do_not_replace_machines(own: WholeStack) -> None:
    machine = own.record("neox-gpu-0")
    for properties in (machine.inputs, machine.outputs):
        properties["metadata"] |= {"ssh-keys": "somebody:ssh-rsa AAAA"}  # type: ignore[operator]
    own.world.put(machine)
    own.refresh().passed()
    assert own.planned() == {"neox-gpu-0": "update"}


def test_a_smaller_disk_is_refused_before_anything_changes(own: WholeStack) -> None:
    free: Edits = {"platform__protect_storage": False}
    own.put("gcp-a2", **HEAD_NFS, **free)
    own.deploy()
    before = {record.urn: record for record in own.world.records()}
    smaller: Edits = {DISK: 512, "nodes__gpu__count": 3, "platform__boot_disk_gib": 300}
    own.put("gcp-a2", **HEAD_NFS, **smaller, **free)
    for refused in (own.preview(), own.up()):
        assert "the disk has 1024 GiB and cannot shrink to 512 GiB" in refused.failure()
        assert {record.urn: record for record in own.world.records()} == before
    larger: Edits = {DISK: 2048}
    own.put("gcp-a2", **HEAD_NFS, **larger, **free)
    own.deploy()
    assert own.record("neox-shared").inputs["size"] == 2048


@pytest.mark.full
def test_a_preempted_node_needs_a_refresh_to_start(own: WholeStack) -> None:
    own.put("gcp-a2", **HEAD_NFS, nodes__gpu__capacity={"kind": "spot"})
    own.deploy()
    stopped = evicted(own.record("neox-gpu-1"))
    assert stopped
    own.world.put(stopped)
    assert "neox-gpu-1 is stopped. `pulumi up --refresh` starts it" in own.deploy("--expect-no-changes")
    assert own.record("neox-gpu-1").outputs["currentStatus"] == "TERMINATED"
    own.deploy("--refresh")
    assert own.record("neox-gpu-1").outputs["currentStatus"] == "RUNNING"


def test_pulumi_leaves_elastic_machines_as_they_are(own: WholeStack) -> None:
    edits: Edits = {**HEAD_NFS, "scheduler": "slurm", "containers": "none", "limits": {}}
    edits["nodes__gpu__elastic"] = {"min": 0, "idle_minutes": 20}
    edits["nodes__gpu__capacity"] = {"kind": "spot"}
    own.put("gcp-a2", **edits)
    own.deploy()
    stopped = evicted(own.record("neox-gpu-1"))
    assert stopped
    own.world.put(stopped)
    own.deploy("--refresh")
    assert own.planned() == {}
    assert own.record("neox-gpu-1").outputs["currentStatus"] == "TERMINATED"
    # The permissions of a machine are lost when it is replaced.
    planned = own.planned("--replace", own.urn("neox-gpu-0"))
    assert planned.pop("neox-gpu-0") == planned.pop("neox-gpu-0-power") == "replace"
    assert sorted(planned) == sorted([*COMMANDS, "neox-bringup-host-keys"])


@pytest.mark.full
def test_a_deleted_machine_leads_to_a_refresh(own: WholeStack) -> None:
    own.world.remove(own.record("neox-gpu-0").id)
    planned = own.preview().passed()
    assert "neox-gpu-0 does not exist" in planned, planned
    assert "Run `pulumi refresh`" in planned
    own.refresh().passed()
    own.deploy()
    assert own.record("neox-gpu-0")


def test_only_the_first_head_may_format_a_disk(own: WholeStack) -> None:
    own.deploy("--replace", own.urn("neox-head"))
    log = [json.loads(line)["command"] for line in (own.world.folder / "commands.jsonl").read_text().splitlines()]
    assert [command.rpartition("; ")[2] for command in log if "allow-format" in command] == [
        "sudo trainyard-allow-format",
        "sudo trainyard-allow-format --refuse",
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "cluster", "machine", "refused"),
    [
        ("azure-a100", "opt", "VirtualMachine", "opt-gpu-1 (Standard_ND96amsr_A100_v4) in southcentralus"),
        ("gcp-a2", "neox", "Instance", "neox-gpu-1 (a2-highgpu-8g) in us-central1-f"),
    ],
)
def test_up_succeeds_after_a_stockout_and_files_survive(
    stack: WholeStack, name: str, cluster: str, machine: str, refused: str
) -> None:
    stack.put(name)
    stack.faults({"fault": "stockout", "of": f"*:{machine}", "name": "*-gpu-1", "times": 1})
    failed = stack.up().failure()
    assert refused in failed
    assert "Fix: try again later" in failed
    assert "Traceback" not in failed
    # The output lists each billed resource, and the commands that complete or remove the stack.
    assert 1 <= failed.count(f"{cluster}-gpu-1 could not be created. Other resources in the stack") <= 2
    billed = (f":{machine}", ":Disk", "filestore/instance:Instance")
    held = {record.urn.rpartition("::")[2] for record in stack.world.records() if record.token.endswith(billed)}
    assert held == {f"{cluster}-head", f"{cluster}-gpu-0", f"{cluster}-shared"}
    assert [name for name in held if f"  {name}: " not in failed] == []
    assert "`pulumi up -s test` again" in failed
    assert "`pulumi destroy -s test --exclude-protected`" in failed
    # Pulumi's state contains the created resources, so the next `up` creates only the remaining resources.
    assert "to replace" not in stack.deploy()
    workers = {f"{cluster}-gpu-0", f"{cluster}-gpu-1"}
    assert {host.name for host in read_outputs(stack.outputs()["cluster"]).nodes} == workers
    stack.deploy("--expect-no-changes")
    # A replaced node does not change the others.
    planned = stack.planned("--replace", stack.urn(f"{cluster}-gpu-1"))
    assert f"{cluster}-gpu-1" in planned
    assert not {f"{cluster}-gpu-0", f"{cluster}-head"} & planned.keys()
    kinds = list(stack.kinds)
    assert "is protected" in stack("destroy", "-s", "test", "--yes").failure()
    assert stack.kinds == kinds, "`destroy` must fail before it deletes a resource"
    stack("destroy", "-s", "test", "--yes", EXCLUDE).passed()
    kept = {record.urn.rpartition("::")[2] for record in stack.world.records()}
    assert f"{cluster}-shared" in kept
    assert not kept & {f"{cluster}-head", *workers}


@pytest.mark.full
def test_a_stack_with_a_tunnel_is_changed_on_simulated_clouds(stack: WholeStack) -> None:
    edits: Edits = {"platform__bastion_port": free_port(), "limits": {}}
    stack.put("azure-h100", **edits)
    stack.deploy()
    # The simulated head has no jobs, so its nodes can be removed.
    stack.put("azure-h100", nodes__gpu__count=1, **edits)
    assert "running jobs" not in stack.deploy()


@pytest.mark.full
def test_a_stack_without_the_option_of_commands_is_unchanged(stack: WholeStack) -> None:
    # Older versions of this project created the commands without the option `addPreviousOutputInEnv`.
    stack.put("gcp-a2")
    stack.deploy()
    exported = stack.folder / "state.json"
    stack("stack", "export", "-s", "test", "--file", str(exported)).passed()
    state = json.loads(exported.read_text())
    resources = state["deployment"]["resources"]
    commands = [one for one in resources if one["urn"].endswith(("-bundle", "-handover", "-gate"))]
    removed = [one[part].pop("addPreviousOutputInEnv") for one in commands for part in ("inputs", "outputs")]
    assert removed == [False] * 6
    exported.write_text(json.dumps(state))
    stack("stack", "import", "-s", "test", "--file", str(exported)).passed()
    stack.preview("--expect-no-changes").passed()
