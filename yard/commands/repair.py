"""Commands that repair a cluster or replace its parts: drain, undrain, roll, replace, rotate, heal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from yard.commands import completion
from yard.commands.options import JsonOption, OutputsOption, StackOption, admin_of, operator_of, remote_of
from yard.show import say_json

if TYPE_CHECKING:
    from yard.repair.roll import RollRequest
    from yard.stack.remote import Remote

app = typer.Typer(rich_markup_mode=None)

NodesArgument = Annotated[
    list[str], typer.Argument(metavar="NODE...", autocompletion=completion.hosts, help="Names of workers.")
]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", min=0, metavar="MINUTES", help="Time limit for the jobs on drained nodes.")
]
CheckpointOption = Annotated[
    bool,
    typer.Option("--checkpoint", help="Signal the jobs on drained nodes to write a checkpoint, and requeue them."),
]
AbandonOption = Annotated[
    bool, typer.Option("--abandon", help="Return drained nodes to service and end an unfinished replacement.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the steps without changing anything.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command()
def drain(
    nodes: NodesArgument,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why the nodes are out of service.")],
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Take nodes out of service. Their running jobs continue.

    The nodes stay out of service until `yard undrain`, because no automatic repair returns them.
    """
    from yard.repair import drain as drains

    drains.drain(admin_of(stack, outputs, "yard drain"), list(dict.fromkeys(nodes)), reason, as_json)


@app.command()
def undrain(
    nodes: NodesArgument,
    force: Annotated[bool, typer.Option("--force", help="Also return nodes that have a fault.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Return nodes that a person drained, or in quarantine, unless a health check fails."""
    from yard.repair import drain as drains

    drains.undrain(admin_of(stack, outputs, "yard undrain"), list(dict.fromkeys(nodes)), as_json, force=force)


@app.command()
def roll(
    group: Annotated[str, typer.Argument(metavar="GROUP", autocompletion=completion.groups, help="The node group.")],
    max_unavailable: Annotated[
        int,
        typer.Option("--max-unavailable", min=1, help="Maximum number of nodes that may be out of service at once."),
    ] = 1,
    timeout: TimeoutOption = None,
    checkpoint: CheckpointOption = False,
    abandon: AbandonOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Replace the machines of a group, each after its jobs have ended.

    New machines use the user-data and the image of this version. The same command continues an interrupted roll.
    """
    from yard.repair.roll import RollRequest

    remote = operator_of(stack, outputs, "yard roll")
    seconds = None if timeout is None else timeout * 60
    request = RollRequest(target=group, max_unavailable=max_unavailable, idle_seconds=seconds, checkpoint=checkpoint)
    _replace(remote, request, abandon=abandon, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command()
def replace(
    node: Annotated[str, typer.Argument(metavar="NODE", autocompletion=completion.hosts, help="Name of a worker.")],
    timeout: TimeoutOption = None,
    checkpoint: CheckpointOption = False,
    abandon: AbandonOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Replace the machine of one worker after its jobs have ended.

    The same command continues an interrupted replacement.
    """
    from yard.repair.roll import RollRequest

    remote = operator_of(stack, outputs, "yard replace")
    seconds = None if timeout is None else timeout * 60
    request = RollRequest(verb="replace", target=node, idle_seconds=seconds, checkpoint=checkpoint)
    _replace(remote, request, abandon=abandon, dry_run=dry_run, yes=yes, as_json=as_json)


def _replace(remote: Remote, request: RollRequest, *, abandon: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    from yard.repair import roll as rolls

    if as_json and not dry_run:
        raise typer.BadParameter("add --dry-run, because pulumi prints its output", param_hint="--json")
    if abandon:
        rolls.abandon(remote)
        return
    rolls.show_plan(remote, request, as_json)
    if dry_run:
        return
    _confirm("Replace these machines?", yes=yes)
    raise typer.Exit(rolls.run_roll(remote, request))


@app.command()
def rotate(
    key: Annotated[
        Literal["admin", "cluster", "user", "munge", "database"],
        typer.Argument(
            metavar="KEY",
            help="admin, cluster (from the head to workers), user (the job user), munge or database (password).",
        ),
    ],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Replace a key of the cluster. Shows a preview, asks, and runs `pulumi up`.

    No machine is replaced, and jobs continue. `pulumi up` also makes other changes to the stack that are pending.
    """
    from yard.stack import rotate as rotation

    remote = operator_of(stack, outputs, "yard rotate")
    if as_json and not dry_run:
        raise typer.BadParameter("add --dry-run, because pulumi prints its output", param_hint="--json")
    urn = rotation.resource_of(remote, key)
    if as_json:
        say_json({"key": key, "urn": urn})
        return
    if (code := rotation.preview(remote, urn)) or dry_run:
        raise typer.Exit(code)
    _confirm("Rotate this key?", yes=yes)
    raise typer.Exit(rotation.rotate(remote, key, urn))


def _confirm(question: str, *, yes: bool) -> None:
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter("add --yes, because there is no terminal to ask for confirmation")
    if not yes:
        typer.confirm(question, abort=True)


@app.command()
def heal(
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
    """Show the next step for each faulty node.

    Only --perform and --auto change anything. --auto ends with exit code 3 if a person must decide.
    """
    from yard.repair import heal as repairs

    changing = {"--perform": perform, "--auto": auto, "--install-timer": install_timer}
    option = next((name for name, is_set in changing.items() if is_set), None)
    if sum((*changing.values(), explain is not None)) > 1:
        raise typer.BadParameter("use only one of --perform, --auto, --install-timer and --explain")
    if as_json and option:
        raise typer.BadParameter("omit it, because a repair prints output from pulumi", param_hint="--json")
    remote = operator_of(stack, outputs, f"yard heal {option}") if option else remote_of(stack, outputs)
    if explain is not None:
        repairs.explain(remote, explain, as_json)
        return
    if install_timer:
        repairs.install_timer(remote.stack.name, max_usd_per_hour)
        return
    request = repairs.HealRequest(perform=perform, auto=auto, max_usd_per_hour=max_usd_per_hour)
    raise typer.Exit(repairs.heal(remote, request, as_json))
