"""What the SDK no longer does, and that what is left works as before. A new SDK whose internals differ fails here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pulumi
import pytest
from pulumi import _types
from pulumi.runtime import resource, rpc
from pulumi.runtime.mocks import MockMonitor

from components.platforms.lean import keeping
from components.sdk_savings import urn_at_once

SDKS_OWN = resource.create_urn
"""As it is before the tests of this folder have it replaced."""


class Answering(pulumi.runtime.Mocks):
    """Makes what it is asked for, and gives the inputs back with a word more."""

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        return f"id-{args.name}", {**args.inputs, "told": "by the cloud"}

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        return {}, None


class Listening(MockMonitor):
    """Keeps what the SDK asks of the engine."""

    def __init__(self) -> None:
        super().__init__(Answering())
        self.requests: list[Any] = []

    def RegisterResource(self, request: Any) -> Any:
        self.requests.append(request)
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]


class Many(pulumi.CustomResource):
    """A resource class as the SDKs have them: the SDK looks for its constructor's caller."""

    def __init__(self, name: str, given: dict[str, Any], options: pulumi.ResourceOptions) -> None:
        super().__init__("test:index:Many", name, given, options)


def declared(kept: tuple[str, ...] | None) -> tuple[dict[str, pulumi.Output[Any]], Any, list[Any]]:
    """Declare a resource; return its outputs by name, the request for it, and what its output `told` said."""
    monitor, found, heard = Listening(), dict[str, pulumi.Output[Any]](), list[Any]()
    pulumi.runtime.set_mocks(monitor.mocks, preview=False, monitor=monitor)

    def program() -> pulumi.Output[None]:
        transformations = [] if kept is None else [keeping({"test:index:Many": kept})]
        options = pulumi.ResourceOptions(transformations=transformations)
        given = {"given": {"deep": [1, 2]}, "none": None, "told": None}
        made = Many("one", given, options)
        found.update({name: value for name, value in vars(made).items() if isinstance(value, pulumi.Output)})
        return found["told"].apply(heard.append)

    pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
    [request] = [request for request in monitor.requests if request.type == "test:index:Many"]
    return found, request, heard


def test_a_resource_of_hundreds_has_the_outputs_that_are_read(loops: asyncio.AbstractEventLoop) -> None:
    outputs, _, heard = declared(("told",))
    assert sorted(outputs) == ["id", "told", "urn"]
    assert heard == ["by the cloud"]


def test_any_other_has_all_of_them(loops: asyncio.AbstractEventLoop) -> None:
    outputs, _, heard = declared(None)
    assert sorted(outputs) == ["given", "id", "none", "told", "urn"]
    assert heard == ["by the cloud"]


def test_what_was_given_is_asked_for_all_the_same(loops: asyncio.AbstractEventLoop) -> None:
    _, lean, _ = declared(("told",))
    _, whole, _ = declared(None)
    assert lean.object == whole.object
    assert lean.object["given"]["deep"][1] == 2


def test_no_request_says_from_which_lines_it_came(loops: asyncio.AbstractEventLoop) -> None:
    _, request, _ = declared(None)
    assert not request.HasField("sourcePosition")
    assert not request.stackTrace.frames


def spied(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """Have a function note the first argument of each call."""
    first: list[Any] = []
    own = getattr(module, name)

    def noted(*given: Any, **named: Any) -> Any:
        first.append(given[0])
        return own(*given, **named)

    monkeypatch.setattr(module, name, noted)
    return first


def test_of_the_answer_only_what_is_kept_is_read(
    loops: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = spied(monkeypatch, rpc, "translate_output_properties")
    declared(("told",))
    assert read == ["by the cloud"]


def test_the_sdk_asks_our_own_for_a_urn(loops: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resource.create_urn is not SDKS_OWN
    asked = spied(monkeypatch, resource, "create_urn")
    declared(None)
    assert "one" in asked


@pulumi.input_type
class Given:
    """Inputs as the SDKs have them, with their types."""

    def __init__(self, size: pulumi.Input[int]) -> None:
        pulumi.set(self, "size", size)

    @property
    @pulumi.getter
    def size(self) -> pulumi.Input[int]:
        found: pulumi.Input[int] = pulumi.get(self, "size")
        return found


def test_what_a_type_comes_down_to_is_worked_out_once(loops: asyncio.AbstractEventLoop) -> None:
    monitor = Listening()
    pulumi.runtime.set_mocks(monitor.mocks, preview=False, monitor=monitor)

    def program() -> list[pulumi.Output[str]]:
        given: Any = Given(1)
        return [pulumi.CustomResource("test:index:Typed", name, given).id for name in ("one", "two", "three")]

    memory: Any = _types.unwrap_type
    before = memory.cache_info()
    pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
    assert [request.object["size"] for request in monitor.requests if request.custom] == [1, 1, 1]
    assert memory.cache_info().hits - before.hits >= 2


def test_the_sdk_tells_no_debug_words(loops: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(pulumi.log, "_log", lambda *args: said.append(str(args)))
    declared(None)
    assert not said


@pytest.mark.parametrize("parent", ["urn:pulumi:s::p::trainyard:index:Cluster$x:y:Z::c", None])
@pytest.mark.parametrize("given", [str, pulumi.Output.from_input])
def test_a_urn_is_the_sdks_own(
    given: Callable[[str], pulumi.Input[str]], parent: str | None, loops: asyncio.AbstractEventLoop
) -> None:
    heard: list[list[str]] = []
    slow = SDKS_OWN
    pulumi.runtime.set_mocks(Answering(), preview=False)

    def program() -> pulumi.Output[None]:
        urns = pulumi.Output.all(*(create(given("gpu-1"), "a:b:C", parent) for create in (slow, urn_at_once(slow))))
        return urns.apply(heard.append)

    pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
    [[expected, found]] = heard
    assert found == expected
    assert expected.endswith("a:b:C::gpu-1")
