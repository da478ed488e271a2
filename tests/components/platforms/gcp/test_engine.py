"""GcpPlatform with the real engine and a simulated Google Cloud that validates inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.components.platforms.living import PlatformStack, platform_stack

pytestmark = pytest.mark.engine


@pytest.fixture
def cloud(tmp_path: Path) -> PlatformStack:
    """An empty stack. Skips the test if the Pulumi CLI is missing."""
    return platform_stack(tmp_path, "components.platforms.gcp.platform", "GcpPlatform")


@pytest.mark.full
def test_a_stack_with_filestore_is_created_and_destroyed(cloud: PlatformStack) -> None:
    files: dict[str, Any] = {"storage__shared": {"kind": "filestore", "size_gib": 2560}}
    cloud.put("gcp-a3-mega", **files)
    up = cloud.up()
    assert up.code == 0, up
    assert len(cloud.outputs()["keys"]) == 3
    # Adding a node does not change the other nodes.
    cloud.put("gcp-a3-mega", nodes__gpu__count=3, **files)
    planned = cloud.preview()
    assert "+ 1 to create" in planned.text, planned
    assert "to replace" not in planned.text
    assert "to update" not in planned.text
    # A changed identity replaces the machines and has no other effect.
    cloud.put("gcp-a3-mega", identity="two", **files)
    planned = cloud.preview()
    assert "+-3 to replace" in planned.text, planned
    assert "to update" not in planned.text
    careless = cloud.destroy()
    assert careless.code != 0
    assert "is protected" in careless.text
    assert cloud.kinds.count("Instance") == 1, "only the Filestore is left"
    cloud.put("gcp-a3-mega", platform__protect_storage=False, **files)
    assert cloud.up().code == 0
    meant = cloud.destroy()
    assert meant.code == 0, meant
    assert cloud.kinds == []
