"""Commands for jobs: recipes, submit, ps, logs, wait, cancel, resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from yard.commands.options import JsonOption, OutputsOption, StackOption, remote_of
from yard.shell import AfterDashes

if TYPE_CHECKING:
    from yard.stack.remote import Remote

app = typer.Typer(rich_markup_mode=None)

RankOption = Annotated[int, typer.Option("--rank", min=0, help="Rank whose log to print.")]
JobArgument = Annotated[int, typer.Argument(metavar="JOB", min=1, help="Job number.")]


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(metavar="RECIPE", help="Show this recipe in detail.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the recipes, which are jobs included with yard."""
    from yard.job.recipe_list import list_recipes, show_recipe

    if name is None:
        list_recipes(as_json)
    else:
        show_recipe(name, as_json)


@app.command(cls=AfterDashes)
def submit(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="RECIPE|FILE.yaml", help="Recipe or job file.")],
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus-per-node", min=0, help="GPUs on each node.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Environment variable.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log; exit with the job's exit code.")
    ] = False,
    attached: Annotated[bool, typer.Option("--attached", help="Follow the log, and cancel the job on Ctrl-C.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Run the smallest size.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script without submitting the job.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Submit a job. Arguments after `--` are passed to the workload."""
    from yard.job.loader import environment_of, load_job
    from yard.run.submit import prepare, send, show_files

    options: dict[str, Any] = {"nodes": nodes, "gpus_per_node": gpus, "name": name}
    overrides = {key: value for key, value in options.items() if value is not None}
    env = environment_of(job, settings or ())
    loaded = load_job(job, overrides, env, context.meta.get(AfterDashes.META, ()), smoke=smoke)
    remote = remote_of(stack, outputs)
    prepared = prepare(loaded, remote.stack.cluster)
    if dry_run:
        show_files(prepared, as_json)
        return
    if attached:
        from yard.run.control import submit_attached

        raise typer.Exit(submit_attached(remote, lambda: send(remote, prepared, as_json).job, as_json))
    submitted = send(remote, prepared, as_json)
    if follow:
        _follow(remote, submitted.job, 0, as_json)


@app.command()
def ps(
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Include jobs that ended in the last week.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """List waiting and running jobs, and jobs that ended in the last day."""
    from yard.run.listing import list_jobs

    list_jobs(remote_of(stack, outputs), 7 if show_all else 1, as_json)


@app.command()
def logs(
    job: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log; exit with the job's exit code.")
    ] = False,
    rank: RankOption = 0,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Print a job's log, including earlier starts of the job."""
    remote = remote_of(stack, outputs)
    if follow:
        _follow(remote, job, rank, as_json)
    from yard.run.listing import show_log

    show_log(remote, job, rank, as_json)


@app.command()
def wait(
    job: JobArgument, as_json: JsonOption = False, stack: StackOption = "local", outputs: OutputsOption = None
) -> None:
    """Wait until a job has ended. Exits with the job's exit code."""
    _follow(remote_of(stack, outputs), job, 0, as_json, quiet=True)


@app.command()
def cancel(
    jobs: Annotated[list[int] | None, typer.Argument(metavar="JOB...", min=1, help="Job numbers.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Cancel all of the job user's jobs.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Cancel jobs."""
    if bool(jobs) == everything:
        raise typer.BadParameter("name the jobs, or use --all")
    from yard.run.control import cancel_jobs

    cancel_jobs(remote_of(stack, outputs), jobs or [], as_json)


@app.command()
def resume(
    job: JobArgument, as_json: JsonOption = False, stack: StackOption = "local", outputs: OutputsOption = None
) -> None:
    """Restart an ended job from its last checkpoint."""
    from yard.run.control import resume_job

    resume_job(remote_of(stack, outputs), job, as_json)


def _follow(remote: Remote, job: int, rank: int, as_json: bool, *, quiet: bool = False) -> None:
    from yard.run.control import follow_log

    raise typer.Exit(follow_log(remote, job, rank, as_json, quiet=quiet))
