"""Two changes to how typer runs commands: what follows `--` is kept apart, and known errors are one clean message."""

from __future__ import annotations

import sys
from typing import Any

from typer import Context, Exit
from typer.core import TyperCommand, TyperGroup

from components.errors import ClusterError
from jobs.show import say_json

_FAILED = 1


class AfterDashes(TyperCommand):
    """A command whose words after `--` belong to somebody else: they are in `context.meta[AfterDashes.META]`.

    Left to the parser, `yard ssh -- hostname` would take `hostname` for a node.
    """

    META = "jobs.after-dashes"

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Take the words after the first `--` away before the parser sees them."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[self.META] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


class YardGroup(TyperGroup):
    """Turns every error that this project explains itself into its message and exit code 1."""

    _JSON = "jobs.json"

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Remember whether --json was asked for: an error must be JSON then, too."""
        ours = args[: args.index("--")] if "--" in args else args
        ctx.meta[self._JSON] = "--json" in ours
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Context) -> Any:  # type: ignore[override]
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except ClusterError as error:
            if ctx.meta[self._JSON]:
                say_json({"error": str(error)})
            else:
                sys.stderr.write(f"yard: {error}\n")
            raise Exit(_FAILED) from None
        except BrokenPipeError:
            # Somebody like `head` has read enough.
            sys.stderr.close()
            raise Exit(_FAILED) from None
