"""The `yard` command line, whose commands are in the other modules of this package."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer import Context, Exit
from typer.core import TyperGroup

from trainyard.errors import ClusterError
from yard.commands import cluster, jobs, repair, results, stacks, training
from yard.show import say, say_json, warn


class YardGroup(TyperGroup):
    """A command group that prints the message of a ClusterError (as JSON with --json) and exits with code 1."""

    _JSON = "yard.json"

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
        ours = args[: args.index("--")] if "--" in args else args
        ctx.meta[self._JSON] = "--json" in ours
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except ClusterError as error:
            if ctx.meta[self._JSON]:
                say_json({"error": str(error)})
            else:
                warn(f"yard: {error}")
            raise Exit(1) from None
        except BrokenPipeError:
            # The program that reads the output, such as `head`, has closed the pipe.
            sys.stderr.close()
            raise Exit(1) from None


TOPICS = (jobs, results, cluster, stacks, repair, training)
"""The modules with a Typer `app`, in the order of `yard --help`."""

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
