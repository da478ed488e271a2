"""Answers of commands that ran on hosts, for the recorder."""

from __future__ import annotations

import asyncio
from typing import Any

import pulumi
import pytest

from tests.platforms.recording import Build, record


@pytest.fixture
def build(loops: asyncio.AbstractEventLoop) -> Build:
    """Run the platform on an edited stack with a recorder in the engine's place."""
    return lambda stack, **edits: record(stack, edits, _answer, _tell)


def _answer(args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
    return f"id-{args.name}", {**args.inputs, "stdout": f"said by {args.name}\n", "stderr": ""}


def _tell(args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
    raise AssertionError("the hosts platform asks no cloud")
