"""Mock outputs for commands on hosts, and a machine with a ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pulumi
import pytest

from tests.components.platforms.hosts.ledger import HOSTS, Machine
from tests.components.platforms.recording import Build, record


@pytest.fixture
def build(loops: asyncio.AbstractEventLoop) -> Build:
    """Declare the platform for an edited stack, with mocks instead of the engine."""
    return lambda stack, **edits: record(stack, edits, _answer, _tell)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with configuration files written by its owner."""
    made = Machine(tmp_path)
    made.write("etc/hosts", HOSTS)
    made.write("etc/munge/munge.key", "theirs", 0o400)
    made.write("etc/default/slurmd", "SLURMD_OPTIONS=''\n", 0o600)
    return made


def _answer(args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
    return f"id-{args.name}", {**args.inputs, "stdout": f"output of {args.name}\n", "stderr": ""}


def _tell(args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
    raise AssertionError("the hosts platform must not invoke functions")
