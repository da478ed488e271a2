"""Tests for the SSH host keys of Azure machines: retries and validation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pulumi
import pytest

from components.platforms.azure import nodes
from offline.cloud.outputs import host_key

KEY = host_key("c-gpu-0")
Answers = Callable[[list[Any]], list[dict[str, Any]]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Return results in order: a string is the output of the command, and an exception is an API error."""

    def arrange(replies: list[Any]) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []
        left = iter(replies)

        async def invoke(token: str, where: dict[str, Any], options: pulumi.InvokeOptions) -> dict[str, Any]:
            asked.append({"token": token, **where})
            reply = next(left)
            if isinstance(reply, Exception):
                raise reply
            return {"instanceView": None if reply is None else {"output": reply}}

        async def nothing_waits(seconds: float) -> None:
            assert seconds > 0

        monkeypatch.setattr(pulumi.runtime, "invoke_async", invoke)
        monkeypatch.setattr(asyncio, "sleep", nothing_waits)
        monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
        monkeypatch.setattr(pulumi.log, "debug", lambda *arguments: None)
        return asked

    return arrange


def created(minutes_ago: float) -> str:
    # Azure's timestamps have seven fractional digits.
    then = datetime.now(UTC) - timedelta(minutes=minutes_ago)
    return then.strftime("%Y-%m-%dT%H:%M:%S.%f7+00:00")


def ask(minutes_ago: float | None = 1) -> str:
    """Return the key of a machine that was created so many minutes ago, or at an unknown time."""
    time = "" if minutes_ago is None else created(minutes_ago)
    return asyncio.run(nodes._read_key("c-gpu-0", "c-trainyard", time, pulumi.InvokeOptions()))


def test_a_new_machine_is_read_until_it_has_a_key(answers: Answers) -> None:
    asked = answers([RuntimeError("409 OperationNotAllowed"), None, "", f"{KEY}\n"])
    assert ask() == KEY
    assert len(asked) == 4
    assert asked[0] == {
        "token": "azure-native:compute:getVirtualMachineRunCommandByVirtualMachine",
        "resourceGroupName": "c-trainyard",
        "vmName": "c-gpu-0",
        "runCommandName": "trainyard-host-key",
        "expand": "instanceView",
    }


def test_a_new_machine_without_a_key_returns_an_empty_key(answers: Answers) -> None:
    asked = answers([None] * 1000)
    assert ask() == ""
    assert 60 <= len(asked) <= 120


@pytest.mark.parametrize(
    ("reply", "minutes_ago", "preview"),
    [
        (None, 21, False),
        ("", 21, False),
        (RuntimeError("404 ResourceNotFound"), 21, False),
        (None, None, False),
        (None, 1, True),
    ],
)
def test_an_older_machine_or_a_preview_gets_one_attempt(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, reply: Any, minutes_ago: float | None, preview: bool
) -> None:
    asked = answers([reply, KEY])
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: preview)
    assert ask(minutes_ago) == ""
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("output", "key"),
    [
        (KEY, KEY),
        (f"Enable succeeded: \n{KEY}\r\n", KEY),
        (f"{KEY}\n{KEY}\n", KEY),
        ("", ""),
        ("ssh-ed25519 ", ""),
        (f"{KEY} root@c-gpu-0", ""),
        (f"{KEY}=", ""),
        (f"{KEY}\n{host_key('another')}", ""),
        ("ssh-rsa AAAAB3Nza", ""),
        (f"@cert-authority * {KEY}", ""),
        (f"{KEY[:20]}\n{KEY[20:]}", ""),
    ],
)
def test_only_a_single_complete_key_is_returned(output: str, key: str) -> None:
    assert nodes.key_in(output) == key
