"""Commands for jobs: submit, run, notebook, code, recipes, ps, logs, wait, cancel, resume."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from trainyard import project
from trainyard.errors import ClusterError
from yard.commands import completion
from yard.commands.options import (
    AfterDashes,
    EnvironmentOption,
    JsonOption,
    OutputsOption,
    StackOption,
    WithOption,
    remote_of,
)
from yard.show import warn

if TYPE_CHECKING:
    from yard.run.request import Prepare
    from yard.stack.remote import Remote

app = typer.Typer(rich_markup_mode=None)

_EXAMPLES = "yard submit train.py --nodes 2 -- --lr 1e-4; yard submit -- python train.py; yard submit job.sbatch"
_MONTH = re.compile(r"20[0-9]{2}-(0[1-9]|1[0-2])")
_JOB = re.compile(r"[1-9][0-9]*|last")


def _job(text: str) -> str:
    if _JOB.fullmatch(text) is None:
        raise typer.BadParameter(f"'{text}' is neither a job number nor `last`; `yard ps` lists the numbers")
    return text


def _month(text: str) -> str:
    if _MONTH.fullmatch(text) is None:
        raise typer.BadParameter(f"'{text}' is not a month, such as 2026-11")
    return text


JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", parser=_job, help="Job number, or `last` for your newest job.")
]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Follow the log; exit with the job's exit code.")]
GroupOption = Annotated[str | None, typer.Option("--group", autocompletion=completion.groups, help="Node group.")]


@app.command(cls=AfterDashes)
def submit(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE|FILE]",
            autocompletion=completion.jobs,
            help="Recipe, job file (.yaml), Python file or Slurm script.",
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus-per-node", min=0, help="GPUs on each node.")] = None,
    group: GroupOption = None,
    account: Annotated[str | None, typer.Option("--account", help="Slurm account.")] = None,
    time: Annotated[str | None, typer.Option("--time", help="Time limit, for example 30m, 2h or 3d.")] = None,
    after: Annotated[
        list[int] | None,
        typer.Option("--after", metavar="JOB", min=1, help="Start only after this job has completed (repeatable)."),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option("--array", metavar="0-9[%2]", help="Submit one job for each number (%2: two at once)."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job.")] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            "--launcher",
            autocompletion=completion.launchers,
            help="How ranks start. Default: torchrun for a Python file, srun-node for a command.",
        ),
    ] = None,
    environment: EnvironmentOption = None,
    packages: WithOption = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Environment variable.")
    ] = None,
    no_code: Annotated[
        bool, typer.Option("--no-code", help="Do not send the program's directory, or a command's current directory.")
    ] = False,
    follow: FollowOption = False,
    attached: Annotated[bool, typer.Option("--attached", help="Follow the log, and cancel the job on Ctrl-C.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Run the smallest size.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the script without submitting the job (no cluster needed).")
    ] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Submit a recipe, a job file, a Python file, a Slurm script, or a shell command after `--`.

    `yard submit train.py -- ARGS` starts a Python file with torchrun on each node. `yard submit -- COMMAND` starts a
    shell command once on each node. The file's directory or, for a command, the current directory is copied to the
    cluster, without files that git ignores. `yard submit job.sbatch` submits a Slurm script unchanged; options override
    its #SBATCH lines.
    """
    from yard.run.environments import notes, provide
    from yard.run.request import Request, options_of, read_request
    from yard.run.submit import send, send_all, show_files
    from yard.stack.sleep import wake_if_asleep

    words = context.meta.get(AfterDashes.META, ())
    if job is None and not words:
        raise typer.BadParameter(f"name a recipe, a file or a command. Examples: {_EXAMPLES}")
    options = options_of(
        environment, packages, nodes=nodes, gpus_per_node=gpus, group=group, time=time, name=name, launcher=launcher,
        after=after, array=array, account=account,
    )  # fmt: skip
    request = Request(job=job, words=words, options=options, settings=settings or (), smoke=smoke, code=not no_code)
    prepare = read_request(request)
    try:
        remote = remote_of(stack, outputs)
    except ClusterError as error:
        if not dry_run or outputs is not None:
            raise
        _rehearse(prepare, stack, error, as_json)
        return
    jobs = prepare(remote.stack.cluster)
    if dry_run:
        lines = notes(jobs[0].file, jobs[0].environment, jobs[0].packages, remote.stack.cluster)
        limit = [jobs[0].cost_limit] if jobs[0].cost_limit else []
        show_files(jobs, as_json, {"estimate": None, "environment": lines}, [*limit, *lines])
        return
    wake_if_asleep(remote)
    jobs = provide(remote, jobs, builds=bool(packages))
    if len(jobs) > 1:
        if follow or attached:
            raise typer.BadParameter("--follow and --attached follow a single job; use `yard logs` for an array")
        send_all(remote, jobs, as_json)
        return
    if attached:
        from yard.run.jobs import submit_attached

        raise typer.Exit(submit_attached(remote, lambda: send(remote, jobs[0], as_json).job, as_json))
    submitted = send(remote, jobs[0], as_json)
    if follow:
        if jobs[0].nodes > 1 and not as_json:
            warn(f"yard: following rank 0; run `yard logs {submitted.job} --rank N` for another rank")
        _follow(remote, submitted.job, 0, as_json)


def _rehearse(prepare: Prepare, stack: str, error: ClusterError, as_json: bool) -> None:
    """Print the job for the planned cluster, because the stack has no outputs. Outside a project, raise `error`."""
    try:
        project.require("yard submit --dry-run")
    except ClusterError:
        raise error from None
    from yard.preview.rehearsal import estimate, estimate_lines, rehearse
    from yard.run.environments import notes
    from yard.run.submit import show_files

    rehearsal = rehearse(stack, str(error))
    # Before the first `pulumi up`, a missing stack is not an error. The message is from pulumi/pulumi v3.250.0,
    # pkg/backend/backenderr/backenderr.go, read 2026-11-23.
    reason = "the stack does not exist yet" if "no stack named" in rehearsal.reason else rehearsal.reason
    warn(f"yard: {rehearsal.notice}: {reason}")
    jobs = prepare(rehearsal.cluster)
    lines = notes(jobs[0].file, jobs[0].environment, jobs[0].packages, rehearsal.cluster)
    facts = {"estimate": estimate(rehearsal, jobs), "environment": lines}
    show_files(jobs, as_json, facts, [*estimate_lines(rehearsal, jobs), *lines])


@app.command(cls=AfterDashes)
def run(
    context: typer.Context,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes. Default: 1.")] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", "--gpus-per-node", min=0, help="GPUs on each node. Default: all.")
    ] = None,
    group: GroupOption = None,
    time: Annotated[str | None, typer.Option("--time", help="Time limit, for example 30m or 8h. Default: 1h.")] = None,
    environment: EnvironmentOption = None,
    packages: WithOption = None,
    ports: Annotated[
        list[int] | None,
        typer.Option("--port", min=1, max=65535, help="Forward this local port to the first node."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the ssh commands instead of running them.")] = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Allocate nodes, and run a shell or the command after `--` on the first one.

    With `--port 8888`, a Jupyter server in the session is at http://127.0.0.1:8888 on this computer.
    """
    from yard.run.request import options_of
    from yard.run.session import prepare_session, run_session, show_session
    from yard.stack.remote import shell

    words = context.meta.get(AfterDashes.META, ())
    options = options_of(environment, packages, nodes=nodes or 1, gpus_per_node=gpus, group=group, time=time)
    remote = remote_of(stack, outputs)
    terminal = as_json or (sys.stdin.isatty() and sys.stdout.isatty())
    session = prepare_session(remote, options, shell(words) if words else None, terminal=terminal)
    if as_json:
        show_session(remote, session, ports or (), terminal=terminal)
        return
    raise typer.Exit(run_session(remote, session, ports or (), terminal=terminal))


@app.command()
def notebook(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", parser=_job, help="Connect to this job again.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of nodes.")] = 1,
    gpus: Annotated[
        int | None, typer.Option("--gpus", "--gpus-per-node", min=0, help="GPUs on each node. Default: all.")
    ] = None,
    group: GroupOption = None,
    time: Annotated[str, typer.Option("--time", help="Time limit, for example 30m or 8h.")] = "8h",
    environment: EnvironmentOption = None,
    packages: WithOption = None,
    port: Annotated[
        int | None, typer.Option("--port", min=1024, max=65535, help="Port of this computer. Default: 8888 if free.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the address and the ssh command, and end.")] = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Run JupyterLab in a job, and forward a port of this computer to it. Ctrl-C ends only the forwarding.

    The server uses a Unix socket on the first node and a token, which only the job user can read.
    """
    from yard.run import notebook as notebooks
    from yard.run.request import options_of

    here = notebooks.free_port(port)
    remote = remote_of(stack, outputs)
    options = options_of(environment, packages, nodes=nodes, gpus_per_node=gpus, group=group, time=time)
    number = notebooks.start(remote, options) if job is None else _number(remote, job)
    notebooks.connect(remote, number, here, as_json)


@app.command()
def code(
    job: JobArgument,
    folder: Annotated[
        str | None, typer.Argument(metavar="FOLDER", help="Folder on the cluster. Default: the job's run folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the command instead of running it.")] = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Open VS Code on the first node of a running job. What it starts is part of the job.

    The command also writes an SSH host entry that other editors can use.
    """
    from yard.run.editor import open_editor

    remote = remote_of(stack, outputs)
    open_editor(remote, _number(remote, job), folder, as_json)


@app.command()
def recipes(
    name: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", autocompletion=completion.recipes, help="Show this recipe in detail."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the included jobs."""
    from yard.job.loader import describe, recipe_names
    from yard.show import say, say_json, table

    found = [describe(name)] if name is not None else [describe(name) for name in recipe_names()]
    if as_json:
        say_json(found[0] if name is not None else found)
    elif name is not None:
        for key, value in found[0].items():
            if value not in {None, False}:
                say(f"{key + ':':10} {'yes' if value is True else value}")
    else:
        rows = [
            (
                row["name"],
                str(row["nodes"]),
                row["launcher"] + (f" in {row['container']}" if row["container"] else ""),
                "yes" if row["smoke"] else "",
                "partly" if row["verified"] and row["unverified"] else "yes" if row["verified"] else "no",
                row["about"] or "",
            )
            for row in found
        ]
        table(("RECIPE", "NODES", "LAUNCHER", "SMOKE SIZE", "VERIFIED", "ABOUT"), rows)
        say("`yard recipes RECIPE` prints its requirements; `yard submit RECIPE --smoke` runs its smoke size")


@app.command()
def ps(
    show_all: Annotated[bool, typer.Option("--all", "-a", help="Include jobs that ended in the last week.")] = False,
    long: Annotated[bool, typer.Option("--long", "-l", help="Show goodput and lost time.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """List jobs, also those that ended in the last day."""
    from yard.run.jobs import list_jobs

    list_jobs(remote_of(stack, outputs), 7 if show_all else 1, as_json, long=long)


@app.command()
def top(
    interval: Annotated[int, typer.Option("--interval", min=2, help="Seconds between two refreshes.")] = 5,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Show nodes, GPUs and jobs until you press q.

    Use of GPUs, steps and loss are shown for your own jobs. Without a terminal, the command prints one screen.
    """
    from yard.run.top import top as show_top

    show_top(remote_of(stack, outputs), interval, as_json)


@app.command()
def usage(
    month: Annotated[
        str | None,
        typer.Option("--month", metavar="YYYY-MM", parser=_month, help="Month. Default: the current month."),
    ] = None,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Show the GPU hours of people and accounts."""
    from yard.run.fair_use import show_usage

    show_usage(remote_of(stack, outputs), month or f"{datetime.now(UTC):%Y-%m}", as_json)


@app.command()
def cost(
    month: Annotated[
        str | None,
        typer.Option("--month", metavar="YYYY-MM", parser=_month, help="Month. Default: the current month."),
    ] = None,
    jobs: Annotated[bool, typer.Option("--jobs", help="Show the cost of each job instead.")] = False,
    job: Annotated[
        str | None,
        typer.Option("--job", metavar="JOB", help="Show what the steps of one job have cost, and what was lost."),
    ] = None,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Show what the cluster has cost at list prices, and a forecast."""
    from yard.run.cost import show_cost, show_job_bill, show_job_costs

    if job is not None:
        from yard.run.jobs import find_job

        remote = remote_of(stack, outputs)
        show_job_bill(remote, find_job(remote, job), as_json)
        return
    show = show_job_costs if jobs else show_cost
    show(remote_of(stack, outputs), month or f"{datetime.now(UTC):%Y-%m}", as_json)


@app.command()
def logs(
    job: JobArgument,
    follow: FollowOption = False,
    rank: Annotated[int, typer.Option("--rank", min=0, help="Rank whose log to print.")] = 0,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Print a job's log."""
    remote = remote_of(stack, outputs)
    number = _number(remote, job)
    if follow:
        _follow(remote, number, rank, as_json)
    from yard.run.jobs import show_log

    show_log(remote, number, rank, as_json)


@app.command()
def wait(
    job: JobArgument, as_json: JsonOption = False, stack: StackOption = "local", outputs: OutputsOption = None
) -> None:
    """Wait until a job has ended. Exits with the job's exit code."""
    remote = remote_of(stack, outputs)
    _follow(remote, _number(remote, job), 0, as_json, quiet=True)


@app.command()
def cancel(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="JOB...", parser=_job, help="Job numbers, or `last`.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Cancel all jobs of the job user.")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Cancel jobs."""
    if bool(jobs) == everything:
        raise typer.BadParameter("name the jobs, or use --all")
    from yard.run.jobs import cancel_jobs

    remote = remote_of(stack, outputs)
    cancel_jobs(remote, [_number(remote, job) for job in jobs or ()], as_json)


@app.command()
def resume(
    job: JobArgument, as_json: JsonOption = False, stack: StackOption = "local", outputs: OutputsOption = None
) -> None:
    """Restart a finished job from its last checkpoint."""
    from yard.run.jobs import resume_job

    remote = remote_of(stack, outputs)
    resume_job(remote, _number(remote, job), as_json)


def _number(remote: Remote, job: str) -> int:
    if job != "last":
        return int(job)
    from yard.run.jobs import find_job

    return find_job(remote, job).id


def _follow(remote: Remote, job: int, rank: int, as_json: bool, *, quiet: bool = False) -> None:
    from yard.run.jobs import follow_log

    try:
        code = follow_log(remote, job, rank, as_json, quiet=quiet)
    except KeyboardInterrupt:
        warn(f"\nyard: Ctrl-C ended only this command; to end job {job}, run `yard cancel {job}`")
        raise
    raise typer.Exit(code)
