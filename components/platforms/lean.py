"""Resources of which there are hundreds: the SDK does less for each of them than it would."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

import pulumi


class LeftOut:
    """Stands where an output would be that `keeping` does not keep: to use it is an error, not an empty value."""

    def __init__(self, resource: str, name: str) -> None:
        self._words = f"{resource} keeps no output `{name}`; name it where its platform says what is kept of the type"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(self._words)


def keeping(outputs: Mapping[str, Collection[str]]) -> pulumi.ResourceTransformation:
    """Return what makes every resource of these types keep the named outputs only, besides its id and what was given.

    The SDK makes an output of every property that a type has, fifty for a machine, each of six objects of the event
    loop's; of a large preview that is a third of the program's time. Names are Python's.
    """

    def transformed(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if args.type_ not in outputs:
            return None
        kept = {name: value for name, value in args.props.items() if value is not None or name in outputs[args.type_]}
        for name in args.props.keys() - kept.keys():
            vars(args.resource)[name] = LeftOut(args.name, name)
        return pulumi.ResourceTransformationResult(kept, args.opts)

    return transformed


def urn_at_once(create_urn: Callable[..., pulumi.Output[str]]) -> Callable[..., pulumi.Output[str]]:
    """Return the SDK's `create_urn`, but without its eight outputs where name, type and parent are plain text.

    The SDK asks it of every resource that has a parent, for the benefit of tests without an engine.
    """

    def urn(name: Any, type_: Any, parent: Any = None, *more: Any) -> pulumi.Output[str]:
        if not all(isinstance(word, str) for word in (name, type_, parent)):
            return create_urn(name, type_, parent, *more)
        return pulumi.Output.from_input(f"{parent[: parent.rfind('::')]}${type_}::{name}")

    return urn
