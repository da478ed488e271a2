"""Commands about jobs: submit, ps, logs, wait, cancel, resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.commands.options import JsonOption, StackOption, remote_of
from jobs.shell import AfterDashes

if TYPE_CHECKING:
    from jobs.remote import Remote

RankOption = Annotated[int, typer.Option("--rank", min=0, help="Whose log; 0 is the job's own.")]
JobArgument = Annotated[int, typer.Argument(metavar="JOB", min=1, help="The job's number.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(cls=AfterDashes)(submit)
    app.command()(ps)
    app.command()(logs)
    app.command()(wait)
    app.command()(cancel)
    app.command()(resume)


def submit(  # noqa: PLR0913, PLR0917  (one parameter per option is how typer declares them)
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="RECIPE|FILE.yaml", help="A recipe's name or a job file.")],
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus-per-node", min=0, help="GPUs on each node.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Environment.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show the log; exit with the job's code.")] = False,
    attached: Annotated[bool, typer.Option("--attached", help="Follow, and cancel the job when interrupted.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="The job's smallest size, which its file describes.")] = False,
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
        smoke=smoke,
    )
    loaded = wish.load()
    remote = remote_of(stack)
    prepared = prepare(loaded, remote.stack.cluster)
    if dry_run:
        show_files(prepared, as_json)
        return
    if attached:
        from jobs.listing import submit_attached  # noqa: PLC0415

        raise typer.Exit(submit_attached(remote, lambda: send(remote, prepared, as_json).job, as_json))
    submitted = send(remote, prepared, as_json)
    if follow:
        _follow(remote, submitted.job, 0, as_json)


def ps(
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Ended jobs of the last week, too.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """List jobs: those waiting and running, and those that ended today."""
    from jobs.listing import list_jobs  # noqa: PLC0415

    list_jobs(remote_of(stack), 7 if show_all else 1, as_json)


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Until its end; exit with its code.")] = False,
    rank: RankOption = 0,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Show a job's log, over every restart."""
    remote = remote_of(stack)
    if follow:
        _follow(remote, job, rank, as_json)
    from jobs.listing import show_log  # noqa: PLC0415

    show_log(remote, job, rank, as_json)


def wait(job: JobArgument, as_json: JsonOption = False, stack: StackOption = "local") -> None:
    """Wait until a job has ended, and exit with its code."""
    _follow(remote_of(stack), job, 0, as_json, quiet=True)


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

    cancel_jobs(remote_of(stack), jobs or [], as_json)


def resume(job: JobArgument, as_json: JsonOption = False, stack: StackOption = "local") -> None:
    """Start a job that failed or was lost again in its folder, from its last checkpoint."""
    from jobs.listing import resume_job  # noqa: PLC0415

    resume_job(remote_of(stack), job, as_json)


def _follow(remote: Remote, job: int, rank: int, as_json: bool, *, quiet: bool = False) -> None:
    from jobs.listing import follow_log  # noqa: PLC0415

    raise typer.Exit(follow_log(remote, job, rank, as_json, quiet=quiet))
