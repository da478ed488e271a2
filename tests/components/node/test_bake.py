"""The name of a baked image, and the user-data of its builder."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from components.node.bake import baked_name, builder_user_data
from components.node.files import shipped_files
from components.plan.plan import ClusterPlan
from components.spec.model import BAKED_NAME
from components.stackfile.read import parse_stack
from tests.components.platforms.recording import stack_text

ONCE = sorted(file.stage for file in shipped_files() if file.stage and "# runs: once" in file.text.splitlines())


def plan_of(stack: str = "local", **edits: Any) -> ClusterPlan:
    return parse_stack(stack_text(stack, **edits), "test").plan


def name(base: str = "base", **edits: Any) -> str:
    return baked_name(plan_of(**edits), base)


def test_the_name_changes_with_the_content() -> None:
    direct: dict[str, Any] = {"scheduler": "none"}
    names = [
        name(),
        name(base="other"),
        name(**direct),
        name(**direct, containers="docker"),
        baked_name(replace(plan_of(), workers=()), "base"),
    ]
    assert len(set(names)) == len(names)


def test_the_name_does_not_depend_on_names_and_mirrors() -> None:
    edits: dict[str, Any] = {
        "name": "other",
        "network__cidr": "10.99.0.0/20",
        "nodes__gpu__count": 3,
        "mirrors": {"debian": "http://mirror.example.org/debian"},
        "nodes": {"renamed": {"machine": "vm-gpu2", "count": 2}},
    }
    assert {name(**{key: value}) for key, value in edits.items()} == {name()}


@pytest.mark.parametrize("stack", ["local", "azure-a100", "gcp-a3-mega"])
def test_the_builder_runs_all_stages_and_has_no_keys(stack: str) -> None:
    plan = plan_of(stack)
    assert re.fullmatch(BAKED_NAME, baked_name(plan, "base"))
    assert plan.image.os.replace(".", "-") in baked_name(plan, "base")
    text = builder_user_data(plan)
    assert ONCE == ["10-base", "15-archive", "20-apt", "31-system"]
    for stage in ONCE:
        assert text.count(f"/stages/{stage}\n") == 1
        assert text.count(f"{stage}\n") > 2, "each kind of node lists the stage"
    assert "users: []" in text
    assert not re.search("ssh-ed25519 |ssh-rsa |PRIVATE KEY|ssh_authorized_keys", text)


def test_the_builder_uses_mirrors_and_locks() -> None:
    text = builder_user_data(plan_of(mirrors={"debian": "http://mirror.example.org/debian"}))
    assert "/mirrors.sh\n" in text
    assert "http://mirror.example.org/debian" in text
    assert "/driver.lock" not in text.partition("=== /etc")[0]
    plan = plan_of()
    locked = replace(plan, workers=tuple(replace(host, driver="install") for host in plan.workers))
    assert "=== /var/lib/trainyard/bundles/birth/kinds/worker-gpu/driver.lock\n" in builder_user_data(locked)
    assert baked_name(locked, "base") != baked_name(plan, "base")
