"""The `yard` command line. What the commands are is said in jobs/commands."""

from __future__ import annotations

import typer

from jobs.commands import bench, data, existing, hosts, preview, prices, recipes, size, stackfiles, sync, work
from jobs.shell import YardGroup

app = typer.Typer(
    cls=YardGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Train on clusters that stack files describe.",
)

TOPICS = (
    work,
    recipes,
    hosts,
    preview,
    prices,
    stackfiles,
    size,
    existing,
    data,
    sync,
    bench,
)

for _topic in TOPICS:
    _topic.register(app)
