"""Resources of which there are hundreds: they keep only those outputs that somebody reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NoReturn

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
