"""Which outputs a resource keeps, and what becomes of one that it does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pulumi
import pytest

from components.platforms.lean import keeping


class Silent(pulumi.runtime.Mocks):
    """Makes what it is asked for and says nothing."""

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        return f"id-{args.name}", {**args.inputs, "told": "by the cloud", "unread": "too"}

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        return {}, None


def made(kind: str) -> Any:
    options = pulumi.ResourceOptions(transformations=[keeping({"test:index:Many": ("told",)})])
    return pulumi.CustomResource(kind, "one", {"given": 1, "told": None, "unread": None}, options)


def told(kind: str, name: str) -> list[Any]:
    heard: list[Any] = []
    pulumi.runtime.set_mocks(Silent(), preview=False)

    def program() -> pulumi.Output[None]:
        output: pulumi.Output[Any] = vars(made(kind))[name]
        return output.apply(heard.append)

    pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
    return heard


def test_what_is_named_is_kept(loops: asyncio.AbstractEventLoop) -> None:
    assert told("test:index:Many", "told") == ["by the cloud"]


def test_other_types_keep_everything(loops: asyncio.AbstractEventLoop) -> None:
    assert told("test:index:Few", "unread") == ["too"]


@pytest.mark.parametrize("name", ["unread", "given"])
def test_what_is_left_out_cannot_be_read_by_mistake(loops: asyncio.AbstractEventLoop, name: str) -> None:
    with pytest.raises(AttributeError, match=f"one keeps no output `{name}`; name it where its platform says"):
        told("test:index:Many", name)


def test_what_is_left_out_cannot_be_given_on_by_mistake(loops: asyncio.AbstractEventLoop) -> None:
    # The outputs of the one that is refused fail with it, and nobody asks them; the loop would say so at the very end.
    loops.set_exception_handler(lambda *_: None)
    pulumi.runtime.set_mocks(Silent(), preview=False)

    def program() -> pulumi.Output[str]:
        first = made("test:index:Many")
        second = pulumi.CustomResource("test:index:Few", "two", {"given": vars(first)["unread"]})
        return second.id

    with pytest.raises(Exception, match=r"unexpected input|keeps no output"):
        pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
