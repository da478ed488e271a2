"""`destroy` refuses a stack with protected resources before any resource is deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools import protection
from trainyard.errors import StackError


def resource(name: str, **more: Any) -> dict[str, Any]:
    return {"urn": f"urn:pulumi:s::trainyard::a$gcp:compute/disk:Disk::{name}", "type": "gcp:compute/disk:Disk", **more}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state file that a fake `pulumi stack export` prints."""
    program = tmp_path / "bin" / "pulumi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$1 $2" = "stack export" ] && cat {tmp_path}/state\n')
    program.chmod(0o755)
    return tmp_path / "state"


def refuse(tmp_path: Path) -> None:
    protection.refuse_protected("opt", {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})


def test_protected_resources_are_listed_with_both_fixes(state: Path, tmp_path: Path) -> None:
    resources = [resource("opt-head"), resource("opt-shared", protect=True), resource("opt-gpu-0", protect=False)]
    state.write_text(json.dumps({"version": 3, "deployment": {"resources": resources}}))
    with pytest.raises(StackError) as refused:
        refuse(tmp_path)
    message = str(refused.value)
    assert "stack 'opt' has protected data: opt-shared (gcp:compute/disk:Disk). Nothing was deleted." in message
    assert "--exclude-protected" in message
    assert "protect_storage to false in stacks/Pulumi.opt.yaml" in message


@pytest.mark.parametrize("deployment", [{}, {"resources": []}, {"resources": [resource("opt-head")]}, None])
def test_stack_without_protected_resources_is_accepted(state: Path, tmp_path: Path, deployment: Any) -> None:
    state.write_text(json.dumps({"version": 3, "deployment": deployment}))
    refuse(tmp_path)


def test_a_state_that_cannot_be_read_stops_it(tmp_path: Path, state: Path) -> None:
    with pytest.raises(StackError, match="the state cannot be read"):
        refuse(tmp_path)
