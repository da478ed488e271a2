"""Commands for Python environments: `yard env build`, `ls` and `rm`."""

from __future__ import annotations

from typing import Annotated

import typer

from yard.commands import completion
from yard.commands.options import JsonOption, OutputsOption, StackOption, remote_of
from yard.show import say, say_json

app = typer.Typer(
    name="env", no_args_is_help=True, rich_markup_mode=None, help="Build, list and remove Python environments for jobs."
)


@app.command()
def build(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            autocompletion=completion.environments,
            help="Environment, or a requirements file, with or without hashes.",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the packages (no cluster needed).")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Build an environment on the shared file system, and print its path. An existing environment is not changed."""
    from yard.environments import command
    from yard.environments.definition import definition_of

    definition = definition_of(name)
    if dry_run:
        if as_json:
            say_json({**definition.request, "digest": definition.digest, "packages": definition.packages})
            return
        say(command.describe(definition, "/shared"))
        say("  " + " ".join(definition.packages))
        return
    path = command.ensure(remote_of(stack, outputs), definition)
    if as_json:
        say_json({"name": definition.name, "path": path})
        return
    say(path)


@app.command("ls")
def list_built(as_json: JsonOption = False, stack: StackOption = "local", outputs: OutputsOption = None) -> None:
    """List the environments on the cluster."""
    from yard.environments import command

    command.show(command.built(remote_of(stack, outputs)), as_json)


@app.command()
def rm(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME|FOLDER...",
            autocompletion=completion.environments,
            help="All environments with a name, or one folder of `yard env ls`.",
        ),
    ],
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Remove environments that no active job uses."""
    from yard.environments import command

    removed = command.remove(remote_of(stack, outputs), names)
    if as_json:
        say_json({"removed": [made.folder for made in removed]})
        return
    for made in removed:
        say(f"removed {made.folder}")
