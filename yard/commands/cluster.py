"""Commands for a running cluster: ssh, nodes, hostfile, doctor, sync, cp, refresh, sleep, wake, hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from yard.commands import completion
from yard.commands.options import AfterDashes, JsonOption, OutputsOption, StackOption, admin_of, remote_of
from yard.show import answer, say, say_json

app = typer.Typer(rich_markup_mode=None)

_HOSTFILES = {
    # DeepSpeed rejects comments, blank lines, duplicate hosts and localhost.
    "deepspeed": "{name} slots={slots}",
    # Even with --oversubscribe, Open MPI starts at most max_slots ranks on a node (mpirun(1), 4.1.4, read 2026-11-24).
    "mpi": "{name} slots={slots} max_slots={slots}",
    "ips": "{ip}",
}
"""Mapping from host file format to the template of a worker's line."""


@app.command(cls=AfterDashes)
def ssh(
    context: typer.Context,
    node: Annotated[
        str | None, typer.Argument(metavar="NODE", autocompletion=completion.hosts, help="Host; default: the head.")
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Log in as the user with sudo rights.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ssh command instead of running it.")] = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Log in, or run the command after `--`. A single argument is a line for the remote shell."""
    from yard.stack.remote import shell

    remote = remote_of(stack, outputs)
    words = context.meta.get(AfterDashes.META, ())
    if (remote.stack.cluster.head.tunnel or remote.stack.login) and not as_json:
        # Unlike `ssh`, `run` prints why a tunnel failed or a key is refused. `run` also opens the shared connection.
        remote.run("true")
    # A worker's banner states why a person cannot log in. ssh hides it at the log level of the configuration.
    shows = ("-o", "LogLevel=INFO") if node and remote.stack.login else ()
    argv = remote.argv(shell(words) if words else None, remote.host(node, admin=admin), *shows)
    if as_json:
        say_json({"argv": argv})
        return
    os.execvp(argv[0], argv)  # noqa: S606  (ssh gets the terminal, and its exit code is the result)


@app.command()
def nodes(
    history: Annotated[bool, typer.Option("--history", help="Show when workers left service and returned.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """List the hosts, their Slurm state and its reason."""
    from yard.run.jobs import list_nodes

    list_nodes(remote_of(stack, outputs), as_json, history=history)


@app.command()
def hostfile(
    kind: Annotated[
        Literal["deepspeed", "mpi", "ips"], typer.Option("--format", help="Format of the file.")
    ] = "deepspeed",
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Print a host file that lists the workers."""
    found = remote_of(stack, outputs).stack.cluster.nodes
    lines = [_HOSTFILES[kind].format(name=node.name, slots=max(1, node.gpus), ip=node.private_ip) for node in found]
    answer("\n".join(lines), {"format": kind, "lines": lines}, as_json)


@app.command()
def doctor(as_json: JsonOption = False, stack: StackOption = "local", outputs: OutputsOption = None) -> None:
    """Check all hosts, and print causes and fixes. Exits with code 1 if a check fails."""
    from yard.doctor.checks import run_doctor

    raise typer.Exit(run_doctor(remote_of(stack, outputs), as_json))


@app.command()
def sync(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to send.")] = Path(),
    dest: Annotated[
        str | None,
        typer.Argument(metavar="DEST", help="Folder on the cluster, absolute or in the shared path."),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove sent files that no longer exist in DIR.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the files that would be sent.")] = False,
    with_secrets: Annotated[bool, typer.Option("--with-secrets", help="Also send .env files and keys.")] = False,
    take_over: Annotated[bool, typer.Option("--take-over", help="Replace the copy of a different directory.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Send a directory, except files that git ignores or that look like secrets."""
    from yard.tree.sync import SyncRequest
    from yard.tree.sync import sync as run

    request = SyncRequest(
        source=source, dest=dest, delete=delete, dry_run=dry_run, with_secrets=with_secrets, take_over=take_over
    )
    run(remote_of(stack, outputs), request, as_json)


@app.command()
def cp(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A local path, JOB:PATH, last:PATH or cluster:/PATH.")
    ],
    dest: Annotated[
        str, typer.Argument(metavar="DEST", help="Like SOURCE. Exactly one of them must be on the cluster.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace different files at the destination.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Copy a file or a folder between this computer and the cluster.

    PATH is relative to the run folder of the job, for example in `yard cp last:checkpoints .`.
    """
    from yard.run.copy import copy

    raise typer.Exit(copy(remote_of(stack, outputs), source, dest, as_json, force=force))


@app.command()
def refresh(
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Also write an outputs file for jobs, without admin logins."),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="NAME", help="The person who will use FILE (see docs/team.md).")
    ] = None,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Read the outputs again, and rewrite the SSH files. Removes those of a destroyed stack."""
    from yard.stack.load import load_stack, save_for_jobs

    if user is not None and save is None:
        raise typer.BadParameter("--user needs --save FILE")
    loaded = load_stack(stack, refresh=True, file=outputs)
    name = loaded.cluster.name
    if save is not None:
        save_for_jobs(loaded, save, user)
    if as_json:
        saved = None if save is None else str(save)
        say_json({"stack": loaded.name, "cluster": name, "ssh_config": str(loaded.ssh_config), "saved": saved})
        return
    say(f"to connect to the cluster {name} with ssh: ssh -F {_shown(loaded.ssh_config)} {loaded.cluster.head.name}")
    if save is not None:
        content = "no key, because people use their own keys" if loaded.cluster.users else "the key of the job user"
        login = "with their private key in ~/.ssh/id_ed25519 or an SSH agent, " if loaded.cluster.users else ""
        say(f"{save} contains {content}. The user who receives it runs, {login}`yard ssh --outputs {save.name}`")


@app.command()
def sleep(
    force: Annotated[bool, typer.Option("--force", help="Also if people are logged in. They are warned.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Stop all machines, and keep queue and files. Requires `idle` in the stack file."""
    from yard.stack.sleep import sleep as stop

    stop(admin_of(stack, outputs, "yard sleep"), as_json, force=force)


@app.command()
def wake(as_json: JsonOption = False, stack: StackOption = "local", outputs: OutputsOption = None) -> None:
    """Start a sleeping cluster. Requires the right to start its head in the cloud."""
    from yard.stack.sleep import wake as start

    start(remote_of(stack, outputs), as_json)


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


hosts = typer.Typer(name="hosts", no_args_is_help=True, rich_markup_mode=None, help="Scan or forget existing hosts.")
app.add_typer(hosts)


@hosts.command()
def scan(
    targets: Annotated[list[str], typer.Argument(metavar="ADDRESS[:PORT]...", help="Hosts.")],
    through: Annotated[str | None, typer.Option("--through", help="SSH host from which to connect.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print each host's key. Compare its fingerprint on the host before you use it."""
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


@hosts.command()
def forget(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Name of the host in the stack file.")],
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Remove a dead host, so that Pulumi does not wait for it."""
    from yard.stack.hosts import forget_host

    urn = forget_host(stack, host)
    answer(
        f"{host} was removed from the stack; run `pulumi up` or `pulumi destroy` again\n"
        f"  if the host comes back later, run this command on it: sudo /var/lib/trainyard/borrowed/give-back",
        {"forgotten": urn},
        as_json,
    )
