"""Commands for stack files: preview, checks, schema. These commands need a checkout."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from trainyard import checkout
from yard.commands import completion
from yard.commands.options import JsonOption
from yard.show import INTERRUPTED, say, say_json, table

app = typer.Typer(rich_markup_mode=None)

_COLOURS = {"error": "red", "warning": "yellow", "info": "dim"}


@app.command()
def preview(
    stacks: Annotated[
        list[str] | None, typer.Argument(metavar="STACK...", autocompletion=completion.stacks, help="Names of stacks.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Preview all stack files.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Simulate the clouds (default).")] = False,
    live: Annotated[bool, typer.Option("--live", help="Use your Pulumi backend, cloud accounts and quotas.")] = False,
    against: Annotated[
        str | None, typer.Option("--against", metavar="REF", help="Compare with a git revision.")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a comment for a pull request.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the resources, prices, quotas and problems of stacks. Exits with code 1 if there are problems."""
    if bool(stacks) == everything:
        raise typer.BadParameter("name the stacks, or use --all")
    if offline and live:
        raise typer.BadParameter("--offline and --live are mutually exclusive")
    if as_markdown and as_json:
        raise typer.BadParameter("--markdown and --json are mutually exclusive")
    checkout.require("yard preview")
    from yard.preview.base import UnknownRevision
    from yard.preview.command import preview as look
    from yard.stack.stackfile import stack_names

    known = stack_names()
    if unknown := [stack for stack in stacks or () if stack not in known]:
        raise typer.BadParameter(f"no stack file for {', '.join(unknown)}; available stacks: {', '.join(known)}")
    try:
        seen = look(list(dict.fromkeys(stacks or known)), live=live, against=against)
    except UnknownRevision as error:
        raise typer.BadParameter(str(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        from yard.preview.report import as_json as document

        say_json(document(seen))
    elif as_markdown:
        from yard.preview.markdown import render

        say(render(seen))
    else:
        from yard.preview.terminal import show

        show(seen)
    raise typer.Exit(0 if seen.fine else 1)


@app.command()
def checks(as_json: JsonOption = False) -> None:
    """List the checks for stack files."""
    checkout.require("yard checks")
    from components.plan.check import Check
    from components.platforms import PLATFORMS
    from components.platforms.registry import platform_facts
    from components.stackfile.draft_checks import DRAFT_CHECKS
    from components.stackfile.plan_checks import PLAN_CHECKS

    by_platform: dict[str, tuple[Check[Any], ...]] = {"all": (*DRAFT_CHECKS, *PLAN_CHECKS)}
    by_platform |= {name: tuple(platform_facts(name).checks) for name in PLATFORMS}
    rows = [
        (check.id, check.level.value, platform, check.rule, check.fixes)
        for platform, found in by_platform.items()
        for check in found
    ]
    if as_json:
        keys = ("id", "level", "platform", "rule", "fixes")
        say_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    shown = ((*others, "; or: ".join(fixes)) for *others, fixes in rows)
    table(("id", "level", "platform", "rule", "fix"), shown, _COLOURS)


@app.command()
def schema(as_json: Annotated[bool, typer.Option("--json", help="Print one line.")] = False) -> None:
    """Print the JSON Schema of stack files (stacks/schema.json)."""
    checkout.require("yard schema")
    from components.stackfile.schema import stack_schema

    if as_json:
        say_json(stack_schema())
    else:
        say(json.dumps(stack_schema(), indent=1))
