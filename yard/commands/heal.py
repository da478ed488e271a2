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
    auto: Annotated[
        bool, typer.Option("--auto", help="Perform the steps if the stack file contains `repair: auto`.")
    ] = False,
    install_timer: Annotated[
        bool, typer.Option("--install-timer", help="Run `yard heal --auto` every five minutes on this computer.")
    ] = False,
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
    """Show the next step for each faulty node: reboot, new machine or quarantine.

    Only --perform and --auto change anything. --auto ends with exit code 3 if a person must decide.
    """
    from yard.repair import heal as repairs

    changing = {"--perform": perform, "--auto": auto, "--install-timer": install_timer}
    option = next((name for name, is_set in changing.items() if is_set), None)
    if sum((*changing.values(), explain is not None)) > 1:
        raise typer.BadParameter("use only one of --perform, --auto, --install-timer and --explain")
    if as_json and option:
        raise typer.BadParameter("omit it, because a repair prints output from pulumi", param_hint="--json")
    remote = operator_of(context, stack, f"yard heal {option}") if option else remote_of(stack, outputs)
    if explain is not None:
        repairs.explain(remote, explain, as_json)
        return
    if install_timer:
        repairs.install_timer(remote.stack.name, max_usd_per_hour)
        return
    request = repairs.HealRequest(perform=perform, auto=auto, max_usd_per_hour=max_usd_per_hour)
    raise typer.Exit(repairs.heal(remote, request, as_json))
