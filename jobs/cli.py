"""The `yard` command line: arguments in, one call, words or JSON out. Heavy imports wait until a command needs them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.hostfile import HostfileFormat
from jobs.shell import AfterDashes, YardGroup
from jobs.show import say, say_json

if TYPE_CHECKING:
    from jobs.remote import Remote

app = typer.Typer(
    cls=YardGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Run jobs on the cluster of a stack.",
)

StackOption = Annotated[str, typer.Option("--stack", envvar="TRAINYARD_STACK", help="The stack whose cluster to use.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RankOption = Annotated[int, typer.Option("--rank", min=0, help="Whose log; 0 is the job's own.")]
JobArgument = Annotated[int, typer.Argument(metavar="JOB", min=1, help="The job's number.")]


def _remote(stack: str) -> Remote:
    from jobs.remote import Remote  # noqa: PLC0415
    from jobs.stack import load_stack  # noqa: PLC0415

    return Remote(load_stack(stack))


@app.command(cls=AfterDashes)
def submit(  # noqa: PLR0913, PLR0917  (one parameter per option is how typer declares them)
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="RECIPE|FILE.yaml", help="A recipe's name or a job file.")],
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus-per-node", min=0, help="GPUs on each node.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Environment.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show the log; exit with the job's code.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script; send nothing.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Submit a job. What follows `--` is added to the workload's arguments."""
    from jobs.submit import Wish, prepare, send, show_files  # noqa: PLC0415

    overrides: dict[str, Any] = {"nodes": nodes, "gpus_per_node": gpus, "name": name}
    wish = Wish(
        job=job,
        overrides={key: value for key, value in overrides.items() if value is not None},
        settings=tuple(settings or ()),
        args=tuple(context.meta.get(AfterDashes.META, ())),
    )
    loaded = wish.load()
    remote = _remote(stack)
    prepared = prepare(loaded, remote.stack.cluster)
    if dry_run:
        show_files(prepared, as_json)
        return
    submitted = send(remote, prepared, as_json)
    if follow:
        _follow(remote, submitted.job, 0, as_json)


@app.command()
def ps(
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Ended jobs of the last week, too.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """List jobs: those waiting and running, and those that ended today."""
    from jobs.listing import list_jobs  # noqa: PLC0415

    list_jobs(_remote(stack), 7 if show_all else 1, as_json)


@app.command()
def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until its end; exit with its code.")] = False,
    rank: RankOption = 0,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Show a job's log, over every restart."""
    remote = _remote(stack)
    if follow:
        _follow(remote, job, rank, as_json)
    from jobs.listing import show_log  # noqa: PLC0415

    show_log(remote, job, rank, as_json)


@app.command()
def wait(job: JobArgument, as_json: JsonOption = False, stack: StackOption = "local") -> None:
    """Wait until a job has ended, and exit with its code."""
    _follow(_remote(stack), job, 0, as_json, quiet=True)


def _follow(remote: Remote, job: int, rank: int, as_json: bool, *, quiet: bool = False) -> None:
    from jobs.listing import follow_log  # noqa: PLC0415

    raise typer.Exit(follow_log(remote, job, rank, as_json, quiet=quiet))


@app.command()
def cancel(
    jobs: Annotated[list[int] | None, typer.Argument(metavar="JOB...", min=1, help="Job numbers.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every job of yours.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Cancel jobs."""
    if bool(jobs) == everything:
        raise typer.BadParameter("name the jobs, or use --all")
    from jobs.listing import cancel_jobs  # noqa: PLC0415

    cancel_jobs(_remote(stack), jobs or [], as_json)


@app.command(cls=AfterDashes)
def ssh(
    context: typer.Context,
    node: Annotated[str | None, typer.Argument(metavar="NODE", help="A host; without it the head.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="As the user with sudo.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ssh command instead of running it.")] = False,
    stack: StackOption = "local",
) -> None:
    """Log in, or run what follows `--`: one argument is a shell line, several are the words of a command."""
    from jobs.remote import shell  # noqa: PLC0415

    remote = _remote(stack)
    words = context.meta.get(AfterDashes.META, ())
    argv = remote.argv(shell(words) if words else None, remote.host(node, admin=admin))
    if as_json:
        say_json({"argv": argv})
        return
    os.execvp(argv[0], argv)  # noqa: S606  (its exit code and its terminal shall be the caller's)


@app.command()
def nodes(as_json: JsonOption = False, stack: StackOption = "local") -> None:
    """List the cluster's hosts and the state of each in Slurm."""
    from jobs.listing import list_nodes  # noqa: PLC0415

    list_nodes(_remote(stack), as_json)


@app.command()
def hostfile(
    kind: Annotated[HostfileFormat, typer.Option("--format", help="Who reads it.")] = HostfileFormat.DEEPSPEED,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Print the workers as a host file."""
    from jobs.hostfile import hostfile as render  # noqa: PLC0415

    text = render(_remote(stack).stack.cluster, kind)
    if as_json:
        say_json({"format": kind.value, "lines": text.splitlines()})
    else:
        say(text)


@app.command()
def doctor(as_json: JsonOption = False, stack: StackOption = "local") -> None:
    """Look for what breaks jobs: names, routes, ports, keys, clocks, disks, versions. Exits 1 when something does."""
    from jobs.doctor.command import run_doctor  # noqa: PLC0415

    raise typer.Exit(run_doctor(_remote(stack), as_json))


@app.command()
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
