"""URNs of machines in the stack's state, and the `pulumi up` command that replaces the machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.yard.conftest import FakeStack, MakeProgram
from yard.contract.machines import MACHINE_TYPES
from yard.errors import StackError
from yard.roll.machines import machine_urns, replace_machines


def urn(kind: str, name: str) -> str:
    return f"urn:pulumi:local::trainyard::trainyard:index:Cluster${kind}::{name}"


@pytest.fixture
def export(stack: FakeStack, program: MakeProgram, tmp_path: Path) -> list[dict[str, object]]:
    """The resources that `pulumi stack export` prints."""
    resources: list[dict[str, object]] = [
        {"urn": urn(kind, f"{prefix}yard-gpu-{index}"), "type": kind}
        for index, (prefix, kind) in enumerate(zip(("", "", "yard-local-"), sorted(MACHINE_TYPES), strict=True))
    ]
    resources.append({"urn": urn("gcp:compute/disk:Disk", "yard-gpu-0"), "type": "gcp:compute/disk:Disk"})
    resources.append({"urn": urn("old", "yard-gpu-9"), "type": min(MACHINE_TYPES), "delete": True})
    (tmp_path / "export.json").write_text(json.dumps({"deployment": {"resources": resources}}))
    program(
        "pulumi",
        f'[[ $1 == up ]] && printf "%s" "$TRAINYARD_ROLL" >"{tmp_path}/names" || cat "{tmp_path}/export.json"',
    )
    return resources


@pytest.mark.usefixtures("export")
def test_machines_are_found_by_host_name() -> None:
    kind = min(MACHINE_TYPES)
    assert machine_urns("local", ["yard-gpu-0"]) == {"yard-gpu-0": urn(kind, "yard-gpu-0")}


@pytest.mark.usefixtures("export")
def test_local_machines_have_a_prefix_before_the_host_name() -> None:
    kind = max(MACHINE_TYPES)
    assert machine_urns("local", ["yard-gpu-2"]) == {"yard-gpu-2": urn(kind, "yard-local-yard-gpu-2")}


@pytest.mark.usefixtures("export")
def test_a_host_without_machine_is_named() -> None:
    with pytest.raises(StackError, match=r"stack local has no machine for yard-gpu-9\. Fix: run `pulumi refresh`"):
        machine_urns("local", ["yard-gpu-0", "yard-gpu-9"])


@pytest.mark.usefixtures("export")
def test_up_replaces_the_machines_with_new_user_data(tmp_path: Path) -> None:
    assert replace_machines("local", ["yard-gpu-0", "yard-gpu-1"], ["urn:a", "urn:b"]) == 0
    assert (tmp_path / "names").read_text() == "yard-gpu-0,yard-gpu-1"
    calls = (tmp_path / "programs" / "pulumi.calls").read_text().splitlines()
    assert calls[-1] == "up --stack local --yes --skip-preview --replace urn:a --replace urn:b"
