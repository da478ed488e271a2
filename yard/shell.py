"""Subclasses of Typer's classes.

They build a command when it is used, keep the arguments after `--` separate, and print a ClusterError as a message.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from typer import Context, Exit, Typer
from typer._click.exceptions import NoSuchOption
from typer._click.shell_completion import CompletionItem, add_completion_class
from typer._completion_classes import FishComplete, ZshComplete
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info, get_command_name, get_group

from yard.contract.errors import ClusterError
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
        except NoSuchOption as error:
            error.message += "; arguments of your program follow `--`"
            raise


class Deferred(TyperCommand):
    """The name and help text of a command that is built when it is used.

    Building all commands takes longer than importing them, because Typer inspects the signature of every function.
    """

    def __init__(self, name: str, text: str, build: Callable[[], Any]) -> None:
        super().__init__(name, help=text)
        self.build = build

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.build().make_context(info_name, args, parent=parent, **extra)


def deferred(app: Typer) -> Iterator[Deferred]:
    """Yield the commands of an app, or one command for the whole app if the app has a name."""
    if isinstance(app.info.name, str):
        about = app.registered_callback.callback if app.registered_callback else None
        text = app.info.help if isinstance(app.info.help, str) else inspect.getdoc(about)
        yield Deferred(app.info.name, text or "", lambda: get_group(app))
        return
    for info in app.registered_commands:
        if (function := info.callback) is None:
            continue
        yield Deferred(
            info.name or get_command_name(function.__name__),
            info.help or inspect.getdoc(function) or "",
            lambda info=info: get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None),  # type: ignore[misc]
        )


class YardGroup(TyperGroup):
    """Prints the message of a ClusterError and exits with code 1. With --json, the message is JSON.

    `apps` contain the commands.
    """

    apps: ClassVar[tuple[Typer, ...]] = ()
    _JSON = "yard.json"

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for app in self.apps:
            for command in deferred(app):
                self.add_command(command)

    def _main_shell_completion(self, *arguments: Any, **named: Any) -> None:
        _register_shells()
        super()._main_shell_completion(*arguments, **named)

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


class _Zsh(ZshComplete):
    """Prints help texts unchanged. Typer would render them with rich, which takes 0.1 s to import."""

    def format_completion(self, item: CompletionItem) -> str:
        texts = [item.value, item.help] if item.help else [item.value]
        return ":".join(super(_Zsh, self).format_completion(CompletionItem(text)) for text in texts)


class _Fish(FishComplete):
    """Like _Zsh, for fish."""

    def format_completion(self, item: CompletionItem) -> str:
        return "\t".join([item.value, *(" ".join(text.split()) for text in [item.help] if text)])


def _register_shells() -> None:
    """Replace Typer's classes for zsh and fish."""
    add_completion_class(_Zsh, "zsh")
    add_completion_class(_Fish, "fish")
