"""What the recipes say of themselves."""

from __future__ import annotations

from typing import Any

from jobs.loader import has_smoke, load_job, recipe_names
from jobs.show import say, say_json, table


def describe(name: str) -> dict[str, Any]:
    """Return what a recipe says of itself. Raises JobFileError for a name that is none."""
    spec = load_job(name, {}, {}, []).spec
    container = spec.container.runtime if spec.container is not None else None
    return {
        "name": name,
        "about": spec.about,
        "nodes": spec.nodes,
        "launcher": spec.launcher,
        "container": container,
        "software": spec.software,
        "smoke": has_smoke(name),
        "proved": spec.proved,
        "unproved": spec.unproved,
    }


def list_recipes(as_json: bool) -> None:
    """Print a line for each recipe."""
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
            "smoke size" if row["proved"] and row["unproved"] else "yes" if row["proved"] else "never",
            row["about"] or "",
        )
        for row in found
    ]
    table(("RECIPE", "NODES", "LAUNCHER", "SMOKE SIZE", "RAN", "ABOUT"), rows)
    say("`yard recipes RECIPE` says what one needs and what of it never ran; --smoke is its smallest size")


def show_recipe(name: str, as_json: bool) -> None:
    """Print all that one recipe says."""
    found = describe(name)
    if as_json:
        say_json(found)
        return
    for key, value in found.items():
        if value not in {None, False}:
            say(f"{key + ':':10} {'yes' if value is True else value}")
