"""Commands about a cluster's hosts: ssh, nodes, hostfile, doctor, refresh."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from jobs.commands.options import JsonOption, StackOption, remote_of
from jobs.hostfile import HostfileFormat
from jobs.shell import AfterDashes
from jobs.show import say, say_json


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(cls=AfterDashes)(ssh)
    app.command()(nodes)
    app.command()(hostfile)
    app.command()(doctor)
    app.command()(refresh)


def ssh(
    context: typer.Context,
    node: Annotated[str | None, typer.Argument(metavar="NODE", help="A host; without it the head.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="As the user with sudo.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ssh command instead of running it.")] = False,
    stack: StackOption = "local",
) -> None:
    """Log in, or run what follows `--`: one argument is a shell line, several are the words of a command."""
    from jobs.remote import shell  # noqa: PLC0415

    remote = remote_of(stack)
    words = context.meta.get(AfterDashes.META, ())
    if remote.stack.cluster.head.tunnel and not as_json:
        # Why a tunnel fails is hidden by ssh; this reports it, and makes the connection that the next ssh shares.
        remote.run("true")
    argv = remote.argv(shell(words) if words else None, remote.host(node, admin=admin))
    if as_json:
        say_json({"argv": argv})
        return
    os.execvp(argv[0], argv)  # noqa: S606  (its exit code and its terminal shall be the caller's)


def nodes(as_json: JsonOption = False, stack: StackOption = "local") -> None:
    """List the cluster's hosts and the state of each in Slurm."""
    from jobs.listing import list_nodes  # noqa: PLC0415

    list_nodes(remote_of(stack), as_json)


def hostfile(
    kind: Annotated[HostfileFormat, typer.Option("--format", help="Who reads it.")] = HostfileFormat.DEEPSPEED,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Print the workers as a host file."""
    from jobs.hostfile import hostfile as render  # noqa: PLC0415

    text = render(remote_of(stack).stack.cluster, kind)
    if as_json:
        say_json({"format": kind.value, "lines": text.splitlines()})
    else:
        say(text)


def doctor(as_json: JsonOption = False, stack: StackOption = "local") -> None:
    """Look for what breaks jobs: names, routes, ports, keys, clocks, disks, versions. Exits 1 when something does."""
    from jobs.doctor.command import run_doctor  # noqa: PLC0415

    raise typer.Exit(run_doctor(remote_of(stack), as_json))


def refresh(as_json: JsonOption = False, stack: StackOption = "local") -> None:
    """Read the stack's outputs anew and rewrite the ssh files; those of a destroyed stack are removed."""
    from jobs.stack import load_stack  # noqa: PLC0415

    loaded = load_stack(stack, refresh=True)
    name = loaded.cluster.name
    if as_json:
        say_json({"stack": loaded.name, "cluster": name, "ssh_config": str(loaded.ssh_config)})
    else:
        say(f"plain ssh reaches {name} with  ssh -F {_shown(loaded.ssh_config)} {loaded.cluster.head.name}")


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
