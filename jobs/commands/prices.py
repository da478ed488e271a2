"""Commands about money: prices, prices update."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from jobs.commands.options import JsonOption
from jobs.show import say, say_json, table


class Vendor(StrEnum):
    """Who publishes a price list that can be read."""

    AZURE = "azure"
    GCP = "gcp"


_UNPRICED = {"usd_per_hour": None, "spot_usd_per_hour": None, "region": "", "dated": "", "source": ""}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(rich_markup_mode=None)
    group.callback(invoke_without_command=True)(prices)
    group.command()(update)
    app.add_typer(group, name="prices")


def prices(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show what an hour of each machine type costs, as far as the catalog knows, and how old that is."""
    if context.invoked_subcommand:
        return
    from jobs.prices.command import listed  # noqa: PLC0415

    rows = [
        {"provider": provider, "machine": row, **_UNPRICED}
        if isinstance(row, str)
        else {"provider": provider, "machine": row.name, **row.model_dump(exclude={"name"})}
        for provider, found in listed().items()
        for row in found
    ]
    if as_json:
        say_json(rows)
        return
    columns = ("provider", "machine", "$/h", "region", "dated", "source")
    shown = (
        [str(row["provider"]), str(row["machine"]), _money(row["usd_per_hour"])]
        + [str(row[key]) for key in ("region", "dated", "source")]
        for row in rows
    )
    table(columns, shown, {"unknown": "yellow"})


def update(
    provider: Annotated[Vendor | None, typer.Option("--provider", help="Only this one's prices.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Read the vendors' public price lists and write what they say into components/catalog/prices.yaml."""
    from jobs.prices.command import update as renew  # noqa: PLC0415

    chosen = [provider.value] if provider else [vendor.value for vendor in Vendor]
    fates = renew(chosen)
    if as_json:
        say_json({name: [asdict(fate) for fate in found] for name, found in fates.items()})
        return
    rows = (
        (name, fate.machine, _money(fate.before), _money(fate.after), fate.kept)
        for name, found in fates.items()
        for fate in found
    )
    table(("provider", "machine", "before", "now", "kept since"), rows, {"unknown": "yellow"})
    say("written: components/catalog/prices.yaml; look at the difference before you commit it")


def _money(value: object) -> str:
    return "unknown" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
