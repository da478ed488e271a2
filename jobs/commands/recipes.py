"""The command about recipes: which there are, what each needs, and what of it was never run."""

from __future__ import annotations

from typing import Annotated

import typer

from jobs.commands.options import JsonOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(recipes)


def recipes(
    name: Annotated[str | None, typer.Argument(metavar="RECIPE", help="All about this one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the jobs that `yard submit` knows by name: what each needs, and what of it was never run."""
    from jobs.recipe_list import list_recipes, show_recipe  # noqa: PLC0415

    if name is None:
        list_recipes(as_json)
    else:
        show_recipe(name, as_json)
