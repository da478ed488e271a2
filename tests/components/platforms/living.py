"""Stacks with the real engine and a simulated cloud."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.components.platforms.recording import stack_text
from tests.offline.cloud.stack import ROOT, TestStack, require_pulumi

_PROGRAM = """
import sys
from pathlib import Path

sys.path.insert(0, {root!r})

from components.node.user_data import AccessKeys, Birth
from components.platforms.base import PlatformArgs
from components.stackfile.read import read_stack
from components.platforms.{provider}.platform import {kind}


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
access = pulumi.Output.from_input(AccessKeys("ssh-ed25519 AAAAadmin admin@cluster"))
args = Args(plan=stack.plan, access=access)
platform = {kind}("c", args)
pulumi.export("keys", pulumi.Output.all(*(host.host_key for host in platform.hosts)))
"""


class PlatformStack(TestStack):
    """A stack that creates the machines of an edited stack file."""

    __test__ = False

    def put(self, stack: str, word: str = "first", identity: str = "one", **edits: Any) -> None:
        """Write the stack file and the program. User-data begins with `word`, and identities begin with `identity`."""
        (self.folder / "stack.yaml").write_text(stack_text(stack, **edits))
        provider = stack.partition("-")[0]
        kind = f"{provider.title()}Platform"
        self.write(_PROGRAM.format(root=str(ROOT), provider=provider, kind=kind, word=word, identity=identity))


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

    def planned(self, *options: str) -> dict[str, str]:
        """Return the operations of a preview by resource name, without components and unchanged resources."""
        text = self.preview("--json", *options).text
        steps = json.loads(text[text.index("{") : text.rindex("}") + 1])["steps"]
        real = [step for step in steps if "trainyard:" not in step["urn"].split("::")[2].rpartition("$")[2]]
        return {step["urn"].rpartition("::")[2]: step["op"] for step in real if step["op"] != "same"}

    def urn(self, name: str) -> str:
        return self.record(name).urn


def whole_stack(folder: Path) -> WholeStack:
    """Return an empty stack. Skips the test if the Pulumi CLI is missing."""
    require_pulumi()
    return WholeStack(folder)
