"""Stacks on one platform with the real engine and a simulated cloud."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.components.platforms.recording import stack_text
from tests.offline.cloud.stack import ROOT, TestStack

_PROGRAM = """
import sys
from pathlib import Path

sys.path.insert(0, {root!r})

from components.node.user_data import Birth
from components.platforms.base import PlatformArgs
from components.stackfile.read import read_stack
from {module} import {kind}


class Args(PlatformArgs):
    def births(self, shared):
        known = pulumi.Output.from_input(shared)

        def birth(name):
            text = f"{word} {{name}}"
            return known.apply(
                lambda files: Birth(user_data=text, identity=f"{identity} {{name}} {{files.source}} {{files.disk}}")
            )

        return {{host.name: birth(host.name) for host in self.plan.hosts}}


stack = read_stack(Path("stack.yaml"))
key = pulumi.Output.from_input("ssh-ed25519 AAAAadmin admin@cluster")
args = Args(plan=stack.plan, admin_key=key, cluster_key=key)
platform = {kind}("c", args)
pulumi.export("keys", pulumi.Output.all(*(host.host_key for host in platform.hosts)))
"""


class PlatformStack(TestStack):
    """A stack that creates the machines of an edited stack file."""

    __test__ = False
    module: str
    """Name of the module that contains the platform's class, whose name is `kind`."""
    kind: str

    def put(self, stack: str, word: str = "first", identity: str = "one", **edits: Any) -> None:
        """Write the stack file and the program. User-data begins with `word`, and identities begin with `identity`."""
        (self.folder / "stack.yaml").write_text(stack_text(stack, **edits))
        program = _PROGRAM.format(root=str(ROOT), module=self.module, kind=self.kind, word=word, identity=identity)
        self.write(program)


_WHOLE_PROGRAM = f"""
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
%s
runpy.run_path({str(ROOT / "__main__.py")!r})
"""


class WholeStack(TestStack):
    """The stack `test`, which runs the project's program with the contents of a stack file."""

    __test__ = False

    def put(self, stack: str, first: str = "", **edits: Any) -> None:
        """Set the stack file and keep Pulumi's encryption salt. The program runs the statements in `first` first."""
        file = self.folder / "Pulumi.test.yaml"
        salt = [line for line in file.read_text().splitlines() if line.startswith("encryptionsalt:")]
        file.write_text("\n".join([*salt, stack_text(stack, **edits)]))
        (self.folder / "__main__.py").write_text(_WHOLE_PROGRAM % first)

    def urn(self, name: str) -> str:
        """Return the URN of a resource by its Pulumi name."""
        return self.record(name).urn


def whole_stack(folder: Path) -> WholeStack:
    """Return an empty stack. Skips the test if the Pulumi CLI is missing."""
    _require_pulumi()
    return WholeStack(folder)


def _require_pulumi() -> None:
    if not (shutil.which("pulumi") or (ROOT / ".trainyard" / "bin" / "pulumi").exists()):
        pytest.skip("the Pulumi CLI is missing (make setup)")


def platform_stack(folder: Path, module: str, kind: str) -> PlatformStack:
    """Return an empty stack on a platform. Skips the test if the Pulumi CLI is missing."""
    _require_pulumi()
    stack = PlatformStack(folder)
    stack.module, stack.kind = module, kind
    return stack
