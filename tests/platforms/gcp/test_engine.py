"""GcpPlatform under the real engine, on a simulated Google Cloud that holds every input against the SDK's classes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.offline.cloud.stack import ROOT, TestStack
from tests.platforms.recording import stack_text

pytestmark = pytest.mark.engine

PROGRAM = """
import sys
from pathlib import Path

sys.path.insert(0, {root!r})

from components.platforms.base import PlatformArgs
from components.platforms.gcp.platform import GcpPlatform
from components.stackfile import read_stack


def user_data(host, shared):
    return pulumi.Output.from_input(shared).apply(lambda known: f"{word} {{host.name}} {{known.source}} {{known.disk}}")


stack = read_stack(Path("stack.yaml"))
key = pulumi.Output.from_input("ssh-ed25519 AAAAadmin admin@cluster")
args = PlatformArgs(
    spec=stack.spec.platform, cluster=stack.spec, plan=stack.plan, user_data=user_data, admin_key=key
)
platform = GcpPlatform("c", args)
pulumi.export("keys", pulumi.Output.all(*(host.host_key for host in platform.hosts)))
"""


class GcpStack(TestStack):
    """A stack that makes the machines of one of the project's stack files, edited."""

    __test__ = False

    def put(self, stack: str, word: str = "first", **edits: Any) -> None:
        """Set what the stack file says, and the word that every machine's user-data begins with."""
        (self.folder / "stack.yaml").write_text(stack_text(stack, **edits))
        self.write(PROGRAM.format(root=str(ROOT), word=word))


@pytest.fixture
def cloud(tmp_path: Path) -> GcpStack:
    """An empty stack. Skips where there is no Pulumi CLI."""
    if not (shutil.which("pulumi") or (ROOT / ".trainyard" / "bin" / "pulumi").exists()):
        pytest.skip("there is no pulumi here (make setup)")
    return GcpStack(tmp_path)


def test_a_life_of_nine_networks_and_a_filestore(cloud: GcpStack) -> None:
    files: dict[str, Any] = {"storage__shared": {"kind": "filestore", "size_gib": 2560}}
    cloud.put("gcp-a3-mega", **files)
    up = cloud.up()
    assert up.code == 0, up
    assert len(cloud.outputs()["keys"]) == 3
    # One more node leaves the others alone.
    cloud.put("gcp-a3-mega", nodes__gpu__count=3, **files)
    planned = cloud.preview()
    assert "+ 1 to create" in planned.text, planned
    assert "to replace" not in planned.text
    assert "to update" not in planned.text
    # New user-data is said to make new machines, and nothing else changes.
    cloud.put("gcp-a3-mega", word="second", **files)
    planned = cloud.preview()
    assert "+-3 to replace" in planned.text, planned
    assert "to update" not in planned.text
    careless = cloud.destroy()
    assert careless.code != 0
    assert "is protected" in careless.text
    assert cloud.kinds.count("Instance") == 1, "of machines and Filestore, only the Filestore is left"
    cloud.put("gcp-a3-mega", platform__protect_storage=False, **files)
    assert cloud.up().code == 0
    meant = cloud.destroy()
    assert meant.code == 0, meant
    assert cloud.kinds == []
