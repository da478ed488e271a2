"""What the Pulumi SDK does for every resource and nobody reads, left undone.

Of a stack with hundreds of nodes it was most of a preview's time (docs/scale.md). Every name used here is one of the
SDK's internals, whose version requirements.lock holds; test_sdk_savings.py fails when those of a new one differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pulumi
from google.protobuf.struct_pb2 import Struct
from pulumi import _types
from pulumi.runtime import resource, rpc
from pulumi.runtime.proto.source_pb2 import StackTrace

from components.platforms.lean import kept_of

Resolvers = dict[str, Callable[..., None]]


def apply() -> None:
    """Have the SDK do less from now on, in this process. To be called once."""
    # It tells the engine five times of each resource what it is about to do, and stands still for every answer.
    pulumi.log.debug = lambda *args, **kwargs: None
    # It works out a URN of its own for each, which only tests without an engine read.
    resource.create_urn = urn_at_once(resource.create_urn)
    # It writes down from which lines of which files each was declared: for hundreds of nodes always the same ones.
    resource._get_stack_trace = StackTrace
    # It works out of every input what its type comes down to: of few types, a thousand times over.
    _types.unwrap_type = functools.cache(_types.unwrap_type)
    rpc.transfer_properties = kept_only(rpc.transfer_properties)
    rpc.resolve_outputs = kept_read(rpc.resolve_outputs)


def urn_at_once(create_urn: Callable[..., pulumi.Output[str]]) -> Callable[..., pulumi.Output[str]]:
    """Return the SDK's `create_urn`, but without its eight outputs where name, type and parent are plain text.

    The SDK asks it of every resource that has a parent, for the benefit of tests without an engine.
    """

    def urn(name: Any, type_: Any, parent: Any = None, *more: Any) -> pulumi.Output[str]:
        if not all(isinstance(word, str) for word in (name, type_, parent)):
            return create_urn(name, type_, parent, *more)
        return pulumi.Output.from_input(f"{parent[: parent.rfind('::')]}${type_}::{name}")

    return urn


def kept_only(transfer: Callable[..., Resolvers]) -> Callable[..., Resolvers]:
    """Return the SDK's `transfer_properties`, which makes the outputs of a resource, for those that are kept of it."""

    def transferred(made: pulumi.Resource, props: Any, custom: bool) -> Resolvers:
        kept = kept_of(made)
        if kept is None:
            return transfer(made, props, custom)
        return transfer(made, {name: props[name] for name in props if name in kept}, custom)

    return transferred


def kept_read(resolve: Callable[..., None]) -> Callable[..., None]:
    """Return the SDK's `resolve_outputs`, which reads the engine's answer, and of it only what is kept."""

    def resolved(made: pulumi.Resource, given: Struct, told: Struct, *more: Any, **named: Any) -> None:
        kept = kept_of(made)
        if kept is not None:
            given, told = _part(given, made, kept), _part(told, made, kept)
        resolve(made, given, told, *more, **named)

    return resolved


def _part(whole: Struct, made: pulumi.Resource, kept: frozenset[str]) -> Struct:
    kind: Any = type(made)
    names = {_spellings(kind).get(name, name) for name in kept}
    return Struct(fields={name: whole.fields[name] for name in names if name in whole.fields})


@functools.cache
def _spellings(kind: Any) -> dict[str, str]:
    """Return the names of a resource class's properties on the wire, by Python's."""
    return _types.resource_py_to_pulumi_names(kind)
