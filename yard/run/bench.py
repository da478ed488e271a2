"""Runs benchmarks, which are jobs that measure a cluster, and compares, prints and saves their records."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainyard.errors import BenchError
from trainyard.outputs import Node
from yard.job.loader import load_job
from yard.job.placement import drives_gpus
from yard.run.environments import provide
from yard.run.jobs import follow, read_job
from yard.run.schedulers import scheduler_of
from yard.run.submit import prepare, submit
from yard.show import counted, say, say_json, table, warn
from yard.stack.remote import Remote
from yard.workloads import allreduce

_FORMAT = 1
_MOST_ROWS = 20
"""The maximum number of training steps to print. The record contains all steps."""

_COMPARABLE = 1 << 30
"""The smallest message size in bytes that is compared with a floor. Smaller messages measure latency."""
_UNITS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))
_NCCL = ("-b", "1M", "-e", "8G", "-f", "2", "--warmup", "5", "--iters", "20")
_TRAIN = ("--preset", "neox-2.7b", "--parallel", "fsdp2", "--compile")
_TRAIN_ROWS = 8
"""Number of sequences per GPU in each step, as for the same preset in docs/dev/benchmarks.md."""
_TINY = ("--preset", "tiny", "--parallel", "ddp")
_TINY_ROWS = 4
_TRAIN_OPTIONS = ("--steps", "30", "--save-every", "0", "--run-dir", "$RUN_DIR/bench")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of a benchmark, with a row for each message size, training step or number of nodes.

    `taken` is the time in ISO 8601. `floor` is the lowest passing value in GB/s (nccl), TFLOPS per rank (train) or
    efficiency (scaling), or None if no floor is known.
    """

    kind: str
    cluster: str
    group: str
    gpu_type: str | None
    nodes: int
    ranks: int
    taken: str
    floor: float | None
    rows: list[dict[str, Any]]
    summary: Mapping[str, Any]


def save(record: Record, path: Path) -> None:
    """Write the record to a file. Raises BenchError if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format": _FORMAT, **asdict(record)}, indent=1) + "\n")
    except OSError as error:
        raise BenchError(f"{path} cannot be written ({error.strerror}). Fix: use another folder with --out") from error


def load(path: Path, kind: str, least: float | None) -> Record:
    """Read a record from a file. If `least` is not None, it replaces the record's floor.

    Raises BenchError if the file is damaged or contains a record of another kind.
    """
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} cannot be read ({error}). Fix: use a file that `yard bench --out` wrote") from error
    if not isinstance(raw, dict) or raw.pop("format", None) != _FORMAT:
        raise BenchError(f"{path} is not a record of this version. Fix: use a file that `yard bench --out` wrote")
    try:
        record = Record(**raw)
        for derive in (failures, notes, _table):
            derive(record)  # a row may lack a key
    except (TypeError, KeyError, IndexError) as error:
        raise BenchError(f"{path} is damaged ({error!r}). Fix: run the benchmark again") from error
    if record.kind != kind:
        raise BenchError(f"{path} is a record of {record.kind}. Fix: use `yard bench {record.kind} --from`")
    return record if least is None else replace(record, floor=least)


def failures(record: Record) -> list[str]:
    """Return a message for each failure in a record."""
    floor, rows = record.floor, record.rows
    if record.kind == "nccl":
        problems = allreduce.problems(rows, floor if rows[-1]["size"] >= _COMPARABLE else None)
        return [f"{problem}; check the hosts with `yard doctor`" for problem in problems]
    if record.kind == "train":
        reached = record.summary.get("hardware_tflops") or 0.0
        found = ["the loss is not a number"] if any(math.isnan(row["loss"]) for row in rows) else []
        slow = floor is not None and reached < floor
        return [*found, f"{reached:.1f} TFLOPS per rank is below {floor:g}"] if slow else found
    return [
        f"{row['nodes']} nodes have an efficiency of {row['efficiency']:.2f}, below {floor:g}"
        for row in rows
        if floor is not None and row["efficiency"] < floor
    ]


def notes(record: Record) -> list[str]:
    """Return the reason why a record is not compared with a floor, or an empty list if it is compared."""
    if record.floor is None:
        return ["no floor is published for this machine type and number of nodes; set one with --min"]
    size = record.rows[-1]["size"] if record.kind == "nccl" else _COMPARABLE
    if size < _COMPARABLE:
        return [f"the largest size, {size} bytes, is too small for the floor of {record.floor:g} GB/s"]
    return []


def show(record: Record, out: Path | None, as_json: bool) -> int:
    """Print a record, and return the exit code. Raises BenchError if the record cannot be saved in the folder `out`."""
    failed = failures(record)
    file = None
    if out is not None:
        file = out / f"{record.kind}-{record.cluster}-{record.taken.replace(':', '').replace('+0000', 'Z')}.json"
        save(record, file)
    if as_json:
        say_json({**asdict(record), "passed": not failed, "trouble": failed, "file": file and str(file)})
        return 1 if failed else 0
    title = {"nccl": "All-reduce", "train": "Training", "scaling": "Weak scaling"}[record.kind]
    size = f"{counted(record.nodes, 'node')}, {record.ranks} ranks"
    say(f"{title}: {record.cluster}, group {record.group} ({record.gpu_type or 'no GPU'}), {size}")
    table(*_table(record))
    for note in notes(record):
        say(f"note: {note}")
    if file is not None:
        say(f"written: {file}")
    for line in failed:
        warn(f"yard: FAILED: {line}")
    if not failed:
        say("passed")
    return 1 if failed else 0


def size_name(size: int) -> str:
    """Return a number of bytes as text, such as 12, 16M or 8G."""
    return next((f"{size // scale}{unit}" for scale, unit in _UNITS if size >= scale and size % scale == 0), str(size))


def _table(record: Record) -> tuple[Sequence[str], list[Sequence[str]]]:
    if record.kind == "nccl":
        rows = [(size_name(row["size"]), f"{row['time_us']:.1f}", f"{row['busbw']:.2f}") for row in record.rows]
        return ("SIZE", "TIME, us", "BUSBW, GB/s"), list(rows)
    if record.kind == "train":
        some = record.rows[:: -(-len(record.rows) // _MOST_ROWS)]
        first, last = "step", "loss"
    else:
        some, first, last = record.rows, "nodes", "efficiency"
    cells = [(str(row[first]), f"{row['tokens_per_s']:.0f}", f"{row[last]:.3f}") for row in some]
    return (first.upper(), "TOKENS/S", last.upper()), list(cells)


@dataclass(frozen=True, kw_only=True)
class Field:
    """The nodes for a benchmark. `node` is the first node, and `environment` replaces the recipes' environment."""

    remote: Remote
    group: str
    node: Node
    nodes: int
    environment: str | None = None


def field_of(remote: Remote, group: str | None, nodes: int | None, environment: str | None = None) -> Field:
    """Return the first `nodes` nodes of a group, or all nodes except spares if `nodes` is None.

    The default group is the one with the most GPUs per node. Raises BenchError if the group has too few nodes.
    """
    cluster = remote.stack.cluster
    groups = list(dict.fromkeys(node.group for node in cluster.nodes))
    if not groups or (group is not None and group not in groups):
        raise BenchError(f"the cluster has no node group '{group or ''}'; its groups: {', '.join(groups) or 'none'}")
    chosen = group or max(cluster.nodes, key=lambda node: node.gpus).group
    members = [node for node in cluster.nodes if node.group == chosen]
    usable = len(members) - cluster.spares.get(chosen, 0)
    if nodes is not None and nodes > usable:
        raise BenchError(f"group '{chosen}' has {usable} nodes, not {nodes}; use --nodes {usable} or fewer")
    return Field(remote=remote, group=chosen, node=members[0], nodes=nodes or usable, environment=environment)


def counts(most: int) -> list[int]:
    """Return the powers of two below `most`, followed by `most`."""
    return [1 << power for power in range(most.bit_length()) if 1 << power < most] + [most]


def nccl(field: Field, args: Sequence[str], least: float | None) -> Record:
    """Measure all-reduces. Raises BenchError if the job has no results."""
    sizes = _NCCL if drives_gpus(field.node) else ()
    run_dir, _ = _run(field, "allreduce", [*sizes, *args])
    report: dict[str, Any] = json.loads(_read(field, f"{run_dir}/allreduce.json"))
    rows = report.pop("results")
    floor = least if least is not None else field.remote.stack.cluster.busbw_floor(field.group, field.nodes)
    return _record(field, "nccl", report["ranks"], floor, rows, report)


def train(field: Field, args: Sequence[str], least: float | None) -> Record:
    """Measure training. Raises BenchError if the job has no results."""
    real = drives_gpus(field.node)
    ranks = field.nodes * (field.node.gpus if real else 1)
    batch = ranks * (_TRAIN_ROWS if real else _TINY_ROWS)
    options = [*(_TRAIN if real else _TINY), "--batch", str(batch), *_TRAIN_OPTIONS]
    run_dir, log = _run(field, "train-tiny", [*options, *args])
    rows = [json.loads(line) for line in _read(field, f"{run_dir}/bench/metrics.jsonl").splitlines()]
    return _record(field, "train", ranks, least, rows, summary_of(log))


def scaling(field: Field, args: Sequence[str], least: float | None) -> Record:
    """Measure training on 1, 2, 4, ... nodes with the same batch size per rank."""
    points = [train(replace(field, nodes=nodes), args, None) for nodes in counts(field.nodes)]
    first = points[0].summary["tokens_per_s"]
    rows = []
    for point in points:
        rate = point.summary["tokens_per_s"]
        efficiency = rate / (point.nodes * first)
        rows.append({"nodes": point.nodes, "ranks": point.ranks, "tokens_per_s": rate, "efficiency": efficiency})
    return _record(field, "scaling", points[-1].ranks, least, rows, {})


def summary_of(log: Sequence[str]) -> dict[str, Any]:
    """Return the summary that the trainer printed. Raises BenchError if it is missing or has no rates."""
    for line in reversed(log):
        if line.startswith('{"summary"'):
            found: dict[str, Any] = json.loads(line)
            if "tokens_per_s" in found:
                return found
    raise BenchError("the training has no results. Fix: run more than 10 steps, because the first 10 are not measured")


def _record(  # noqa: PLR0913, PLR0917  (one parameter for each part of a record)
    field: Field, kind: str, ranks: int, floor: float | None, rows: list[dict[str, Any]], summary: dict[str, Any]
) -> Record:
    if not rows:
        raise BenchError(f"the {kind} benchmark has no results. Fix: find the cause with `yard logs`")
    return Record(
        kind=kind,
        cluster=field.remote.stack.cluster.name,
        group=field.group,
        gpu_type=field.node.gpu_type,
        nodes=field.nodes,
        ranks=ranks,
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        floor=floor,
        rows=rows,
        summary=summary,
    )


def _run(field: Field, recipe: str, args: Sequence[str]) -> tuple[str, list[str]]:
    """Run a recipe, print its log on stderr, and return its run folder and log. Ctrl-C cancels the job."""
    remote = field.remote
    overrides: dict[str, Any] = {"nodes": field.nodes, "group": field.group, "retries": 0, "name": f"bench-{recipe}"}
    if field.environment is not None:
        overrides["environment"] = field.environment
    (job,) = provide(remote, [prepare(load_job(recipe, overrides, {}, args), remote.stack.cluster)])
    sent = submit(remote, job)
    warn(f"yard: job {sent.job} runs {recipe} on {field.nodes} nodes in group {field.group}")
    log: list[str] = []

    def show(line: str) -> None:
        log.append(line)
        warn(f"  {line}")

    try:
        ended = follow(remote, sent.job, 0, show)
    except KeyboardInterrupt:
        scheduler_of(remote.stack.cluster.scheduler).cancel(remote, [read_job(remote, sent.job)])
        raise BenchError(f"interrupted; job {sent.job} was cancelled") from None
    if ended.verdict:
        raise BenchError(f"job {sent.job} {ended.state}: no results. Fix: find the cause with `yard logs {sent.job}`")
    return sent.run_dir, log


def _read(field: Field, path: str) -> str:
    return field.remote.run(f"cat {shlex.quote(path)}")
