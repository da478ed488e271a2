"""Commands for the records of jobs: report, diff, pull."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from yard.commands.jobs import JobArgument
from yard.commands.options import JsonOption, OutputsOption, StackOption, remote_of

if TYPE_CHECKING:
    from yard.report.record import Record

app = typer.Typer(rich_markup_mode=None)

RecordsOption = Annotated[
    Path | None,
    typer.Option("--records", metavar="DIR", help="Read a folder that `yard pull` has written (no cluster needed)."),
]


@app.command()
def report(
    job: JobArgument = "last",
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="The HTML file. Default: report-JOB.html.")
    ] = None,
    opens: Annotated[bool, typer.Option("--open", help="Open the file in the browser.")] = False,
    records: RecordsOption = None,
    whole: Annotated[bool, typer.Option("--cluster", help="Write a page about the cluster instead of a job.")] = False,
    days: Annotated[int, typer.Option("--days", min=1, help="With --cluster: the days to include.")] = 7,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Write a page about a job: its training, ranks, cost and nodes.

    The page is one HTML file, which needs no network. JOB is a number; the default is your newest job. With --cluster,
    the page contains the jobs, the cost and the nodes of the last days.
    """
    from dataclasses import asdict

    from yard.report.findings import findings
    from yard.report.page import page
    from yard.show import answer

    if whole:
        if records is not None:
            raise typer.BadParameter("--cluster reads the cluster, so it cannot be combined with --records")
        from yard.report.cluster import cluster_page, read_week

        week = read_week(remote_of(stack, outputs), days)
        file = _write(output or Path(f"report-{week.cluster}.html"), cluster_page(week), opens)
        of_cluster = {"jobs": [listed.id for listed in week.jobs], "days": days, "file": str(file)}
        answer(f"the report of cluster {week.cluster} is in {file}", of_cluster, as_json)
        return
    (record,) = _records(records, [job], stack, outputs)
    file = _write(output or Path(f"report-{record.job.id}.html"), page(record, time.time()), opens)
    found = findings(record)
    lines = [f"{row.kind}: {row.text}" for row in found]
    facts = {"job": record.job.id, "file": str(file), "findings": [asdict(row) for row in found]}
    answer("\n".join([*lines, f"the report of job {record.job.id} is in {file}"]), facts, as_json)


def _write(file: Path, text: str, opens: bool) -> Path:
    """Write a page, and open it in the browser if `opens` is set. Return its absolute path."""
    import webbrowser

    from trainyard.errors import JobError

    try:
        file.write_text(text)
    except OSError as error:
        raise JobError(f"{file} cannot be written: {error.strerror}. Fix: name another file with --output") from error
    if opens:
        webbrowser.open(file.absolute().as_uri())
    return file.absolute()


@app.command()
def diff(
    first: JobArgument,
    second: JobArgument,
    records: RecordsOption = None,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Print how two jobs differ, and what this probably means."""
    from dataclasses import asdict

    from yard.report.findings import compare
    from yard.show import say, say_json, table

    one, other = _records(records, [first, second], stack, outputs)
    found = compare(one, other)
    if as_json:
        say_json({"jobs": [one.job.id, other.job.id], **asdict(found)})
        return
    say(found.conclusion)
    for cause in found.causes:
        say(f"  {cause.text}")
    rows = [(row.group, row.name, row.first, row.second) for row in found.differences]
    table(("GROUP", "VALUE", f"JOB {one.job.id}", f"JOB {other.job.id}"), rows)


@app.command()
def pull(
    records: Annotated[
        Path, typer.Option("--records", metavar="DIR", help="Copy the records of all your jobs to this folder.")
    ],
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Copy the records of jobs to this computer before `pulumi destroy`.

    The folder needs about 50 KB for each job. Records of ended jobs that are already there are not copied again. An
    admin of a cluster with people copies the records of all jobs.
    """
    from yard.report.record import pull as copy
    from yard.show import answer, counted

    copied, kept = copy(remote_of(stack, outputs), records)
    text = f"copied {counted(len(copied), 'record')} to {records}; {kept} were already there"
    answer(text, {"folder": str(records.absolute()), "copied": copied, "kept": kept}, as_json)


def _records(folder: Path | None, jobs: list[str], stack: str, outputs: Path | None) -> list[Record]:
    """Return the records of jobs from a folder or from the cluster."""
    from yard.report.record import load

    remote = None if folder is not None else remote_of(stack, outputs)
    return [load(remote, folder, job) for job in jobs]
