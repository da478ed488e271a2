"""The options that several commands share, and the arguments after `--`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Context, TyperException
from typer.core import TyperCommand

from yard.commands import completion

if TYPE_CHECKING:
    from yard.stack.remote import Remote


def _selected(context: typer.Context, value: str) -> str:
    """Replace the default value with the stack selected with `pulumi stack select`, if there is one."""
    if context.resilient_parsing or _source(context, "stack") != "DEFAULT":
        return value
    from yard.stack.pulumi import environment, selected_stack

    return selected_stack(environment()) or value


def _outputs(context: typer.Context, value: Path | None) -> Path | None:
    """Ignore TRAINYARD_OUTPUTS if --stack is given."""
    overridden = _source(context, "outputs") == "ENVIRONMENT" and _source(context, "stack") == "COMMANDLINE"
    return None if overridden else value


def _source(context: typer.Context, option: str) -> str:
    """Return the source of the option's value (COMMANDLINE, ENVIRONMENT or DEFAULT), or '' if it is not parsed yet."""
    source = context.get_parameter_source(option)
    return source.name if source else ""


StackOption = Annotated[
    str,
    typer.Option(
        "--stack",
        "-s",
        envvar="TRAINYARD_STACK",
        autocompletion=completion.stacks,
        callback=_selected,
        show_default="the stack selected with `pulumi stack select`, or local",
        help="Name of the cluster's stack.",
    ),
]
OutputsOption = Annotated[
    Path | None,
    typer.Option(
        "--outputs",
        metavar="FILE",
        envvar="TRAINYARD_OUTPUTS",
        callback=_outputs,
        help="Read the stack's outputs from this JSON file.",
    ),
]
EnvironmentOption = Annotated[
    str | None,
    typer.Option(
        "--env",
        metavar="NAME|FILE",
        autocompletion=completion.environments,
        help="Python environment or requirements file; none: the Python of the nodes.",
    ),
]
WithOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="PACKAGE|FILE",
        help="Add a package, folder, wheel, pyproject.toml or uv.lock to the Python environment (repeatable).",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def operator_of(stack: str, outputs: Path | None, command: str) -> Remote:
    """Return the connection to a stack's cluster, for a command that only operators can run.

    Raises StackError for a job user, whose outputs file contains neither the stack's state nor the admin's key.
    """
    import shutil

    from trainyard.errors import StackError
    from yard.stack.pulumi import environment

    if outputs is not None or shutil.which("pulumi", path=environment().get("PATH")) is None:
        raise StackError(
            f"`{command}` changes machines, so it needs the role operator: the stack's Pulumi backend, the Pulumi CLI "
            "and the cluster's project. Fix: ask an operator of the cluster (docs/team.md lists the roles), or, as an "
            "operator, run it in the project with --stack NAME"
        )
    return remote_of(stack, None)


def admin_of(stack: str, outputs: Path | None, command: str) -> Remote:
    """Return the connection to a stack's cluster, for a command that needs only sudo rights. Raises StackError."""
    from trainyard.errors import StackError

    remote = remote_of(stack, outputs)
    if not remote.stack.has_admin_login:
        raise StackError(
            f"`{command}` changes nodes, so it needs the role operator: the admin key, which {outputs or stack} does "
            "not contain. Fix: ask an operator of the cluster (docs/team.md lists the roles)"
        )
    return remote


def remote_of(stack: str, outputs: Path | None) -> Remote:
    """Return the connection to a stack's cluster. Raises StackError if its outputs cannot be read."""
    from yard.stack.load import load_stack
    from yard.stack.remote import Remote

    return Remote(load_stack(stack, file=outputs))


class AfterDashes(TyperCommand):
    """A command that stores the arguments after `--` in `context.meta[AfterDashes.META]`.

    Otherwise, Typer would use `hostname` in `yard ssh -- hostname` as the argument NODE.
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
