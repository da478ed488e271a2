"""A job's record: what the head has read from its run folder (yard/run/flight.py), with its state, goodput and cost.

The job's owner can change the files in the run folder. Values of a wrong type therefore count as missing.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import JobError, RemoteError, UnreachableError
from trainyard.outputs import Invalid, read
from yard.run import flight
from yard.run.cost import JobBill, bill_of
from yard.run.goodput import Goodput
from yard.run.jobs import acting_for_owner, find_job, goodputs_of
from yard.run.queue import Job
from yard.run.schedulers import scheduler_of
from yard.show import counted, warn
from yard.stack.remote import Remote

_FORMAT = 1
_AT_ONCE = 50
_READ_SECONDS = 300
_ALL_DAYS = 3650
_LONGEST = 2000
_WHOLE = re.compile(r"[0-9]{1,12}")
Numbers = tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU's use in percent and power in W in each part of a start, and values of all samples.

    `clock` is the median in MHz under load, `memory` the largest use in MiB, and `temperature` the highest in degrees
    Celsius. `throttled` maps reasons to numbers of samples, out of `busy` samples under load.
    """

    index: int
    rank: int | None
    use: Numbers
    power: Numbers
    mean_use: float | None
    mean_power: float | None
    clock: float | None
    memory: float | None
    temperature: float | None
    busy: int
    throttled: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """A node in one start of the job. `time` is in seconds since 1970, and `cpu` in percent."""

    node: str
    start: int
    ranks: range
    software: Mapping[str, str]
    hardware: Mapping[str, str]
    time: Numbers
    cpu: Numbers
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The job's useful steps, in columns of equal length. `rank_ms` contains each rank's own time in a step."""

    count: int
    median_ms: float | None
    step: Numbers
    loss: Numbers
    step_ms: Numbers
    slowest_ms: Numbers
    tokens_per_s: Numbers
    data_ms: Numbers
    rank_ms: tuple[float, ...]
    rank_rows: int
    """The number of records of which `rank_ms` is the median."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """A start of the job, and why it ended. Times are in seconds since 1970, and `end` is None if it is unknown."""

    number: int
    begin: float
    end: float | None
    nodes: str
    cause: str


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """The bus bandwidth of a node or of a pair, in GB/s. `floor` is the lowest passing value, or None.

    `algorithm` is NCCL's algorithm and protocol, or empty if they are unknown.
    """

    nodes: tuple[str, ...]
    busbw: float
    floor: float | None
    algorithm: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known about a job. Mappings contain names and texts, and are empty if nothing is recorded."""

    cluster: str
    job: Job
    goodput: Goodput | None
    bill: JobBill | None
    usd_per_hour: float | None
    code: Mapping[str, str]
    arguments: Mapping[str, str]
    environment: Mapping[str, str]
    placement: Mapping[str, str]
    nccl: Mapping[str, Mapping[str, str]]
    steps: Steps
    starts: tuple[Start, ...]
    messages: tuple[str, ...]
    """What yard has written to the job's log."""
    links: tuple[str, ...]
    """Addresses of the job in tracking services."""
    nodes: tuple[NodeRecord, ...]
    busbw: tuple[Bandwidth, ...]

    @property
    def last(self) -> tuple[NodeRecord, ...]:
        """The nodes of the last recorded start, in the order of their ranks."""
        newest = max((node.start for node in self.nodes), default=0)
        return tuple(sorted((node for node in self.nodes if node.start == newest), key=lambda node: node.ranks.start))

    @property
    def world_size(self) -> int:
        """The number of ranks, or 0 if it is unknown."""
        nodes, each = self.placement.get("nodes", ""), self.placement.get("ranks per node", "")
        chosen = _whole(nodes) * _whole(each)
        return len(self.steps.rank_ms) or max((node.ranks.stop for node in self.last), default=0) or chosen

    @property
    def usd(self) -> float | None:
        """The cost in dollars, or None if a price is unknown."""
        if self.bill is not None:
            return self.bill.usd
        return None if self.usd_per_hour is None else round(self.usd_per_hour * self.job.elapsed_s / 3600, 2)

    def node_of(self, rank: int) -> str:
        """Return the name of a rank's node, or '' if it is unknown."""
        return next((node.node for node in self.last if rank in node.ranks), "")


def fetch(remote: Remote, jobs: Sequence[Job], *, skips: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the document of each job that has a readable run folder. All jobs must have the same user.

    With `skips`, records that cannot be read are omitted with a warning, because the jobs' owner can cause this.
    """
    cluster = remote.stack.cluster
    folder = f"{cluster.jobs_of(jobs[0].user)}/" if jobs else ""
    known = {job.id: job for job in jobs if job.run_dir.startswith(folder)}
    program = Path(flight.__file__).read_bytes()
    found = list(known.values())
    for some in (found[at : at + _AT_ONCE] for at in range(0, len(found), _AT_ONCE)):
        words = [f"{job.id}={job.run_dir}" for job in some]
        line = shlex.join(["python3", "-", "read", cluster.state_dir, *words])
        try:
            reader = acting_for_owner(remote, some[0], reads=True)
            printed = reader.run(line, stdin=program, seconds=_READ_SECONDS)
            goodputs = _dict(goodputs_of(reader, some, folder))
        except UnreachableError:
            raise
        except (RemoteError, ValueError) as error:
            if not skips:
                raise
            warn(f"yard: the records of {counted(len(some), 'job')} of {some[0].user} cannot be read: {error}")
            continue
        for text in printed.splitlines():
            job, read_there = _read_there(text, known)
            if job is None:
                warn(f"yard: a program of {some[0].user} has printed a line that is no record")
                continue
            used = goodputs.get(str(job.id))
            bill = None
            if cluster.scheduler == "slurm":
                with suppress(RemoteError):  # without accounting, the cost is unknown
                    bill = bill_of(remote, job, used)
            yield {
                "version": _FORMAT, "cluster": cluster.name, "job": asdict(job), "goodput": used,
                "bill": bill and asdict(bill), "read": read_there,
            }  # fmt: skip


def _read_there(text: str, known: Mapping[int, Job]) -> tuple[Job | None, dict[str, Any]]:
    """Return the job and the records in a line that was printed with the rights of the jobs' owner.

    The job is None if the line is damaged. The owner can change what Python does, for example in the home folder.
    """
    try:
        found = _dict(json.loads(text))
    except (ValueError, RecursionError):
        return None, {}
    number = found.pop("id", None)
    return (known.get(number) if isinstance(number, int) else None), found


def parse(raw: Any) -> Record:
    """Return the record in a document that `fetch` has made. Raises ValueError if the document is damaged."""
    document = _dict(raw)
    if document.get("version") != _FORMAT:
        raise ValueError(f"its version is {document.get('version')!r}, and this version of yard reads {_FORMAT}")
    try:
        job = read(Job, document.get("job"))
        goodput = read(Goodput, document["goodput"]) if document.get("goodput") else None
        goodput = goodput if goodput is not None and _is_usual(goodput) else None
        bill = read(JobBill, document["bill"]) if document.get("bill") else None
    except Invalid as error:
        raise ValueError(f"its job is damaged: {error}") from error
    found = _dict(document.get("read"))
    submitted, snapshot = _dict(found.get("submitted")), _dict(found.get("snapshot"))
    code = {
        "commit": snapshot.get("commit"),
        "changed files": ", ".join(_strings(snapshot.get("changed"))),
        "changes": snapshot.get("diff"),
        "untracked files": str(snapshot["untracked"]) if _number(snapshot.get("untracked")) else "",
        "sent directory": submitted.get("code"),
        **{f"file {name}": value for name, value in _texts(submitted.get("files")).items()},
    }
    environment = {**_texts(submitted.get("environment")), "folder": found.get("environment")}
    return Record(
        cluster=_text(document.get("cluster")),
        job=job,
        goodput=goodput,
        bill=bill,
        usd_per_hour=_number(submitted.get("usd_per_hour")),
        code=_texts(code),
        arguments=_texts(submitted.get("arguments")),
        environment=_texts(environment),
        placement=_texts(submitted.get("placement")),
        nccl={host: _texts(facts) for host, facts in sorted(_dict(found.get("nccl")).items())},
        steps=_steps(_dict(found.get("metrics"))),
        links=tuple(link for link in _strings(found.get("links")) if link.startswith(("https://", "http://"))),
        starts=tuple(parse_starts(_strings(found.get("events")))),
        messages=tuple(_strings(found.get("messages"))),
        nodes=tuple(_node(_dict(node)) for node in _list(found.get("nodes"))),
        busbw=tuple(_bandwidths(_list(found.get("busbw")))),
    )


def parse_starts(events: Iterable[str]) -> Iterator[Start]:
    """Yield the starts in the lines of a job's file `events` (`note` in yard/run/shared.sh and runner/job.py)."""
    current: Start | None = None
    causes: list[str] = []
    for line in events:
        when, event, *rest = (*line.split(" "), "", "")
        words = [word for word in rest if word]
        if not _WHOLE.fullmatch(when):
            continue
        if event == "start":
            if current is not None:
                yield _ended(current, causes or ["it lost a node, or was requeued"], None)
            number = _whole(words[0]) if words else 0
            current = Start(number=number, begin=float(when), end=None, nodes=" ".join(words[1:]), cause="")
            causes = []
        elif current is not None and (text := _cause(event, words)):
            causes.append(text)
        elif event == "end" and current is not None:
            code = words[0] if words else "0"
            yield _ended(current, causes or (["completed"] if code == "0" else [f"ended with exit code {code}"]), when)
            current = None
        if event == "requeue" and current is not None:
            yield _ended(current, causes, when)
            current = None
    if current is not None:
        yield _ended(current, causes, None)


def _cause(event: str, words: Sequence[str]) -> str:
    """Return what an event says about the end of a start, or ''."""
    if event == "failed" and words:
        return f"failed with exit code {words[0]}" + (f" on {words[1]}" if len(words) > 1 else "")
    if event == "fault" and len(words) > 2:  # noqa: PLR2004  (node, time and reason)
        return f"{words[0]} had the fault {' '.join(words[2:])}"
    return " ".join(words) if event == "requeue" else ""


def _ended(start: Start, causes: Sequence[str], end: str | None) -> Start:
    return Start(number=start.number, begin=start.begin, nodes=start.nodes, cause="; ".join(causes),
                 end=None if end is None else float(end))  # fmt: skip


def _steps(found: Mapping[str, Any]) -> Steps:
    names = ("step", "loss", "step_ms", "slowest_ms", "tokens_per_s", "data_ms")
    columns = {name: _numbers(found.get(name)) for name in names}
    length = min(map(len, columns.values()))
    own = _numbers(found.get("rank_ms"))
    return Steps(
        count=int(_number(found.get("count")) or 0),
        median_ms=_number(found.get("median_ms")),
        rank_rows=int(_number(found.get("rank_rows")) or 0),
        rank_ms=tuple(value for value in own if value is not None) if None not in own else (),
        **{name: column[:length] for name, column in columns.items()},
    )


def _node(found: Mapping[str, Any]) -> NodeRecord:
    tasks = max(0, int(_number(found.get("tasks")) or 0))
    first = max(0, int(_number(found.get("node_rank")) or 0)) * tasks
    gpus = [_dict(gpu) for gpu in _list(found.get("gpus"))]
    return NodeRecord(
        node=_text(found.get("node")),
        start=int(_number(found.get("start")) or 0),
        ranks=range(first, first + tasks),
        software=_texts(found.get("software")),
        hardware=_texts(found.get("hardware")),
        time=_numbers(found.get("time")),
        cpu=_numbers(found.get("cpu")),
        gpus=tuple(
            Gpu(
                index=index,
                # With fewer GPUs than ranks, ranks share GPUs.
                rank=first + index * tasks // len(gpus) if tasks <= len(gpus) else None,
                use=_numbers(gpu.get("use")),
                power=_numbers(gpu.get("power")),
                busy=int(_number(gpu.get("busy")) or 0),
                throttled={name: int(value) for name, value in _dict(gpu.get("throttled")).items() if _number(value)},
                **{name: _number(gpu.get(name))
                   for name in ("mean_use", "mean_power", "clock", "memory", "temperature")},
            )
            for index, gpu in enumerate(gpus)
        ),
    )  # fmt: skip


def _bandwidths(rows: Sequence[Any]) -> Iterator[Bandwidth]:
    for row in map(_dict, rows):
        busbw = _number(row.get("busbw"))
        if busbw is not None:
            nodes, algorithm = tuple(_strings(row.get("nodes"))), _text(row.get("algorithm"))
            yield Bandwidth(nodes=nodes, busbw=busbw, floor=_number(row.get("floor")), algorithm=algorithm)


def _is_usual(goodput: Goodput) -> bool:
    """Return whether a goodput consists of finite numbers. A program of the job's owner can have printed it."""
    return all(_number(value) is not None for value in asdict(goodput).values()) and goodput.wall_s > 0


def _whole(text: str) -> int:
    return int(text) if _WHOLE.fullmatch(text) else 0


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def _strings(value: Any) -> list[str]:
    return [_text(item) for item in _list(value) if isinstance(item, str)]


def _texts(value: Any) -> dict[str, str]:
    """Return the items of a mapping that have a text."""
    return {name[:_LONGEST]: text for name, item in _dict(value).items() if (text := _text(item))}


def _number(value: Any) -> float | None:
    valid = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18  # noqa: PLR2004
    return value if valid and math.isfinite(value) else None


def _numbers(value: Any) -> Numbers:
    return tuple(_number(item) for item in _list(value))


# --- folders with records ---------------------------------------------------------------------------------------------


def load(remote: Remote | None, folder: Path | None, job: str) -> Record:
    """Return the record of a job, from a folder or else from the cluster. Raises JobError if there is none."""
    if folder is not None:
        return load_file(folder, job)
    assert remote is not None  # noqa: S101  (for the type checker)
    found = next(fetch(remote, [find_job(remote, job)]), None)
    if found is None:
        raise JobError(f"job {job} was not submitted with `yard submit`, so it has no record")
    return parse(found)


def load_file(folder: Path, job: str) -> Record:
    """Return the record of a job in a folder that `yard pull` has written. Raises JobError if it cannot be read."""
    numbers = sorted(int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal())
    number = str(numbers[-1]) if job == "last" and numbers else job
    path = folder / f"{number}.json"
    try:
        return parse(json.loads(path.read_bytes()))
    except FileNotFoundError:
        kept = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
        raise JobError(f"{folder} has no record of job {job}; its jobs: {kept}. Fix: `yard pull --records`") from None
    except (OSError, ValueError) as error:
        raise JobError(f"{path} cannot be read: {error}. Fix: remove it and run `yard pull --records` again") from error


def pull(remote: Remote, folder: Path) -> tuple[list[int], int]:
    """Copy the records of the user's jobs to a folder, or those of all users for an admin.

    Return the numbers of the copied jobs and how many jobs were copied before. Records of jobs that have ended are not
    copied again. Raises JobError if the folder contains records of another cluster, or cannot be written.
    """
    cluster = remote.stack.cluster
    jobs = scheduler_of(cluster.scheduler).recent(remote, _ALL_DAYS)
    everybody = remote.stack.is_admin
    mine = [job for job in jobs if everybody or job.user == remote.stack.user]
    kept = 0
    copied: list[int] = []
    by_user: dict[str, list[Job]] = {}
    for job in mine:
        before = _stored(folder, job.id)
        if before is not None and before.cluster != cluster.name:
            raise JobError(
                f"{folder} contains records of cluster '{before.cluster}'. Fix: use a folder for each cluster"
            )
        if before is not None and before.job.ended and before.job.state == job.state:
            kept += 1
        else:
            by_user.setdefault(job.user, []).append(job)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for found in (document for some in by_user.values() for document in fetch(remote, some, skips=True)):
            try:
                parse(found)
            except ValueError as error:
                # Otherwise, the next `yard pull` could not read the folder.
                warn(f"yard: the record of job {found['job']['id']} is not copied: {error}")
                continue
            if problem := found["read"].get("error"):
                warn(f"yard: the record of job {found['job']['id']} is damaged: {problem}")
            _write(folder / f"{found['job']['id']}.json", found)
            copied.append(found["job"]["id"])
    except OSError as error:
        raise JobError(f"{folder} cannot be written: {error.strerror}. Fix: name another folder") from error
    return sorted(copied), kept


def _stored(folder: Path, job: int) -> Record | None:
    return load_file(folder, str(job)) if (folder / f"{job}.json").exists() else None


def _write(path: Path, document: Any) -> None:
    """Write a file that only its owner can read, because arguments can be private."""
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(document, file)
    new.replace(path)
