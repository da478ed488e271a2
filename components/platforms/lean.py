"""Resources of which there are hundreds: of each of them only what is read is kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NoReturn

import pulumi

_KEPT = "_trainyard_kept"


class LeftOut:
    """Stands where an output would be that `keeping` does not keep: to use it is an error, not an empty value."""

    def __init__(self, resource: str, name: str) -> None:
        self._words = f"{resource} keeps no output `{name}`; name it where its platform says what is kept of the type"

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(self._words)


def keeping(outputs: Mapping[str, Collection[str]]) -> pulumi.ResourceTransformation:
    """Return what makes every resource of these types keep the named outputs only, besides its id.

    The SDK makes an output of every property that a type has, fifty for a machine, each of six objects of the event
    loop's; of a large preview that is a third of the program's time. Names are Python's. What was given stays an input,
    and is an output only where sdk_savings.py is not applied.
    """

    def transformed(args: pulumi.ResourceTransformationArgs) -> pulumi.ResourceTransformationResult | None:
        if args.type_ not in outputs:
            return None
        kept = frozenset(outputs[args.type_])
        given = {name: value for name, value in args.props.items() if value is not None or name in kept}
        vars(args.resource)[_KEPT] = kept
        for name in args.props.keys() - kept:
            vars(args.resource)[name] = LeftOut(args.name, name)
        return pulumi.ResourceTransformationResult(given, args.opts)

    return transformed


def kept_of(resource: pulumi.Resource) -> frozenset[str] | None:
    """Return the names of the outputs that `keeping` leaves a resource; None for one that keeps all."""
    kept: frozenset[str] | None = vars(resource).get(_KEPT)
    return kept
