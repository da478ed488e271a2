"""Small programs in the real engine: refused programs, killed engines, and the keys of a stack and its machines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from components.host_keys import fingerprint
from components.keys import certificate
from components.node.user_data import Login
from offline.cloud.outputs import host_key
from tests.offline.cloud.stack import ROOT, Run, TestStack, wait_until
from trainyard.certificate import valid_before
from trainyard.machines import ACCEPT
from yard.stack.rotate import RESOURCES

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

keys = StackKeys("yard", "yard", "10.77.0.4", pulumi.ResourceOptions())
pulumi.export("access", keys.access.apply(lambda access: [access.authority, access.former_cluster]))
pulumi.export("authority", keys.authority.admin_private)
for name in ("admin", "cluster"):
    key = getattr(keys, name)
    pulumi.export(name, pulumi.Output.all(key.private, key.public, key.certificate))
pulumi.export("user", pulumi.Output.all(keys.user.private, keys.user.public))
pulumi.export("munge", keys.munge.key)
pulumi.export("database", keys.database.password)
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
    for output, end in RESOURCES.items():
        keys.up("--replace", f"urn:pulumi:test::small::pulumi-python:dynamic:Resource::yard-{end}").passed()
        after = keys.outputs()
        assert [key for key in before if before[key] != after[key]] == [output]
        before = after
    # The state of another version contains another serialized provider.
    changed = []

    def change(one: dict[str, Any]) -> None:
        if "__provider" in one.get("inputs", {}):
            one["inputs"]["__provider"] = one["outputs"]["__provider"] = "another version"
            changed.append(one["urn"])

    edit_state(keys, change)
    assert len(changed) == 6
    keys.up("--expect-no-changes").passed()
    assert keys.outputs() == before


def edit_state(stack: TestStack, change: Callable[[dict[str, Any]], None]) -> None:
    """Change each resource in the stack's state, in which private keys are encrypted."""
    file = stack.folder / "state.json"
    stack("stack", "export", "-s", "test", "--file", str(file)).passed()
    assert "PRIVATE KEY" not in file.read_text()
    state = json.loads(file.read_text())
    for one in state["deployment"]["resources"]:
        change(one)
    file.write_text(json.dumps(state))
    stack("stack", "import", "-s", "test", "--file", str(file)).passed()


def test_up_renews_a_certificate_that_ends_soon_for_the_same_key(keys: TestStack) -> None:
    keys.write(_KEYS)
    keys.up().passed()
    before = keys.outputs()
    private, public, _ = before["admin"]

    def change(one: dict[str, Any]) -> None:
        if one["urn"].endswith("::yard-admin-key"):
            one["outputs"]["certificate"] = certificate(Login.ADMIN, public, before["authority"], validity="-1d:+80d")

    edit_state(keys, change)
    keys.up().passed()
    after = keys.outputs()
    assert after["admin"][:2] == [private, public]
    assert valid_before(after["admin"][2]) - time.time() > 300 * 86400
    assert {name for name in before if before[name] != after[name]} == {"admin"}
    keys.up("--expect-no-changes").passed()


def test_a_new_authority_signs_the_same_keys(keys: TestStack) -> None:
    keys.write(_KEYS)
    keys.up().passed()
    before = keys.outputs()
    keys.up("--replace", "urn:pulumi:test::small::pulumi-python:dynamic:Resource::yard-keys").passed()
    after = keys.outputs()
    assert {name for name in before if before[name] != after[name]} == {"access", "authority", "admin", "cluster"}
    for name in ("admin", "cluster"):
        assert after[name][:2] == before[name][:2]
        assert after[name][2] != before[name][2]


def test_the_former_admin_key_becomes_the_authority(keys: TestStack) -> None:
    keys.write(_KEYS)
    keys.up().passed()
    before = keys.outputs()

    def change(one: dict[str, Any]) -> None:
        if one["urn"].endswith("::yard-keys"):
            one["outputs"] |= {"cluster_public": "ssh-ed25519 AAAAold", "cluster_private": "old"}

    edit_state(keys, change)
    keys.write(_KEYS + 'pulumi.export("preview", keys.access.apply(lambda access: access.former_cluster))\n')
    # In the preview, the keys in user-data are known, so that no machine seems to be replaced.
    assert '"ssh-ed25519 AAAAold"' in keys.preview("--show-secrets").passed()
    keys.up().passed()
    after = keys.outputs()
    assert after["access"] == [before["access"][0], "ssh-ed25519 AAAAold"]
    assert after["authority"] == before["authority"]


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


@pytest.mark.full
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
