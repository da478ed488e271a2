"""The simulated clouds in the real engine: refused programs, and engines that are killed."""

from __future__ import annotations

import pytest

from tests.offline.cloud.stack import TestStack, wait_until

pytestmark = pytest.mark.engine

MACHINES = """
net = made("gcp:compute/network:Network", "net", name="net")
for index in range(3):
    made("gcp:compute/instance:Instance", f"node-{index}", name=f"node-{index}", machineType="a2-highgpu-8g",
        zone="us-central1-c", bootDisk={"initializeParams": {"image": "debian-12"}}, metadata={"a": "1"},
        scheduling={"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"},
        networkInterfaces=[{"network": net.selfLink, "networkIp": f"10.0.0.{index + 2}"}])
"""
WHOLE = ["Instance", "Instance", "Instance", "Network"]
MISTAKES = """
made("azure-native:compute:VirtualMachine", "vm", osProfile={"customDta": "x"}, priority="Spott", zones="1")
"""


@pytest.mark.parametrize(
    ("program", "messages"),
    [
        (
            MISTAKES,
            [
                "property osProfile.customDta",
                "write customData (custom_data in Python)",
                '"Spott" is not one of Regular, Low, Spot. Fix: write "Spot"',
                "is required. Fix: set resource_group_name",
                'must be a list, but is the text "1"',
            ],
        ),
        (
            'made("gcp:compute/disk:Disk", "disk", name="disk", zone="us-central1-d", size=10)',
            ["Invalid value for field 'zone': 'us-central1-d'"],
        ),
        pytest.param(
            'made("azure-native:compute:VirtualMachin", "vm")',
            ["Fix: use azure-native:compute:VirtualMachine"],
            marks=pytest.mark.full,
        ),
        pytest.param(
            'pulumi.runtime.invoke("gcp:compute/getRegions:getRegions", {})',
            ["not supported by the offline gcp"],
            marks=pytest.mark.full,
        ),
    ],
    ids=["inputs", "zone", "type", "function"],
)
def test_a_wrong_program_changes_nothing(stack: TestStack, program: str, messages: list[str]) -> None:
    stack.write(program, raw=True)
    run = stack.up().failure()
    assert [message for message in messages if message not in run] == []
    assert stack.kinds == []


def test_up_is_locked_and_recovers_from_a_killed_engine(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    stack.faults({"fault": "slow", "name": "node-1", "seconds": 600, "times": 1})
    first = stack.start("up", "-s", "test", "--yes", "--skip-preview")
    wait_until(lambda: stack.kinds == WHOLE)
    assert "locked" in stack.up().failure()
    stack.kill(first)
    assert stack.record("node-1").made_by != 0
    stack.up().passed()
    assert stack.kinds == WHOLE
    assert stack.record("node-1").made_by == 0
    for settled in (stack.refresh("--expect-no-changes"), stack.up("--expect-no-changes")):
        assert settled.code == 0, settled


def test_an_interrupted_destroy_can_be_resumed(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    stack.up().passed()
    # Pulumi does not write a state's metadata file (.attrs) atomically. An empty one causes "failed to load checkpoint:
    # EOF".
    states = stack.folder.parent / "state" / ".pulumi"
    assert (states / "stacks" / "small" / "test.json").exists()
    assert list(states.rglob("*.attrs")) == []
    stack.faults({"fault": "slow", "at": "delete", "name": "node-1", "seconds": 600, "times": 1})
    first = stack.start("destroy", "-s", "test", "--yes", "--skip-preview")
    # The engine may delete node-1 last. The fault must occur in this run, not in the next one.
    wait_until(lambda: stack.kinds == ["Instance", "Network"] and stack.met_a_fault)
    stack.kill(first)
    stack.destroy().passed()
    assert stack.kinds == []
