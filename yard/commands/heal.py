"""The command that repairs faulty nodes."""

from __future__ import annotations

from typing import Annotated

import typer

from yard.commands import completion
from yard.commands.options import JsonOption, OutputsOption, StackOption, operator_of, remote_of

app = typer.Typer(rich_markup_mode=None)


@app.command()
def heal(
    context: typer.Context,
    perform: Annotated[bool, typer.Option("--perform", help="Perform the steps.")] = False,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="NODE", autocompletion=completion.hosts, help="Explain one node's step."),
    ] = None,
    max_usd_per_hour: Annotated[
        float | None,
        typer.Option("--max-usd-per-hour", min=0, help="Do not replace machines if the stack costs more."),
    ] = None,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Show the next step for each faulty node: reboot, new machine or quarantine. Only --perform changes anything."""
    from yard.heal import command

    remote = operator_of(context, stack, "yard heal --perform") if perform else remote_of(stack, outputs)
    if explain is not None:
        command.explain(remote, explain, as_json)
        return
    if as_json and perform:
        raise typer.BadParameter("omit --perform, because a repair prints output from pulumi", param_hint="--json")
    raise typer.Exit(command.heal(remote, command.HealRequest(perform, max_usd_per_hour), as_json))
