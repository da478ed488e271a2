"""Runs benchmark jobs and reads their results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from trainyard.errors import BenchError
from trainyard.outputs import Node
from yard.bench.record import Record
from yard.job.loader import load_job
from yard.job.placement import drives_gpus
from yard.run.environments import provide
from yard.run.jobs import follow, read_job
from yard.run.schedulers import scheduler_of
from yard.run.submit import prepare, submit
from yard.show import warn
from yard.stack.remote import Remote

_NCCL = ("-b", "1M", "-e", "8G", "-f", "2", "--warmup", "5", "--iters", "20")
_TRAIN = ("--preset", "neox-2.7b", "--parallel", "fsdp2", "--compile")
_TRAIN_ROWS = 8
"""Sequences per GPU and step. docs/dev/benchmarks.md uses the same number for this preset."""
_TINY = ("--preset", "tiny", "--parallel", "ddp")
_TINY_ROWS = 4
_TRAIN_OPTIONS = ("--steps", "30", "--save-every", "0", "--run-dir", "$RUN_DIR/bench")


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
