"""The host keys resource in the real engine: stored and rejected keys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components.host_keys import fingerprint
from tests.offline.cloud.stack import ROOT, Run, TestStack
from trainyard.machines import ACCEPT

pytestmark = pytest.mark.engine

_PROGRAM = """
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


def test_a_changed_host_key_must_be_accepted(stack: TestStack) -> None:
    # The provider runs in a separate process.
    stack.environment["PYTHONPATH"] = str(ROOT)
    stack.write(_PROGRAM)
    none = up(stack, {"head": ("1", ""), "gpu-0": ("2", ""), "gpu-1": ("3", key("c"))})
    assert none.code != 0
    assert "no SSH host key is known for head, gpu-0. Fix: " in none.text, none
    assert "Traceback" not in none.text, none
    first = up(stack, {"head": ("1", key("a")), "gpu-0": ("2", key("b"))})
    assert first.code == 0, first
    known = stack.outputs()["known"]
    assert known == {"head": {"machine": "1", "key": key("a")}, "gpu-0": {"machine": "2", "key": key("b")}}
    # An evicted machine presents no key.
    silent = up(stack, {"head": ("1", key("a")), "gpu-0": ("2", "")}, "--expect-no-changes")
    assert silent.code == 0, silent
    changed = {"head": ("1", key("a")), "gpu-0": ("2", key("x"))}
    refused = up(stack, changed)
    assert refused.code != 0
    accept = f"{ACCEPT}={fingerprint(key('x'))}"
    assert f"`pulumi up --config {accept}`" in refused.text, refused
    assert stack.outputs()["known"] == known
    assert up(stack, changed, "--config", accept).code == 0
    # The setting remains in the stack file, and permits no other key.
    again = up(stack, changed, "--expect-no-changes")
    assert again.code == 0, again
    assert stack.outputs()["known"]["gpu-0"] == {"machine": "2", "key": key("x")}
    assert up(stack, {"head": ("1", key("a")), "gpu-0": ("2", key("y"))}).code != 0
    # The key of a replaced machine is removed.
    assert up(stack, {"head": ("1", key("a")), "gpu-0": ("4", key("d"))}).code == 0
    assert stack.outputs()["known"]["gpu-0"] == {"machine": "4", "key": key("d")}
