"""The command that replaces the machines of a node group."""

from __future__ import annotations

from typing import Annotated

import typer

from yard.commands import completion
from yard.commands.options import JsonOption, StackOption, operator_of

app = typer.Typer(rich_markup_mode=None)


@app.command()
def roll(
    context: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=completion.groups, help="The node group.")],
    max_unavailable: Annotated[
        int,
        typer.Option("--max-unavailable", min=1, help="Maximum number of nodes that may be out of service at once."),
    ] = 1,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, metavar="MINUTES", help="Time limit for the jobs in each batch.")
    ] = None,
    checkpoint: Annotated[
        bool,
        typer.Option("--checkpoint", help="Signal the jobs on drained nodes to write a checkpoint, and requeue them."),
    ] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Return drained nodes to service and end an unfinished roll.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the nodes without changing anything.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Replace the machines of a group: drain nodes, wait for their jobs, run `pulumi up`, and continue.

    New machines use the user-data and the image from this checkout. The same command continues an interrupted roll.
    """
    from yard.repair import roll as rolls

    remote = operator_of(context, stack, "yard roll")
    request = rolls.RollRequest(
        group=group,
        max_unavailable=max_unavailable,
        idle_seconds=None if timeout is None else timeout * 60,
        checkpoint=checkpoint,
    )
    if as_json and not dry_run:
        raise typer.BadParameter("add --dry-run, because a roll prints output from pulumi", param_hint="--json")
    if abandon:
        rolls.abandon(remote)
        return
    if dry_run:
        rolls.show_plan(remote, request, as_json)
        return
    raise typer.Exit(rolls.run_roll(remote, request))
