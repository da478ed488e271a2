"""Subclasses of Typer's classes. They keep the arguments after `--` separate, and print a ClusterError as a message."""

from __future__ import annotations

import sys
from typing import Any

from typer import Context, Exit, TyperException
from typer.core import TyperCommand, TyperGroup

from trainyard.errors import ClusterError
from yard.show import say_json, warn

_FAILED = 1


class AfterDashes(TyperCommand):
    """A command that stores the arguments after `--` in `context.meta[AfterDashes.META]`.

    In `yard ssh -- hostname`, Typer would use `hostname` as the argument NODE.
    """

    META = "yard.after-dashes"

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if "--" in args:
            at = args.index("--")
            ctx.meta[self.META] = tuple(args[at + 1 :])
            args = args[:at]
        try:
            return super().parse_args(ctx, args)
        except TyperException as error:
            if error.message.startswith("No such option"):
                error.message += "; arguments of your program follow `--`"
            raise


class YardGroup(TyperGroup):
    """Prints the message of a ClusterError and exits with code 1. With --json, the message is JSON."""

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
            raise Exit(_FAILED) from None
        except BrokenPipeError:
            # The reader, such as `head`, has closed the pipe.
            sys.stderr.close()
            raise Exit(_FAILED) from None
