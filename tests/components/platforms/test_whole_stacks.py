"""Tests that run the project's program and stacks on simulated clouds: faults, a replaced node, and `destroy`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.components.platforms.living import WholeStack, whole_stack
from tests.offline.cloud.stack import Run
from tests.offline.loopback_sshd import free_port
from tools.stack import EXCLUDE
from trainyard.outputs import read_outputs

pytestmark = [pytest.mark.engine, pytest.mark.full]


@pytest.fixture
def stack(tmp_path: Path) -> WholeStack:
    """An empty stack. Skips the test if the Pulumi CLI is missing."""
    return whole_stack(tmp_path)


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
    failed = stack.up()
    assert failed.code != 0
    assert refused in failed.text, failed
    assert "Fix: try again later" in failed.text
    assert "Traceback" not in failed.text, failed
    _what_is_left(stack, cluster, machine, failed)
    # Pulumi's state contains the created resources, so the next `up` creates only the remaining resources.
    again = stack.up()
    assert again.code == 0, again
    assert "to replace" not in again.text
    assert sorted(host.name for host in read_outputs(stack.outputs()["cluster"]).nodes) == [
        f"{cluster}-gpu-0",
        f"{cluster}-gpu-1",
    ]
    settled = stack.up("--expect-no-changes")
    assert settled.code == 0, settled
    _one_node_replaced(stack, cluster)
    held = list(stack.kinds)
    careless = stack("destroy", "-s", "test", "--yes")
    assert careless.code != 0
    assert "is protected" in careless.text
    assert stack.kinds == held, "`destroy` must fail before it deletes a resource"
    rest = stack("destroy", "-s", "test", "--yes", EXCLUDE)
    assert rest.code == 0, rest
    kept = [record.urn.rpartition("::")[2] for record in stack.world.records()]
    assert not [one for one in kept if one.endswith(("-head", "-gpu-0", "-gpu-1"))]
    assert f"{cluster}-shared" in kept


def test_a_stack_with_a_tunnel_is_changed_on_simulated_clouds(stack: WholeStack) -> None:
    edits: dict[str, Any] = {"platform__bastion_port": free_port(), "limits": {}}
    stack.put("azure-h100", **edits)
    assert stack.up().code == 0
    # The simulated head has no jobs, so its nodes can be removed.
    stack.put("azure-h100", nodes__gpu__count=1, **edits)
    removed = stack.up()
    assert removed.code == 0, removed
    assert "running jobs" not in removed.text, removed


def _what_is_left(stack: WholeStack, cluster: str, machine: str, failed: Run) -> None:
    """Check that the output lists each billed resource, and the commands that complete or remove the stack."""
    assert 1 <= failed.text.count(f"{cluster}-gpu-1 could not be created. Other resources in the stack") <= 2, failed
    billed = (f":{machine}", ":Disk", "filestore/instance:Instance")
    held = [record for record in stack.world.records() if record.token.endswith(billed)]
    assert len(held) == 3
    for record in held:
        name = record.urn.rpartition("::")[2]
        assert f"  {name}: " in failed.text, failed
    assert f"  {cluster}-shared: " in failed.text
    assert "dollars an hour at list prices" in failed.text
    if machine == "VirtualMachine":
        assert f"  {cluster}-shared: disk, 0.19 dollars an hour" in failed.text, failed
    assert "`pulumi up -s test` again" in failed.text
    assert "`pulumi destroy -s test --exclude-protected`" in failed.text


def _one_node_replaced(stack: WholeStack, cluster: str) -> None:
    planned: Run = stack.preview("--replace", stack.urn(f"{cluster}-gpu-1"))
    assert planned.code == 0, planned
    touched = [
        line for line in planned.text.splitlines() if line.strip().startswith(("+-", "++", "--", "~", "+ ", "- "))
    ]
    assert any(f"{cluster}-gpu-1" in line for line in touched), planned
    assert not any(f"{cluster}-gpu-0" in line or f"{cluster}-head" in line for line in touched), planned


def test_a_stack_without_the_option_of_commands_is_unchanged(stack: WholeStack) -> None:
    # Older versions of this project created the commands without the option `addPreviousOutputInEnv`.
    stack.put("gcp-a2")
    assert stack.up().code == 0
    exported = stack.folder / "state.json"
    assert stack("stack", "export", "-s", "test", "--file", str(exported)).code == 0
    state = json.loads(exported.read_text())
    commands = [
        one for one in state["deployment"]["resources"] if one["urn"].endswith(("-bundle", "-handover", "-gate"))
    ]
    assert [one[part].pop("addPreviousOutputInEnv") for one in commands for part in ("inputs", "outputs")] == [
        False
    ] * 6
    exported.write_text(json.dumps(state))
    assert stack("stack", "import", "-s", "test", "--file", str(exported)).code == 0
    planned = stack.preview("--expect-no-changes")
    assert planned.code == 0, planned
