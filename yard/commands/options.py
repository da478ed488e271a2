"""Options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from yard.commands import completion

if TYPE_CHECKING:
    from yard.stack.remote import Remote

StackOption = Annotated[
    str,
    typer.Option(
        "--stack", envvar="TRAINYARD_STACK", autocompletion=completion.stacks, help="Name of the cluster's stack."
    ),
]
OutputsOption = Annotated[
    Path | None,
    typer.Option("--outputs", metavar="FILE", help="Read the stack's outputs from this JSON file."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def remote_of(stack: str, outputs: Path | None) -> Remote:
    """Return the connection to a stack's cluster. The outputs come from the file or from Pulumi.

    Raises StackError if the outputs cannot be read.
    """
    from yard.stack.load import load_stack
    from yard.stack.remote import Remote

    return Remote(load_stack(stack, file=outputs))
