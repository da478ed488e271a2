"""Command `yard reproduce`."""

from __future__ import annotations

from typing import Annotated

import typer

from yard.commands import completion
from yard.commands.options import JsonOption, OutputsOption, remote_of

app = typer.Typer(rich_markup_mode=None)


@app.command()
def reproduce(
    post: Annotated[
        str,
        typer.Argument(
            metavar="POST",
            autocompletion=completion.posts,
            help="abeja, cyclecloud, deepspeed-azure, greennode or lambda.",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan (no cluster needed).")] = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Run the smallest size, without GPUs, on the local stack.")
    ] = False,
    as_json: JsonOption = False,
    stack: Annotated[
        str | None,
        typer.Option(
            "--stack",
            autocompletion=completion.stacks,
            help="Default: the stack of the post, or local with --smoke; TRAINYARD_STACK is ignored.",
        ),
    ] = None,
    outputs: OutputsOption = None,
) -> None:
    """Run the data preparation and the jobs of a blog post, and print its figures next to the new ones.

    The stack must exist (`yard init NAME --from POST`, `pulumi up`). Environments are built if they do not exist.
    """
    from dataclasses import replace

    from yard.reproduce import steps
    from yard.reproduce.posts import read_post

    chosen = read_post(post, smoke=smoke)
    if stack is not None:
        chosen = replace(chosen, stack=stack)
    if dry_run:
        steps.plan(chosen, as_json)
        return
    raise typer.Exit(steps.reproduce(chosen, remote_of(chosen.stack, outputs), as_json))
