"""Commands about what stack files may say: checks, schema."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from jobs.commands.options import JsonOption
from jobs.show import say, say_json, table

_COLOURS = {"error": "red", "warning": "yellow", "info": "dim"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(checks)
    app.command()(schema)


def checks(as_json: JsonOption = False) -> None:
    """List the rules that stack files are put to, of every platform."""
    from components.checks.listing import list_checks  # noqa: PLC0415

    listed = list_checks()
    if as_json:
        say_json(
            [
                {
                    "id": each.id,
                    "level": each.level.value,
                    "platform": each.platform,
                    "rule": each.rule,
                    "fixes": each.fixes,
                }
                for each in listed
            ]
        )
        return
    rows = ((each.id, each.level.value, each.platform, each.rule, "; or: ".join(each.fixes)) for each in listed)
    table(("id", "level", "platform", "rule", "fix"), rows, _COLOURS)


def schema(as_json: Annotated[bool, typer.Option("--json", help="Print it on one line.")] = False) -> None:
    """Print the JSON Schema of a stack file, which stacks/schema.json holds."""
    from components.schema import stack_schema  # noqa: PLC0415

    if as_json:
        say_json(stack_schema())
    else:
        say(json.dumps(stack_schema(), indent=1))
