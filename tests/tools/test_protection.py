"""A careless destroy: what is protected is found in the state, named, and nothing is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools import protection
from tools.environment import ToolError


def resource(name: str, **more: Any) -> dict[str, Any]:
    return {"urn": f"urn:pulumi:s::trainyard::a$gcp:compute/disk:Disk::{name}", "type": "gcp:compute/disk:Disk", **more}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A file that a pulumi which exports nothing else shows as the stack's state."""
    program = tmp_path / "bin" / "pulumi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$1 $2" = "stack export" ] && cat {tmp_path}/state\n')
    program.chmod(0o755)
    return tmp_path / "state"


def refuse(tmp_path: Path) -> None:
    protection.refuse_protected("opt", {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})


def test_what_is_protected_is_named_with_both_ways_on(state: Path, tmp_path: Path) -> None:
    resources = [resource("opt-head"), resource("opt-shared", protect=True), resource("opt-gpu-0", protect=False)]
    state.write_text(json.dumps({"version": 3, "deployment": {"resources": resources}}))
    with pytest.raises(ToolError) as refused:
        refuse(tmp_path)
    said = str(refused.value)
    assert "stack 'opt' holds data that is protected: opt-shared (gcp:compute/disk:Disk). Nothing was deleted." in said
    assert "--exclude-protected" in said
    assert "protect_storage to false in stacks/Pulumi.opt.yaml" in said


@pytest.mark.parametrize("deployment", [{}, {"resources": []}, {"resources": [resource("opt-head")]}, None])
def test_a_stack_without_anything_protected_goes_on(state: Path, tmp_path: Path, deployment: Any) -> None:
    state.write_text(json.dumps({"version": 3, "deployment": deployment}))
    refuse(tmp_path)


def test_a_state_that_cannot_be_read_stops_it(tmp_path: Path, state: Path) -> None:
    with pytest.raises(ToolError, match="its state cannot be read"):
        refuse(tmp_path)
