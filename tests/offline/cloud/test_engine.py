"""Small programs in the real engine: refused programs, killed engines, and the keys of a stack and its machines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components.host_keys import fingerprint
from offline.cloud.outputs import host_key
from tests.offline.cloud.stack import ROOT, Run, TestStack, wait_until
from trainyard.machines import ACCEPT

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
MISTAKE = 'made("azure-native:compute:VirtualMachine", "vm", osProfile={"customDta": "x"}, priority="Spott")'
ZONE = 'made("gcp:compute/disk:Disk", "disk", name="disk", zone="us-central1-d", size=10)'
TYPE = 'made("azure-native:compute:VirtualMachin", "vm")'
FUNCTION = 'pulumi.runtime.invoke("gcp:compute/getRegions:getRegions", {})'


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (MISTAKE, "is required. Fix: set resource_group_name"),
        (ZONE, "Invalid value for field 'zone': 'us-central1-d'"),
        pytest.param(TYPE, "Fix: use azure-native:compute:VirtualMachine", marks=pytest.mark.full),
        pytest.param(FUNCTION, "not supported by the offline gcp", marks=pytest.mark.full),
    ],
    ids=["inputs", "zone", "type", "function"],
)
def test_a_wrong_program_changes_nothing(stack: TestStack, program: str, message: str) -> None:
    stack.write(program, raw=True)
    assert message in stack.up().failure()
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


_KEYS = """
from components.keys import StackKeys

keys = StackKeys("yard", "yard", pulumi.ResourceOptions())
pulumi.export("cluster", pulumi.Output.all(keys.cluster.admin_private, keys.cluster.cluster_private))
pulumi.export("user", pulumi.Output.all(keys.user.private, keys.user.public))
pulumi.export("munge", keys.munge.key)
"""


@pytest.fixture
def keys(stack: TestStack) -> TestStack:
    # The engine runs the provider in a separate process.
    stack.environment["PYTHONPATH"] = str(ROOT)
    return stack


def test_only_a_rotation_changes_a_key(keys: TestStack) -> None:
    keys.write(_KEYS)
    keys.up().passed()
    before = keys.outputs()
    for name, output in (("yard-user-key", "user"), ("yard-munge-key", "munge")):
        keys.up("--replace", f"urn:pulumi:test::small::pulumi-python:dynamic:Resource::{name}").passed()
        after = keys.outputs()
        assert [key for key in before if before[key] != after[key]] == [output]
        before = after
    # The state of another version contains another serialized provider.
    file = keys.folder / "state.json"
    keys("stack", "export", "-s", "test", "--file", str(file)).passed()
    state = json.loads(file.read_text())
    for one in state["deployment"]["resources"]:
        if "__provider" in one.get("inputs", {}):
            one["inputs"]["__provider"] = one["outputs"]["__provider"] = "another version"
    file.write_text(json.dumps(state))
    assert file.read_text().count('"__provider": "another version"') == 6
    keys("stack", "import", "-s", "test", "--file", str(file)).passed()
    keys.up("--expect-no-changes").passed()
    assert keys.outputs() == before


_HOST_KEYS = """
from components.host_keys import HostKeys

offers = json.load(open("offers.json"))
accepted = (pulumi.Config("trainyard").get("accept_host_keys") or "").split(",")
pulumi.export("known", HostKeys("host-keys", "yard", offers, accepted).known)
"""


def up(stack: TestStack, offers: dict[str, tuple[str, str]], *options: str) -> Run:
    """Run `up`. `offers` contains the machine id and the presented key of each machine by name."""
    listed: list[dict[str, Any]] = [
        {"name": name, "machine": machine, "key": text, "declared": False} for name, (machine, text) in offers.items()
    ]
    (stack.folder / "offers.json").write_text(json.dumps(listed))
    return stack.up(*options)


def test_a_changed_host_key_must_be_accepted(keys: TestStack) -> None:
    keys.write(_HOST_KEYS)
    none = up(keys, {"head": ("1", ""), "gpu-0": ("2", ""), "gpu-1": ("3", host_key("c"))}).failure()
    assert "no SSH host key is known for head, gpu-0. Fix: " in none
    assert "Traceback" not in none
    up(keys, {"head": ("1", host_key("a")), "gpu-0": ("2", host_key("b"))}).passed()
    known = keys.outputs()["known"]
    assert known == {"head": {"machine": "1", "key": host_key("a")}, "gpu-0": {"machine": "2", "key": host_key("b")}}
    # An evicted machine presents no key.
    up(keys, {"head": ("1", host_key("a")), "gpu-0": ("2", "")}, "--expect-no-changes").passed()
    changed = {"head": ("1", host_key("a")), "gpu-0": ("2", host_key("x"))}
    refused = up(keys, changed).failure()
    accept = f"{ACCEPT}={fingerprint(host_key('x'))}"
    assert f"`pulumi up --config {accept}`" in refused
    assert keys.outputs()["known"] == known
    up(keys, changed, "--config", accept).passed()
    # The setting remains in the stack file, and permits no other key.
    up(keys, changed, "--expect-no-changes").passed()
    assert keys.outputs()["known"]["gpu-0"] == {"machine": "2", "key": host_key("x")}
    up(keys, {"head": ("1", host_key("a")), "gpu-0": ("2", host_key("y"))}).failure()
    # The key of a replaced machine is removed.
    up(keys, {"head": ("1", host_key("a")), "gpu-0": ("4", host_key("d"))}).passed()
    assert keys.outputs()["known"]["gpu-0"] == {"machine": "4", "key": host_key("d")}
