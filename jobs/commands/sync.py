"""`yard sync`: the working directory to the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.options import JsonOption, StackOption, remote_of


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sync)


def sync(  # noqa: PLR0913, PLR0917  (one parameter per option is how typer declares them)
    source: Annotated[Path, typer.Argument(metavar="DIR", help="What to send.")] = Path(),
    dest: Annotated[
        str | None, typer.Argument(metavar="DEST", help="Where on the cluster; below the shared path by default.")
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove there what an earlier sync sent.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent; change nothing.")] = False,
    with_secrets: Annotated[bool, typer.Option("--with-secrets", help="Send .env, keys and the like, too.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Send a directory by rsync, without what git ignores and what looks like a secret."""
    from jobs.sync import Order  # noqa: PLC0415
    from jobs.sync import sync as run  # noqa: PLC0415

    order = Order(source=source, dest=dest, delete=delete, dry_run=dry_run, with_secrets=with_secrets)
    run(remote_of(stack), order, as_json)
