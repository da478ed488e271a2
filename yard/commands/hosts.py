"""Commands for existing hosts: `yard hosts scan` and `yard hosts forget`."""

from __future__ import annotations

from typing import Annotated

import typer

from yard.commands.options import JsonOption, StackOption
from yard.show import say, say_json

app = typer.Typer(name="hosts", no_args_is_help=True, rich_markup_mode=None, help="Scan or forget existing hosts.")


@app.command()
def scan(
    targets: Annotated[list[str], typer.Argument(metavar="ADDRESS[:PORT]...", help="Hosts.")],
    through: Annotated[str | None, typer.Option("--through", help="SSH host from which to connect.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the host key of each host. Before you use a key in the stack file, compare its fingerprint on the host."""
    from yard.stack.hosts import scan as look

    found = [look(target, through) for target in targets]
    if as_json:
        say_json([vars(shown) for shown in found])
        return
    for shown in found:
        say(
            f"{shown.target} has the fingerprint {shown.fingerprint}\n"
            f"  compare it on the host's console: ssh-keygen -lf {shown.file}\n"
            f"  if it is the same, use in the stack file:  host_key: {shown.host_key}\n"
        )


@app.command()
def forget(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Name of the host in the stack file.")],
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Remove a dead host from the stack, so that `pulumi up` and `pulumi destroy` do not wait for it."""
    from yard.stack.hosts import forget_host

    urn = forget_host(stack, host)
    if as_json:
        say_json({"forgotten": urn})
        return
    say(
        f"{host} was removed from the stack; run `pulumi up` or `pulumi destroy` again\n"
        f"  if the host comes back later, run this command on it: sudo /var/lib/trainyard/borrowed/give-back"
    )
