"""Options that many commands share, and the way from --stack to a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from jobs.remote import Remote

StackOption = Annotated[str, typer.Option("--stack", envvar="TRAINYARD_STACK", help="The stack whose cluster to use.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def remote_of(stack: str) -> Remote:
    """Return the way to the stack's cluster. Raises StackError when its outputs cannot be read."""
    from jobs.remote import Remote  # noqa: PLC0415
    from jobs.stack import load_stack  # noqa: PLC0415

    return Remote(load_stack(stack))
