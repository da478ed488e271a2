"""`yard prices`, `yard prices update`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from trainyard import checkout
from yard.commands.options import JsonOption
from yard.show import say, say_json, table

app = typer.Typer(name="prices", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
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


@app.command()
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
