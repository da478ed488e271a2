"""Stacks that an older version of this project created are not changed by the current version.

The folder former_states contains the states that commit 4a35eb0 wrote with the real engine (`pulumi stack export`) on
simulated clouds. In that version, machines, disks and placements were children of the platform.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from tests.components.platforms.living import platform_stack

pytestmark = pytest.mark.engine

UPDATED = {"azure-native:network:Subnet"}
"""Types of resources that are updated: the subnet for NetApp Files no longer sets the default for outbound access."""
STATES = sorted((Path(__file__).parent / "former_states").glob("*.json.gz"))


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.name.removesuffix(".json.gz"))
def test_an_older_stack_keeps_its_resources(state: Path, tmp_path: Path) -> None:
    name = state.name.removesuffix(".json.gz")
    cloud = "Azure" if name.startswith("azure") else "Gcp"
    stack = platform_stack(tmp_path, f"components.platforms.{cloud.lower()}.platform", f"{cloud}Platform")
    stack.put(name, limits={})
    (tmp_path / "state.json").write_bytes(gzip.decompress(state.read_bytes()))
    imported = stack("stack", "import", "-s", "test", "--file", str(tmp_path / "state.json"))
    assert imported.code == 0, imported
    planned = stack.preview("--diff")
    assert planned.code == 0, planned
    assert not re.search(r"to (replace|delete)", planned.text), planned
    assert set(re.findall(r"^\s*~ (\S+?): \(update\)", planned.text, re.M)) <= UPDATED, planned
    # Only the new components are created.
    created = re.findall(r"^\s*\+ (\S+?): \(create\)", planned.text, re.M)
    assert created
    assert {kind for kind in created if not kind.startswith("trainyard:")} == set(), planned
