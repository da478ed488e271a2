"""The command that builds an image for the machines of a stack."""

from __future__ import annotations

from typing import Annotated

import typer

from trainyard import checkout
from yard.commands.options import JsonOption, StackOption
from yard.show import INTERRUPTED, say, say_json

app = typer.Typer(rich_markup_mode=None)


@app.command()
def bake(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the image's name without building it.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Simulate the cloud (docs/offline.md).")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Build an image that contains the packages and settings of a stack's machines.

    The name of the image contains a hash of its content, so an image that exists is not built again. New machines start
    from the image if `platform.baked_image` in the stack file is the printed value.
    """
    checkout.require("yard bake")
    from yard.bake import command

    request = command.request_of(stack)
    if as_json and not dry_run and request.baking.here is None:
        raise typer.BadParameter("add --dry-run, because Pulumi prints its output", param_hint="--json")
    if dry_run:
        found = request.name
    else:
        try:
            found = command.bake(request, simulated=offline)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    if as_json:
        say_json({"name": request.name, "baked_image": None if dry_run else found})
    elif dry_run:
        say(found)
    else:
        say(f"baked_image: {found}")
