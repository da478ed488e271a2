"""A stack's keys and its machines' host keys with the real engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components.host_keys import fingerprint
from tests.offline.cloud.stack import ROOT, Run, TestStack
from trainyard.machines import ACCEPT

pytestmark = pytest.mark.engine

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


def key(letter: str) -> str:
    return f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{letter * 43}"


def up(stack: TestStack, offers: dict[str, tuple[str, str]], *options: str) -> Run:
    """Run `up` with the given machines. `offers` contains the machine id and the presented key of each machine by
    name."""
    listed: list[dict[str, Any]] = [
        {"name": name, "machine": machine, "key": text, "declared": False} for name, (machine, text) in offers.items()
    ]
    (stack.folder / "offers.json").write_text(json.dumps(listed))
    return stack.up(*options)


def test_a_changed_host_key_must_be_accepted(keys: TestStack) -> None:
    keys.write(_HOST_KEYS)
    none = up(keys, {"head": ("1", ""), "gpu-0": ("2", ""), "gpu-1": ("3", key("c"))}).failure()
    assert "no SSH host key is known for head, gpu-0. Fix: " in none
    assert "Traceback" not in none
    up(keys, {"head": ("1", key("a")), "gpu-0": ("2", key("b"))}).passed()
    known = keys.outputs()["known"]
    assert known == {"head": {"machine": "1", "key": key("a")}, "gpu-0": {"machine": "2", "key": key("b")}}
    # An evicted machine presents no key.
    up(keys, {"head": ("1", key("a")), "gpu-0": ("2", "")}, "--expect-no-changes").passed()
    changed = {"head": ("1", key("a")), "gpu-0": ("2", key("x"))}
    refused = up(keys, changed).failure()
    accept = f"{ACCEPT}={fingerprint(key('x'))}"
    assert f"`pulumi up --config {accept}`" in refused
    assert keys.outputs()["known"] == known
    up(keys, changed, "--config", accept).passed()
    # The setting remains in the stack file, and permits no other key.
    up(keys, changed, "--expect-no-changes").passed()
    assert keys.outputs()["known"]["gpu-0"] == {"machine": "2", "key": key("x")}
    up(keys, {"head": ("1", key("a")), "gpu-0": ("2", key("y"))}).failure()
    # The key of a replaced machine is removed.
    up(keys, {"head": ("1", key("a")), "gpu-0": ("4", key("d"))}).passed()
    assert keys.outputs()["known"]["gpu-0"] == {"machine": "4", "key": key("d")}
