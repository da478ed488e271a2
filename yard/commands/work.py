"""Commands for jobs: recipes, ps, logs, wait, cancel, resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from yard.commands import completion
from yard.commands.options import JsonOption, OutputsOption, StackOption, remote_of

if TYPE_CHECKING:
    from yard.stack.remote import Remote

app = typer.Typer(rich_markup_mode=None)

RankOption = Annotated[int, typer.Option("--rank", min=0, help="Rank whose log to print.")]
JobArgument = Annotated[int, typer.Argument(metavar="JOB", min=1, help="Job number.")]


@app.command()
def recipes(
    name: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", autocompletion=completion.recipes, help="Show this recipe in detail."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the recipes, which are jobs included with yard."""
    from yard.job.recipe_list import list_recipes, show_recipe

    if name is None:
        list_recipes(as_json)
    else:
        show_recipe(name, as_json)


@app.command()
def ps(
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Include jobs that ended in the last week.")] = False,
    long: Annotated[bool, typer.Option("--long", "-l", help="Show goodput and lost time.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """List waiting and running jobs, and jobs that ended in the last day."""
    from yard.run.listing import list_jobs

    list_jobs(remote_of(stack, outputs), 7 if show_all else 1, as_json, long=long)


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
    """Print a job's log, including the output of earlier starts."""
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
    everything: Annotated[bool, typer.Option("--all", help="Cancel all jobs of the job user.")] = False,
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
    """Restart a finished job from its last checkpoint."""
    from yard.run.control import resume_job

    resume_job(remote_of(stack, outputs), job, as_json)


def _follow(remote: Remote, job: int, rank: int, as_json: bool, *, quiet: bool = False) -> None:
    from yard.run.control import follow_log

    raise typer.Exit(follow_log(remote, job, rank, as_json, quiet=quiet))
