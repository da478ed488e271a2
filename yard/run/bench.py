"""Benchmarks: jobs that measure a cluster, and their records, which are compared with a floor, printed and saved."""

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
from yard.show import say, say_json, table, warn
from yard.stack.remote import Remote
from yard.workloads import allreduce

_FORMAT = 1
_MOST_ROWS = 20
"""Number of training steps that are printed. The record contains all steps."""
_NEEDED = {
    "nccl": ("size", "time_us", "algbw", "busbw", "wrong"),
    "train": ("step", "loss", "step_ms", "tokens_per_s"),
    "scaling": ("nodes", "ranks", "tokens_per_s", "efficiency"),
}
_COMPARABLE = 1 << 30
"""Minimum message size in bytes for a comparison with a published floor. Smaller messages measure latency."""
_UNITS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))
_NCCL = ("-b", "1M", "-e", "8G", "-f", "2", "--warmup", "5", "--iters", "20")
_TRAIN = ("--preset", "neox-2.7b", "--parallel", "fsdp2", "--compile")
_TRAIN_ROWS = 8
"""Sequences per GPU and step. docs/dev/benchmarks.md uses the same number for this preset."""
_TINY = ("--preset", "tiny", "--parallel", "ddp")
_TINY_ROWS = 4
_TRAIN_OPTIONS = ("--steps", "30", "--save-every", "0", "--run-dir", "$RUN_DIR/bench")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of a benchmark.

    `taken`: the time in ISO 8601. `floor`: the lowest passing value in GB/s (nccl), TFLOPS per rank (train) or
    efficiency (scaling), or None if no floor is published. `rows`: one row for each message size, training step or
    number of nodes.
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

    @property
    def title(self) -> str:
        """The title above a table."""
        benchmark = {"nccl": "All-reduce", "train": "Training", "scaling": "Weak scaling"}[self.kind]
        size = f"{self.nodes} node{'s' if self.nodes > 1 else ''}, {self.ranks} ranks"
        return f"{benchmark}: {self.cluster}, group {self.group} ({self.gpu_type or 'no GPU'}), {size}"


def save(record: Record, path: Path) -> None:
    """Write the record to a file. Raises BenchError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format": _FORMAT, **asdict(record)}, indent=1) + "\n")
    except OSError as error:
        raise BenchError(f"{path} cannot be written ({error.strerror}). Fix: use another folder with --out") from error


def load(path: Path, kind: str, least: float | None) -> Record:
    """Read a record from a file. `least` replaces its floor. Raises BenchError if the file is damaged or
    contains a record of another kind.
    """
    again = "Fix: run the benchmark again"
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} cannot be read ({error}). Fix: use a file that `yard bench --out` wrote") from error
    if not isinstance(raw, dict) or raw.pop("format", None) != _FORMAT:
        raise BenchError(f"{path} is not a record of this version. Fix: use a file that `yard bench --out` wrote")
    try:
        record = Record(**raw)
        missing = [key for row in record.rows for key in _NEEDED[record.kind] if key not in row]
    except (TypeError, KeyError) as error:
        raise BenchError(f"{path} is damaged ({error}). {again}") from error
    if missing or not record.rows:
        raise BenchError(f"{path} is damaged ({missing[0] if missing else 'rows'} missing). {again}")
    if record.kind != kind:
        raise BenchError(f"{path} is a record of {record.kind}. Fix: use `yard bench {record.kind} --from`")
    return record if least is None else replace(record, floor=least)


def failures(record: Record) -> list[str]:
    """Return a message for each failure, or an empty list if the record passes."""
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
    """Return the reasons why a record was not compared with a floor."""
    if record.floor is None:
        return ["no floor is published for this machine type and number of nodes; set one with --min"]
    size = record.rows[-1]["size"] if record.kind == "nccl" else _COMPARABLE
    if size < _COMPARABLE:
        return [f"the largest size, {size} bytes, is too small for the floor of {record.floor:g} GB/s"]
    return []


def show(record: Record, out: Path | None, as_json: bool) -> int:
    """Print a record, and save it in the folder `out` if it is given.

    Returns the exit code, which is 1 if the record contains a failure. Raises BenchError if a file cannot be written.
    """
    failed = failures(record)
    file = None
    if out is not None:
        file = out / f"{record.kind}-{record.cluster}-{record.taken.replace(':', '').replace('+0000', 'Z')}.json"
        save(record, file)
    if as_json:
        say_json({**asdict(record), "passed": not failed, "trouble": failed, "file": file and str(file)})
        return 1 if failed else 0
    say(record.title)
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
    """Return a number of bytes as text, with a binary unit if the number is a multiple of 1024: 16M, 8G, 12."""
    return next((f"{size // scale}{unit}" for scale, unit in _UNITS if size >= scale and size % scale == 0), str(size))


def _table(record: Record) -> tuple[Sequence[str], list[Sequence[str]]]:
    if record.kind == "nccl":
        rows = [(size_name(row["size"]), f"{row['time_us']:.1f}", f"{row['busbw']:.2f}") for row in record.rows]
        return ("SIZE", "TIME, us", "BUSBW, GB/s"), list(rows)
    if record.kind == "train":
        some = record.rows[:: -(-len(record.rows) // _MOST_ROWS)]
        return ("STEP", "TOKENS/S", "LOSS"), [
            (str(row["step"]), f"{row['tokens_per_s']:.0f}", f"{row['loss']:.3f}") for row in some
        ]
    return ("NODES", "TOKENS/S", "EFFICIENCY"), [
        (str(row["nodes"]), f"{row['tokens_per_s']:.0f}", f"{row['efficiency']:.3f}") for row in record.rows
    ]


@dataclass(frozen=True, kw_only=True)
class Field:
    """The nodes for a benchmark: `nodes` nodes from one group. `node` is the first of these nodes.

    `environment` replaces the Python environment of the recipes, unless it is None.
    """

    remote: Remote
    group: str
    node: Node
    nodes: int
    environment: str | None = None


def field_of(remote: Remote, group: str | None, nodes: int | None, environment: str | None = None) -> Field:
    """Return the first `nodes` nodes of the group, or all nodes except spares. Raises BenchError if there are fewer.

    Without `group`, the group with the most GPUs per node is used.
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
    """Measure all-reduce. Raises BenchError if the job has no results."""
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
    rows = [
        {
            "nodes": point.nodes,
            "ranks": point.ranks,
            "tokens_per_s": point.summary["tokens_per_s"],
            "efficiency": point.summary["tokens_per_s"] / (point.nodes * first),
        }
        for point in points
    ]
    return _record(field, "scaling", points[-1].ranks, least, rows, {})


def summary_of(log: Sequence[str]) -> dict[str, Any]:
    """Return the summary printed by the trainer. Raises BenchError if it is missing or has no rates."""
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
    """Run a recipe and print its log on stderr. Returns its run folder and log. An interrupt cancels the job."""
    remote = field.remote
    overrides: dict[str, Any] = {
        "nodes": field.nodes, "group": field.group, "retries": 0, "name": f"bench-{recipe}",
    }  # fmt: skip
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
