"""A platform's whole life under the real engine, on a simulated cloud: what the tests of every platform share."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.offline.cloud.stack import ROOT, TestStack
from tests.platforms.recording import stack_text

_PROGRAM = """
import sys
from pathlib import Path

sys.path.insert(0, {root!r})

from components.platforms.base import PlatformArgs
from components.stackfile import read_stack
from {module} import {kind}


def user_data(shared):
    known = pulumi.Output.from_input(shared)
    return known.apply(lambda files: lambda host: f"{word} {{host.name}} {{files.source}} {{files.disk}}")


stack = read_stack(Path("stack.yaml"))
key = pulumi.Output.from_input("ssh-ed25519 AAAAadmin admin@cluster")
args = PlatformArgs(
    spec=stack.spec.platform, cluster=stack.spec, plan=stack.plan, user_data=user_data, admin_key=key, cluster_key=key
)
platform = {kind}("c", args)
pulumi.export("keys", pulumi.Output.all(*(host.host_key for host in platform.hosts)))
"""


class PlatformStack(TestStack):
    """A stack that makes the machines of one of the project's stack files, edited."""

    __test__ = False
    module: str
    """Where the platform's class is, and its name."""
    kind: str

    def put(self, stack: str, word: str = "first", **edits: Any) -> None:
        """Set what the stack file says, and the word that every machine's user-data begins with."""
        (self.folder / "stack.yaml").write_text(stack_text(stack, **edits))
        self.write(_PROGRAM.format(root=str(ROOT), module=self.module, kind=self.kind, word=word))


def platform_stack(folder: Path, module: str, kind: str) -> PlatformStack:
    """Return an empty stack of that platform. Skips the test where there is no Pulumi CLI."""
    if not (shutil.which("pulumi") or (ROOT / ".trainyard" / "bin" / "pulumi").exists()):
        pytest.skip("there is no pulumi here (make setup)")
    stack = PlatformStack(folder)
    stack.module, stack.kind = module, kind
    return stack
