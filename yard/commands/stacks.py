"""Commands that need a checkout: preview, checks, schema, prices."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

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
    from yard.preview.difference import UnknownRevision
    from yard.preview.printing import as_markdown as comment
    from yard.preview.printing import show
    from yard.preview.report import as_json as document
    from yard.preview.report import preview as look
    from yard.stack.workspace import stack_names

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
        say_json(document(seen))
    elif as_markdown:
        say(comment(seen))
    else:
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


price_list = typer.Typer(name="prices", rich_markup_mode=None)
app.add_typer(price_list)


@price_list.callback(invoke_without_command=True)
def prices(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show the list price of each machine type, with its date."""
    checkout.require("yard prices")
    if context.invoked_subcommand:
        return
    from yard.prices import SCOPE, listed

    rows = listed()
    if as_json:
        say_json(rows)
        return
    keys = ("provider", "machine", "usd_per_hour", "spot_usd_per_hour", "region", "dated", "source")
    columns = ("provider", "machine", "$/h", "Spot $/h", "region", "dated", "source")
    table(columns, ([_cell(row[key]) for key in keys] for row in rows), {"unknown": "yellow"})
    say(SCOPE)


@price_list.command()
def update(
    provider: Annotated[
        Literal["azure", "gcp"] | None, typer.Option("--provider", help="Update only this cloud's prices.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Update components/catalog/prices.yaml from the clouds' public price lists."""
    from yard.prices import update as renew

    changes = renew([provider] if provider else ["azure", "gcp"])
    if as_json:
        say_json({name: [asdict(change) for change in found] for name, found in changes.items()})
        return
    rows = (
        (name, change.machine, _cell(change.before), _cell(change.after), change.kept)
        for name, found in changes.items()
        for change in found
    )
    table(("provider", "machine", "before", "now", "not changed, because"), rows, {"unknown": "yellow"})
    say("written: components/catalog/prices.yaml; review the difference before you commit it")


def _cell(value: object) -> str:
    return "unknown" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
