"""Aliases for resources that moved into a component."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi


def moved_from(opts: pulumi.ResourceOptions | None) -> Sequence[pulumi.Alias] | None:
    """Return the aliases of a resource that was a child of the component's parent before the component existed.

    `opts` are the component's options. With these aliases, `up` finds the resource in the state of an older version, so
    it does not replace the resource. Returns None for a component without a parent, which no older version created.
    """
    if opts is None or opts.parent is None:
        return None
    return [pulumi.Alias(parent=opts.parent)]
