"""The `yard` command line. Its commands are in yard/commands."""

from __future__ import annotations

from typing import Annotated

import typer

from yard.commands import (
    bake,
    bench,
    cluster,
    data,
    env,
    heal,
    hosts,
    init,
    prices,
    reproduce,
    roll,
    run,
    size,
    stacks,
    submit,
    work,
)
from yard.shell import YardGroup
from yard.show import say

TOPICS = (
    submit, run, work, reproduce, cluster, init, stacks, prices, size, hosts, roll, heal, bake, data, env, bench,
)  # fmt: skip


app = typer.Typer(cls=YardGroup, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
for _topic in TOPICS:
    app.add_typer(_topic.app)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import version

    say(f"yard {version('trainyard')}")
    raise typer.Exit


@app.callback()
def yard(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run training jobs on the clusters that stack files define."""
