"""Recovery after cloud faults, killed engines, and changes made outside Pulumi.

Without the option --continue-on-error, the engine sometimes starts no other operations after the first failure, and
sometimes waits five seconds for the program to exit.
"""

from __future__ import annotations

from pathlib import Path

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
INSTANCE = "gcp:compute/instance:Instance"
WHOLE = ["Instance", "Instance", "Instance", "Network"]
AZURE_MACHINE = """
group = made("azure-native:resources:ResourceGroup", "group", resourceGroupName="g", location="southcentralus")
made("azure-native:compute:VirtualMachine", "vm", pulumi.ResourceOptions(depends_on=[group], **OPTIONS),
    resourceGroupName="g", vmName="vm", location="southcentralus", osProfile={"customData": "DATA"})
"""


@pytest.fixture(scope="module")
def whole(empty: TestStack, tmp_path_factory: pytest.TempPathFactory) -> TestStack:
    """A stack with the resources in MACHINES. Tests use copies of it."""
    made = TestStack(tmp_path_factory.mktemp("whole"), empty)
    made.write(MACHINES, raw=True)
    assert made.up().code == 0
    return made


@pytest.fixture
def deployed(whole: TestStack, tmp_path: Path) -> TestStack:
    """A copy of the stack with the resources in MACHINES for one test."""
    return TestStack(tmp_path, whole)


def test_the_next_up_continues_after_a_stockout(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    stack.faults({"fault": "stockout", "of": "*:Instance", "skip": 2, "times": 1})
    run = stack.up("--continue-on-error")
    assert run.code != 0
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in run.text
    assert "(a2-highgpu-8g) in us-central1-c. Fix: try again later, use another zone" in run.text
    assert stack.kinds == ["Instance", "Instance", "Network"]
    again = stack.up()
    assert again.code == 0, again
    assert "+ 1 created" in again.text
    assert stack.kinds == WHOLE


@pytest.mark.full
def test_the_next_up_continues_after_quota_and_timeout(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    stack.faults(
        {"fault": "quota", "name": "node-0", "times": 1},
        {"fault": "throttled", "name": "node-1", "times": 4},
        {"fault": "timed-out", "name": "node-2", "times": 1},
    )
    run = stack.up("--continue-on-error")
    assert run.code != 0
    assert "QUOTA_EXCEEDED" in run.text
    assert "node-0 (a2-highgpu-8g)" in run.text
    assert "timeout while waiting for state" in run.text
    # The engine prints only one of the four delays.
    assert "rateLimitExceeded (offline fault): next attempt in 0." in run.text
    assert stack.record("node-1").made_by == 0
    again = stack.up()
    assert again.code == 0, again
    assert "node-2 was left by an interrupted run and is adopted" in again.text
    assert stack.kinds == WHOLE


@pytest.mark.full
def test_permanent_throttling_fails(stack: TestStack) -> None:
    stack.write('made("gcp:compute/network:Network", "net", name="net")', raw=True)
    stack.faults({"fault": "throtled"})
    assert "entry 1: `fault` must be one of quota, stockout, throttled" in stack.up().text
    stack.faults({"fault": "throttled"})
    run = stack.up()
    assert run.code != 0
    assert "rateLimitExceeded (offline fault), still after 5 retries" in run.text
    assert stack.kinds == []


def test_up_is_locked_and_recovers_from_a_killed_engine(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    stack.faults({"fault": "slow", "name": "node-1", "seconds": 600, "times": 1})
    first = stack.start("up", "-s", "test", "--yes", "--skip-preview")
    wait_until(lambda: stack.kinds == WHOLE)
    second = stack.up()
    assert second.code != 0
    assert "locked" in second.text
    stack.kill(first)
    assert stack.record("node-1").made_by != 0
    again = stack.up()
    assert again.code == 0, again
    assert stack.kinds == WHOLE
    assert stack.record("node-1").made_by == 0
    settled = stack.up("--expect-no-changes")
    assert settled.code == 0, settled


@pytest.mark.full
def test_drift_deletion_and_eviction_are_restored(deployed: TestStack) -> None:
    before = {name: deployed.record(name).outputs["instanceId"] for name in ("node-0", "node-2")}
    deployed.faults(
        {"fault": "deleted", "name": "node-0"},
        {"fault": "evicted", "name": "node-1"},
        {"fault": "drifted", "name": "node-2", "set": {"metadata.a": "2"}},
    )
    refresh = deployed.refresh()
    assert refresh.code == 0, refresh
    assert deployed.kinds == ["Instance", "Network"]
    up = deployed.up()
    assert "+ 2 created" in up.text, up
    assert "~ 1 updated" in up.text, up
    assert deployed.kinds == WHOLE
    assert deployed.record("node-2").inputs["metadata"] == {"a": "1"}
    assert deployed.record("node-0").outputs["instanceId"] != before["node-0"], "a machine that was created again"
    assert deployed.record("node-2").outputs["instanceId"] == before["node-2"]


@pytest.mark.full
def test_an_interrupted_replacement_is_adopted(stack: TestStack) -> None:
    anew = 'f"node-{index}", pulumi.ResourceOptions(delete_before_replace=True), name='
    program = MACHINES.replace('f"node-{index}", name=', anew)
    stack.write(program, raw=True)
    assert stack.up().code == 0
    stack.write(program.replace("debian-12", "debian-13"), raw=True)
    stack.faults({"fault": "timed-out", "name": "node-1", "times": 1})
    assert stack.up().code != 0
    again = stack.up()
    assert again.code == 0, again
    assert "node-1 was left by an interrupted run and is adopted" in again.text
    settled = stack.up("--expect-no-changes")
    assert settled.code == 0, settled


@pytest.mark.full
def test_destroy_reports_incomplete_resources(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    stack.faults({"fault": "timed-out", "name": "node-1", "times": 1})
    assert stack.up("--continue-on-error").code != 0
    stuck = stack.destroy()
    assert stuck.code != 0
    assert "Fix: an interrupted run left it behind; run `pulumi up`, which adopts it, then" in stuck.text
    assert stack.up().code == 0
    assert stack.destroy().code == 0
    assert stack.kinds == []


def test_an_interrupted_destroy_can_be_resumed(deployed: TestStack) -> None:
    deployed.faults({"fault": "slow", "at": "delete", "name": "node-1", "seconds": 600, "times": 1})
    first = deployed.start("destroy", "-s", "test", "--yes", "--skip-preview")
    # The engine may delete node-1 last. The fault must occur in this run, not in the next one.
    wait_until(lambda: deployed.kinds == ["Instance", "Network"] and deployed.met_a_fault)
    deployed.kill(first)
    again = deployed.destroy()
    assert again.code == 0, again
    assert deployed.kinds == []


def test_the_backend_replaces_every_file_atomically(deployed: TestStack) -> None:
    # Pulumi does not write a state's metadata file (.attrs) atomically. An empty one causes "failed to load checkpoint:
    # EOF".
    states = deployed.folder.parent / "state" / ".pulumi"
    assert (states / "stacks" / "small" / "test.json").exists()
    assert list(states.rglob("*.attrs")) == []


@pytest.mark.full
def test_azure_refuses_to_update_custom_data(stack: TestStack) -> None:
    def program(data: str, options: str) -> None:
        stack.write(AZURE_MACHINE.replace("DATA", data).replace("OPTIONS", options), raw=True)

    program("b25l", "{}")
    assert stack.up().code == 0
    program("dHdv", "{}")
    assert "~ 1 to update" in stack.preview().text
    refused = stack.up()
    assert "PropertyChangeNotAllowed" in refused.text
    assert "'osProfile.customData'" in refused.text
    program("dHdv", '{"replace_on_changes": ["osProfile.customData"], "delete_before_replace": True}')
    replaced = stack.up()
    assert replaced.code == 0, replaced
    assert "+-1 replaced" in replaced.text
    assert stack.record("vm").inputs["osProfile"] == {"customData": "dHdv"}


@pytest.mark.full
def test_changes_that_replace_or_stop_a_machine(deployed: TestStack) -> None:
    deployed.write(MACHINES.replace('"a": "1"', '"a": "2"'), raw=True)
    assert "~ 3 to update" in deployed.preview().text
    deployed.write(MACHINES.replace("debian-12", "debian-13"), raw=True)
    assert "+-3 to replace" in deployed.preview().text
    deployed.write(MACHINES.replace("a2-highgpu-8g", "a2-highgpu-4g"), raw=True)
    assert "Changing the machineType on a started instance requires stopping it" in deployed.up().text
    deployed.write(
        'made("gcp:compute/firewall:Firewall", "rule", name="rule", network="projects/offline/global/networks/n")',
        raw=True,
    )
    lost = deployed.up("--target", "urn:pulumi:test::small::gcp:compute/firewall:Firewall::rule")
    assert "404 NotFound: projects/offline/global/networks/n does not exist" in lost.text


@pytest.mark.full
def test_a_used_network_cannot_be_deleted(deployed: TestStack) -> None:
    # Pulumi's state contains no machines, so only the cloud can reject the deletion.
    for index in range(3):
        forgotten = f"urn:pulumi:test::small::{INSTANCE}::node-{index}"
        assert deployed("state", "delete", forgotten, "-s", "test", "--yes").code == 0
    run = deployed.destroy()
    assert run.code != 0
    assert "409 InUse: projects/offline/global/networks/net is used by" in run.text
    assert deployed.kinds == WHOLE
