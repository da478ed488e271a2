"""Command `yard run`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from yard.commands import completion
from yard.commands.options import EnvironmentOption, OutputsOption, StackOption, remote_of
from yard.shell import AfterDashes

app = typer.Typer(rich_markup_mode=None)


@app.command(cls=AfterDashes)
def run(
    context: typer.Context,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes. Default: 1.")] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", "--gpus-per-node", min=0, help="GPUs on each node. Default: all.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", autocompletion=completion.groups, help="Node group.")] = None,
    time: Annotated[str | None, typer.Option("--time", help="Time limit, for example 30m or 8h. Default: 1h.")] = None,
    environment: EnvironmentOption = None,
    ports: Annotated[
        list[int] | None,
        typer.Option("--port", min=1, max=65535, help="Forward this local port to the first node."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ssh commands instead of running them.")] = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Start a shell, or the command after `--`, on the first allocated node. The nodes are released afterwards.

    With `--port 8888`, a Jupyter server in the session is at http://127.0.0.1:8888 on this computer.
    """
    from yard.run.request import own_path
    from yard.run.session import prepare_session, run_session, show_session
    from yard.stack.remote import shell

    words = context.meta.get(AfterDashes.META, ())
    given: dict[str, Any] = {
        "nodes": nodes or 1, "gpus_per_node": gpus, "group": group, "time": time, "environment": own_path(environment),
    }  # fmt: skip
    options = {key: value for key, value in given.items() if value is not None}
    remote = remote_of(stack, outputs)
    terminal = as_json or (sys.stdin.isatty() and sys.stdout.isatty())
    session = prepare_session(remote, options, shell(words) if words else None, terminal=terminal)
    if as_json:
        show_session(remote, session, ports or (), terminal=terminal)
        return
    raise typer.Exit(run_session(remote, session, ports or (), terminal=terminal))
