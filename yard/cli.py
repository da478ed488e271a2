"""The `yard` command line. Its commands are in yard/commands."""

from __future__ import annotations

import typer

from yard.commands import bake, bench, cluster, data, hosts, init, prices, roll, size, stacks, submit, work
from yard.shell import YardGroup

app = typer.Typer(
    cls=YardGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Run training jobs on the clusters that stack files define.",
)

TOPICS = (submit, work, cluster, init, stacks, prices, size, hosts, roll, bake, data, bench)

for _topic in TOPICS:
    app.add_typer(_topic.app)
