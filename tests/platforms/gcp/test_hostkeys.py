"""The host key comes late: it is asked for until it is there, and no other refusal is taken for 'not yet'."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pulumi
import pytest

from components.errors import PlatformError
from components.platforms.gcp import hostkeys

NOT_YET = "invoke of gcp:compute/... failed: googleapi: Error 404: The resource 'hostkeys/ssh-ed25519' was not found"
Answers = Callable[[list[Any]], list[dict[str, Any]]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Answer one ask after the other; a text is a refusal. Returns what was asked, and nobody waits."""

    def arrange(replies: list[Any]) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []
        left = iter(replies)

        async def invoke(token: str, where: dict[str, Any], options: pulumi.InvokeOptions) -> dict[str, Any]:
            asked.append({"token": token, **where})
            reply = next(left)
            if isinstance(reply, str):
                raise RuntimeError(reply)
            return {"variableValue": reply[0]}

        async def nobody_waits(seconds: float) -> None:
            assert seconds > 0

        monkeypatch.setattr(pulumi.runtime, "invoke_async", invoke)
        monkeypatch.setattr(asyncio, "sleep", nobody_waits)
        monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: False)
        return asked

    return arrange


def ask() -> str:
    return asyncio.run(hostkeys._published("c-head", "us-central1-a", "p-1", pulumi.InvokeOptions()))


def test_asks_until_the_key_is_there(answers: Answers) -> None:
    asked = answers([NOT_YET, NOT_YET, ("",), ("AAAAkey\n",)])
    assert ask() == "ssh-ed25519 AAAAkey"
    assert len(asked) == 4
    assert asked[0] == {
        "token": "gcp:compute/getInstanceGuestAttributes:getInstanceGuestAttributes",
        "name": "c-head",
        "zone": "us-central1-a",
        "project": "p-1",
        "variableKey": "hostkeys/ssh-ed25519",
    }


def test_a_key_with_its_kind_is_taken_as_it_is(answers: Answers) -> None:
    answers([("ssh-ed25519 AAAAkey",)])
    assert ask() == "ssh-ed25519 AAAAkey"


def test_a_refusal_is_told_at_once(answers: Answers) -> None:
    asked = answers(["googleapi: Error 403: Required 'compute.instances.getGuestAttributes' permission", ("x",)])
    with pytest.raises(RuntimeError, match="Error 403"):
        ask()
    assert len(asked) == 1


def test_a_machine_that_never_speaks_is_named_with_the_next_step(answers: Answers) -> None:
    asked = answers([NOT_YET] * 1000)
    with pytest.raises(PlatformError, match=r"c-head has not published.*get-serial-port-output c-head"):
        ask()
    assert 60 <= len(asked) <= 180


def test_a_preview_asks_once(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers([NOT_YET] * 3)
    monkeypatch.setattr(pulumi.runtime, "is_dry_run", lambda: True)
    with pytest.raises(PlatformError):
        ask()
    assert len(asked) == 1
