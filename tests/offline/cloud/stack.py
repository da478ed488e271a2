"""Stacks with a small Pulumi program that the real engine deploys to the simulated clouds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from offline.cloud.faults import FILE, Fault
from offline.cloud.world import Record, World
from yard.stack.pulumi import end_session
from yard.stack.workspace import simulated_environment

ROOT = Path(__file__).parents[3]
SECONDS = 300.0
_SOON = 120.0
_HEAD = "import json, pulumi\n"
_RAW = """
def made(token, called, opts=None, /, **inputs):
    kind = type("Raw", (pulumi.CustomResource,), {})
    return kind(token, called, {**inputs, **outputs}, opts)

outputs = {"selfLink": None}
"""
"""Creates resources from type tokens. No SDK is imported, because the import would take seconds."""


def require_pulumi() -> None:
    """Skip the test if the Pulumi CLI is missing."""
    if not (shutil.which("pulumi") or (ROOT / ".trainyard" / "bin" / "pulumi").exists()):
        pytest.skip("the Pulumi CLI is missing (make setup)")


@dataclass(frozen=True, repr=False)
class Run:
    code: int
    text: str

    def __repr__(self) -> str:
        return f"exit code {self.code}:\n{self.text}"

    def passed(self) -> str:
        """Return the output of a command that must have succeeded."""
        assert self.code == 0, self
        return self.text

    def failure(self) -> str:
        """Return the output of a command that must have failed."""
        assert self.code != 0, self
        return self.text


class TestStack:
    __test__ = False

    def __init__(self, folder: Path, original: TestStack | None = None) -> None:
        """Create a stack in `folder`: an empty stack, or a copy of the stack `original` with its simulated clouds."""
        self.folder = folder / "program"
        if original:
            shutil.copytree(original.folder.parent, folder, symlinks=True, dirs_exist_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        python = Path(sys.executable).parent
        search = f"{python}:{ROOT / '.trainyard' / 'bin'}:{os.environ['PATH']}"
        self.environment = simulated_environment({**os.environ, "PATH": search}, folder)
        self.world = World("test", folder / "clouds")
        self._faults: list[dict[str, Any]] = []
        (self.folder / "Pulumi.yaml").write_text("name: small\nruntime: python\n")
        if not original:
            assert self("stack", "init", "test").code == 0

    def write(self, text: str, *, raw: bool = False) -> None:
        (self.folder / "__main__.py").write_text(f"{_HEAD}{_RAW if raw else ''}{text}")

    def faults(self, *entries: Mapping[str, Any]) -> None:
        self.world.folder.mkdir(parents=True, exist_ok=True)
        self._faults = [dict(entry) for entry in entries]
        (self.world.folder / FILE).write_text(yaml.safe_dump(self._faults))

    @property
    def met_a_fault(self) -> bool:
        return any(self.world.counted(Fault(**entry).key) for entry in self._faults)

    def __call__(self, *arguments: str) -> Run:
        process = self.start(*arguments)
        text, _ = process.communicate(timeout=SECONDS)
        return Run(process.returncode, text)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start pulumi in a new session. Its stdout and stderr are one stream."""
        return subprocess.Popen(
            ["pulumi", *arguments, "--non-interactive"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill an engine with SIGKILL, terminate its plugins, and remove its lock."""
        assert process.stdout
        with process.stdout:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            end_session(process.pid)
        # `python -m tools.stack` does this before every operation.
        locks = self.world.folder.parents[1] / "state" / ".pulumi" / "locks" / "organization" / "small" / "test"
        for lock in locks.glob("*"):
            lock.unlink()

    def preview(self, *options: str) -> Run:
        return self("preview", "-s", "test", *options)

    def up(self, *options: str) -> Run:
        return self("up", "-s", "test", "--yes", "--skip-preview", *options)

    def deploy(self, *options: str) -> str:
        """Run `pulumi up`, which must succeed. Return its output."""
        return self.up(*options).passed()

    def refresh(self, *options: str) -> Run:
        return self("refresh", "-s", "test", "--yes", "--skip-preview", *options)

    def destroy(self) -> Run:
        return self("destroy", "-s", "test", "--yes", "--skip-preview")

    def outputs(self) -> dict[str, Any]:
        """Return the stack's outputs, including secrets."""
        found: dict[str, Any] = json.loads(self("stack", "output", "--json", "--show-secrets", "-s", "test").text)
        return found

    @property
    def kinds(self) -> Sequence[str]:
        """Sorted types of the resources in the simulated clouds."""
        return sorted(record.token.rpartition(":")[2] for record in self.world.records())

    def record(self, name: str) -> Record:
        (found,) = (record for record in self.world.records() if record.urn.endswith(f"::{name}"))
        return found


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true, or fail after two minutes."""
    deadline = time.monotonic() + _SOON
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
