"""Tests for the resources that a key rotation changes, for each stack file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from components.stackfile.read import parse_stack
from tests.components.platforms.recording import ROOT, stack_text
from tests.components.platforms.test_contract import STACK_KEYS, USER_KEY, contract, declare

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:This resource is deprecated:DeprecationWarning"),
]

ROTATED = {
    "user": {"-user-key": {"private": "NEW-SECRET", "public": "ssh-ed25519 AAAAnew user@cluster"}},
    "munge": {"-munge-key": {"key": "TkVXLVNFQ1JFVA=="}},
}
Inputs = dict[tuple[str, str], dict[str, object]]
"""Inputs of resources by type and name."""
Made = Callable[[Mapping[str, Mapping[str, str]]], Inputs]


@pytest.fixture(params=sorted(path.name.split(".")[1] for path in (ROOT / "stacks").glob("Pulumi.*.yaml")))
def made(request: pytest.FixtureRequest, loops: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Declare the cluster from a stack file with the given keys."""
    text = stack_text(request.param)
    part = contract(parse_stack(text, "test").plan.provider)
    part.prepare(monkeypatch)
    # The test does not open a tunnel, because the clouds' command-line tools may be missing.
    monkeypatch.setattr("components.cluster.cluster.require_tunnel", lambda _: None)
    monkeypatch.setattr("components.cluster.bringup.open_tunnel", lambda *_: "127.0.0.1")

    def declared(keys: Mapping[str, Mapping[str, str]]) -> Inputs:
        return {(kind, name): inputs for kind, name, inputs in declare(part, text, keys).built.resources}

    return declared


def test_a_rotated_key_changes_only_the_bring_up(made: Made) -> None:
    before = made(STACK_KEYS)
    for rotated in ROTATED.values():
        after = made({**STACK_KEYS, **rotated})
        assert after.keys() == before.keys()
        changed = [key for key, inputs in before.items() if inputs != after[key]]
        assert sorted(name.partition("-bringup-")[2] for _, name in changed) == ["gate", "handover"]


def test_no_machine_has_the_user_key(made: Made) -> None:
    for (_, name), inputs in made(STACK_KEYS).items():
        assert USER_KEY["public"] not in repr(inputs), name
