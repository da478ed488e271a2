"""Commands about hosts that exist before any cluster, and after it: `yard hosts scan` and `yard hosts forget`."""

from __future__ import annotations

from typing import Annotated

import typer

from jobs.commands.options import JsonOption, StackOption
from jobs.show import say, say_json


def register(app: typer.Typer) -> None:
    """Add the commands."""
    hosts = typer.Typer(no_args_is_help=True, help="Look at hosts that exist already.")
    hosts.command()(scan)
    hosts.command()(forget)
    app.add_typer(hosts, name="hosts")


def scan(
    targets: Annotated[list[str], typer.Argument(metavar="ADDRESS[:PORT]...", help="Hosts whose key to show.")],
    through: Annotated[str | None, typer.Option("--through", help="Ask from this host, as ssh takes it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the ssh key of each host, for the stack file, once you have compared its fingerprint on the host itself."""
    from jobs.scan import scan as look  # noqa: PLC0415

    found = [look(target, through) for target in targets]
    if as_json:
        say_json([vars(shown) for shown in found])
        return
    for shown in found:
        say(
            f"{shown.target} shows {shown.fingerprint}\n"
            f"  on its own console this must print the same: ssh-keygen -lf {shown.file}\n"
            f"  if it does:  host_key: {shown.host_key}\n"
        )


def forget(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Its name in the stack file.")],
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Let go of a host that no longer answers, so that `pulumi up` and `pulumi destroy` no longer wait for it."""
    from jobs.forget import forget_host  # noqa: PLC0415

    urn = forget_host(stack, host)
    if as_json:
        say_json({"forgotten": urn})
        return
    say(
        f"{host} is forgotten; run `pulumi up` or `pulumi destroy` again\n"
        f"  if it ever comes back, there: sudo /var/lib/trainyard/borrowed/give-back"
    )
