"""Command `yard recipes`: prints the recipes and their requirements."""

from __future__ import annotations

from typing import Any

from yard.job.loader import has_smoke, load_job, recipe_names
from yard.show import say, say_json, table


def describe(name: str) -> dict[str, Any]:
    """Return the properties of a recipe. Raises JobFileError if the recipe does not exist."""
    spec = load_job(name, {}, {}, []).spec
    return {
        "name": name,
        "about": spec.about,
        "nodes": spec.nodes,
        "launcher": spec.launcher,
        "container": spec.runtime or None,
        "environment": None if spec.environment is None else spec.environment.name,
        "software": spec.software,
        "smoke": has_smoke(name),
        "verified": spec.verified,
        "unverified": spec.unverified,
    }


def list_recipes(as_json: bool) -> None:
    """Print a table of all recipes."""
    found = [describe(name) for name in recipe_names()]
    if as_json:
        say_json(found)
        return
    rows = [
        (
            row["name"],
            str(row["nodes"]),
            row["launcher"] + (f" in {row['container']}" if row["container"] else ""),
            "yes" if row["smoke"] else "",
            "partly" if row["verified"] and row["unverified"] else "yes" if row["verified"] else "no",
            row["about"] or "",
        )
        for row in found
    ]
    table(("RECIPE", "NODES", "LAUNCHER", "SMOKE SIZE", "VERIFIED", "ABOUT"), rows)
    say("`yard recipes RECIPE` prints its requirements; `yard submit RECIPE --smoke` runs its smoke size")


def show_recipe(name: str, as_json: bool) -> None:
    """Print the properties of a recipe."""
    found = describe(name)
    if as_json:
        say_json(found)
        return
    for key, value in found.items():
        if value not in {None, False}:
            say(f"{key + ':':10} {'yes' if value is True else value}")
