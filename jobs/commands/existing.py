"""Commands about hosts that exist before any cluster: `yard hosts scan`."""

from __future__ import annotations

from typing import Annotated

import typer

from jobs.commands.options import JsonOption
from jobs.show import say, say_json


def register(app: typer.Typer) -> None:
    """Add the commands."""
    hosts = typer.Typer(no_args_is_help=True, help="Look at hosts that exist already.")
    hosts.command()(scan)
    hosts.callback()(_only_groups)
    app.add_typer(hosts, name="hosts")


def _only_groups() -> None:
    """Keep `scan` a word of its own: typer would make a group of one command that command."""


def scan(
    targets: Annotated[list[str], typer.Argument(metavar="ADDRESS[:PORT]...", help="Hosts whose key to show.")],
    through: Annotated[str | None, typer.Option("--through", help="Ask from this host, as ssh takes it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the ssh key of each host, for the stack file, once you have compared its fingerprint on the host itself."""
    from jobs.scan import scan as look  # noqa: PLC0415

    found = [look(target, through) for target in targets]
    if as_json:
        say_json([vars(shown) for shown in found])
        return
    for shown in found:
        say(
            f"{shown.target} shows {shown.fingerprint}\n"
            f"  on its own console this must print the same: ssh-keygen -lf {shown.file}\n"
            f"  if it does:  host_key: {shown.host_key}\n"
        )
