"""Each cloud's platform with the real engine and a simulated cloud that validates inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.components.platforms.living import platform_stack

pytestmark = pytest.mark.engine

FILES = {"storage__shared": {"kind": "filestore", "size_gib": 2560}}


@pytest.mark.parametrize(
    ("stack", "edits", "counts", "kept"),
    [
        # Azure would refuse to update run commands, so each of them is replaced with its machine.
        ("azure-a100", {}, (3, 6), "Disk"),
        pytest.param("gcp-a3-mega", FILES, (1, 3), "Instance", marks=pytest.mark.full),
    ],
)
def test_a_stack_is_created_changed_and_destroyed(
    tmp_path: Path, stack: str, edits: dict[str, Any], counts: tuple[int, int], kept: str
) -> None:
    provider, (for_a_node, replaced) = stack.partition("-")[0], counts
    cloud = platform_stack(tmp_path, f"components.platforms.{provider}.platform", f"{provider.title()}Platform")
    cloud.put(stack, **edits)
    up = cloud.up()
    assert up.code == 0, up
    assert len(cloud.outputs()["keys"]) == 3
    # Adding a node does not change the other nodes.
    cloud.put(stack, nodes__gpu__count=3, limits={}, **edits)
    planned = cloud.preview()
    assert f"+ {for_a_node} to create" in planned.text, planned
    assert "to replace" not in planned.text
    assert "to update" not in planned.text
    # A changed identity replaces the machines and has no other effect.
    cloud.put(stack, identity="two", **edits)
    planned = cloud.preview()
    assert f"+-{replaced} to replace" in planned.text, planned
    assert "to update" not in planned.text
    again = cloud.up()
    assert again.code == 0, again
    careless = cloud.destroy()
    assert careless.code != 0
    assert "is protected" in careless.text
    assert cloud.kinds.count(kept) == 1, "only the shared storage is left"
    cloud.put(stack, platform__protect_storage=False, **edits)
    assert cloud.up().code == 0
    meant = cloud.destroy()
    assert meant.code == 0, meant
    assert cloud.kinds == []
