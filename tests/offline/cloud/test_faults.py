"""What must be survived: faults of the cloud, killed engines, and changes behind Pulumi's back."""

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
INSTANCE = "gcp:compute/instance:Instance"
WHOLE = ["Instance", "Instance", "Instance", "Network"]
AZURE_MACHINE = """
group = made("azure-native:resources:ResourceGroup", "group", resourceGroupName="g", location="southcentralus")
made("azure-native:compute:VirtualMachine", "vm", pulumi.ResourceOptions(depends_on=[group], **OPTIONS),
    resourceGroupName="g", vmName="vm", location="southcentralus", osProfile={"customData": "DATA"})
"""


def test_a_stockout_names_machine_and_place_and_the_next_up_goes_on(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    stack.faults({"fault": "stockout", "of": "*:Instance", "skip": 2, "times": 1})
    run = stack.up()
    assert run.code != 0
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in run.text
    assert "(a2-highgpu-8g) in us-central1-c. Fix: try again later, use another zone" in run.text
    assert stack.kinds == ["Instance", "Instance", "Network"]
    again = stack.up()
    assert again.code == 0, again
    assert "+ 1 created" in again.text
    assert stack.kinds == WHOLE


def test_refused_quota_throttling_and_time_outs(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    stack.faults(
        {"fault": "quota", "name": "node-0", "times": 1},
        {"fault": "throttled", "name": "node-1", "times": 4},
        {"fault": "timed-out", "name": "node-2", "times": 1},
    )
    run = stack.up()
    assert run.code != 0
    assert "QUOTA_EXCEEDED" in run.text
    assert "node-0 (a2-highgpu-8g)" in run.text
    assert "timeout while waiting for state" in run.text
    # One of four waits, the longest 0.8 s: the engine shows what is current when it looks.
    assert "rateLimitExceeded: trying again in 0." in run.text
    assert stack.record("node-1").made_by == 0
    again = stack.up()
    assert again.code == 0, again
    assert "node-2 was left by a run that was cut off, and is taken over" in again.text
    assert stack.kinds == WHOLE


def test_a_429_that_does_not_end_fails(stack: TestStack) -> None:
    stack.write('made("gcp:compute/network:Network", "net", name="net")', raw=True)
    stack.faults({"fault": "throtled"})
    assert "entry 1: `fault` must be one of quota, stockout, throttled" in stack.up().text
    stack.faults({"fault": "throttled"})
    run = stack.up()
    assert run.code != 0
    assert "rateLimitExceeded, still after 5 retries" in run.text
    assert stack.kinds == []


def test_a_second_up_is_refused_and_a_killed_one_is_mended(stack: TestStack) -> None:
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


def test_drift_deletion_and_eviction_are_restored(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    assert stack.up().code == 0
    stack.faults(
        {"fault": "deleted", "name": "node-0"},
        {"fault": "evicted", "name": "node-1"},
        {"fault": "drifted", "name": "node-2", "set": {"metadata.a": "2"}},
    )
    refresh = stack.refresh()
    assert refresh.code == 0, refresh
    assert stack.kinds == ["Instance", "Network"]
    up = stack.up()
    assert "+ 2 created" in up.text, up
    assert "~ 1 updated" in up.text, up
    assert stack.kinds == WHOLE
    assert stack.record("node-2").inputs["metadata"] == {"a": "1"}


def test_a_machine_made_again_is_another_one(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    assert stack.up().code == 0
    before = {name: stack.record(name).outputs["instanceId"] for name in ("node-0", "node-1")}
    stack.faults({"fault": "deleted", "name": "node-0"})
    assert stack.refresh().code == 0
    stack.faults()
    assert stack.up().code == 0
    assert stack.record("node-0").outputs["instanceId"] != before["node-0"]
    assert stack.record("node-1").outputs["instanceId"] == before["node-1"]


def test_a_replacement_that_was_cut_off_is_taken_over(stack: TestStack) -> None:
    anew = 'f"node-{index}", pulumi.ResourceOptions(delete_before_replace=True), name='
    program = MACHINES.replace('f"node-{index}", name=', anew)
    stack.write(program, raw=True)
    assert stack.up().code == 0
    stack.write(program.replace("debian-12", "debian-13"), raw=True)
    stack.faults({"fault": "timed-out", "name": "node-1", "times": 1})
    assert stack.up().code != 0
    again = stack.up()
    assert again.code == 0, again
    assert "node-1 was left by a run that was cut off, and is taken over" in again.text
    settled = stack.up("--expect-no-changes")
    assert settled.code == 0, settled


def test_destroy_says_how_to_be_rid_of_what_a_run_left(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    stack.faults({"fault": "timed-out", "name": "node-1", "times": 1})
    assert stack.up().code != 0
    stuck = stack.destroy()
    assert stuck.code != 0
    assert "Fix: run `pulumi up` again, which takes it over, then `pulumi destroy`" in stuck.text
    assert stack.up().code == 0
    assert stack.destroy().code == 0
    assert stack.kinds == []


def test_an_interrupted_destroy_can_be_resumed(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    assert stack.up().code == 0
    stack.faults({"fault": "slow", "at": "delete", "name": "node-1", "seconds": 600, "times": 1})
    first = stack.start("destroy", "-s", "test", "--yes", "--skip-preview")
    # The others may be gone before the engine asks for this one, which would then be slow in the next run.
    wait_until(lambda: stack.kinds == ["Instance", "Network"] and stack.met_a_fault)
    stack.kill(first)
    again = stack.destroy()
    assert again.code == 0, again
    assert stack.kinds == []


def test_azure_refuses_new_custom_data_and_takes_a_replacement(stack: TestStack) -> None:
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


def test_what_replaces_what_needs_a_stop_and_what_is_missing(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    assert stack.up().code == 0
    stack.write(MACHINES.replace('"a": "1"', '"a": "2"'), raw=True)
    assert "~ 3 to update" in stack.preview().text
    stack.write(MACHINES.replace("debian-12", "debian-13"), raw=True)
    assert "+-3 to replace" in stack.preview().text
    stack.write(MACHINES.replace("a2-highgpu-8g", "a2-highgpu-4g"), raw=True)
    assert "Changing the machineType on a started instance requires stopping it" in stack.up().text
    stack.write(
        'made("gcp:compute/firewall:Firewall", "rule", name="rule", network="projects/offline/global/networks/n")',
        raw=True,
    )
    lost = stack.up("--target", "urn:pulumi:test::small::gcp:compute/firewall:Firewall::rule")
    assert "404 NotFound: projects/offline/global/networks/n does not exist" in lost.text


def test_what_is_in_use_cannot_be_deleted(stack: TestStack) -> None:
    stack.write(MACHINES, raw=True)
    assert stack.up().code == 0
    # Without the machines in Pulumi's state, nothing but the cloud keeps the network.
    for index in range(3):
        assert (
            stack("state", "delete", f"urn:pulumi:test::small::{INSTANCE}::node-{index}", "-s", "test", "--yes").code
            == 0
        )
    run = stack.destroy()
    assert run.code != 0
    assert "409 InUse: projects/offline/global/networks/net is used by" in run.text
    assert stack.kinds == WHOLE
