"""`yard heal --auto` with the real engine on a simulated cloud, from an Xid to a replaced machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.components.platforms.living import WholeStack, whole_stack
from tests.yard.repair.test_heal import AUTO, XID, Head
from trainyard.outputs import read_outputs
from yard.repair.heal import NEEDS_A_PERSON, heal
from yard.repair.steps import PATIENCE_SECONDS
from yard.run.schedulers import Slurm
from yard.stack import pulumi

pytestmark = pytest.mark.engine
NODE, OTHER = "opt-gpu-0", "opt-gpu-1"


@pytest.mark.parametrize("repair", ["auto", pytest.param("ask", marks=pytest.mark.full)])
def test_an_xid_replaces_exactly_one_machine(repair: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = whole_stack(tmp_path)
    stack.put("azure-a100", repair=repair)
    done = stack.up()
    assert done.code == 0, done
    head = faulty_head(stack, tmp_path, monkeypatch)
    created = machine_ids(stack)
    expected = NEEDS_A_PERSON if repair == "ask" else 0
    assert heal(head, AUTO, as_json=False) == expected
    assert head.calls == ([f"{NODE}-admin: sudo -n systemctl reboot"] if repair == "auto" else [])
    # The reboot does not end the fault.
    head.record = "".join(
        json.dumps(row | {"time": row["time"] - PATIENCE_SECONDS}) + "\n"
        for row in map(json.loads, head.record.splitlines())
    )
    assert heal(head, AUTO, as_json=False) == expected
    changed = {name for name, found in machine_ids(stack).items() if found != created[name]}
    assert changed == ({NODE} if repair == "auto" else set())
    # While the new machine boots, nothing is due.
    assert heal(head, AUTO, as_json=False) == expected


def faulty_head(stack: WholeStack, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a fake head of the stack. Slurm has drained NODE because of an Xid."""
    cluster = replace(read_outputs(stack.outputs()["cluster"]), state_dir=str(folder))
    states = {node.name: ("idle", "") for node in cluster.nodes} | {NODE: ("drained", XID)}
    head = Head(cluster, states)
    # A qualified name has no stack file in the checkout, so yard runs pulumi in the current folder.
    head.stack.name = "organization/small/test"
    monkeypatch.chdir(stack.folder)
    monkeypatch.setattr(Slurm, "nodes", lambda *_: states)
    monkeypatch.setattr(pulumi, "environment", lambda **_: dict(stack.environment))
    monkeypatch.setattr("yard.stack.pulumi.checkout.exists", lambda: False)
    return head


def machine_ids(stack: WholeStack) -> dict[str, Any]:
    return {name: stack.record(name).outputs["vmId"] for name in (NODE, OTHER, "opt-head")}
