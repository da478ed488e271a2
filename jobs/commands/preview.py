"""The command that looks ahead: preview."""

from __future__ import annotations

from typing import Annotated

import typer

from jobs.commands.options import JsonOption
from jobs.show import say, say_json

_INTERRUPTED = 130
"""As a shell has it for a program that SIGINT ended."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(preview)


def preview(  # noqa: PLR0913, PLR0917  (one parameter per option is how typer declares them)
    stacks: Annotated[list[str] | None, typer.Argument(metavar="STACK...", help="Names of stack files.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every stack file.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Simulate the clouds; the default.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Use your backend, credentials and quotas.")] = False,
    against: Annotated[str | None, typer.Option("--against", metavar="REF", help="Show what differs.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a comment for a pull request.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what stacks would make, cost and need, and what is wrong with them. Exits 1 when something is."""
    if bool(stacks) == everything:
        raise typer.BadParameter("name the stacks, or use --all")
    if offline and live:
        raise typer.BadParameter("--offline and --live exclude each other")
    if as_markdown and as_json:
        raise typer.BadParameter("--markdown and --json exclude each other")
    from jobs.preview.base import UnknownRevision  # noqa: PLC0415
    from jobs.preview.command import preview as look  # noqa: PLC0415
    from jobs.preview.describe import stack_names  # noqa: PLC0415

    known = stack_names()
    if unknown := [stack for stack in stacks or () if stack not in known]:
        raise typer.BadParameter(f"no stack file for {', '.join(unknown)}; there are {', '.join(known)}")
    try:
        seen = look(list(dict.fromkeys(stacks or known)), live=live, against=against)
    except UnknownRevision as error:
        raise typer.BadParameter(str(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    if as_json:
        from jobs.preview.report import as_json as document  # noqa: PLC0415

        say_json(document(seen))
    elif as_markdown:
        from jobs.preview.markdown import render  # noqa: PLC0415

        say(render(seen))
    else:
        from jobs.preview.terminal import show  # noqa: PLC0415

        show(seen)
    raise typer.Exit(0 if seen.fine else 1)
