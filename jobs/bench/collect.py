"""Runs benchmark jobs and reads what they wrote."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jobs.bench.records import Record
from jobs.bundle import submit
from jobs.errors import BenchError
from jobs.facts import Node
from jobs.logs import follow, read_job
from jobs.placement import drives_gpus
from jobs.remote import Remote
from jobs.schedulers import scheduler_of
from jobs.submit import Wish, prepare

_NCCL = ("-b", "1M", "-e", "8G", "-f", "2", "--warmup", "5", "--iters", "20")
_TRAIN = ("--preset", "neox-2.7b", "--parallel", "fsdp2", "--compile")
_TRAIN_ROWS = 8
"""Sequences a GPU works on at a time: what docs/benchmarks.md measured with that preset."""
_TINY = ("--preset", "tiny", "--parallel", "ddp")
_TINY_ROWS = 4
_STEPS = 30
_OUTPUT = "bench"


@dataclass(frozen=True, kw_only=True)
class Field:
    """Where a benchmark runs: some nodes of one group."""

    remote: Remote
    group: str
    node: Node
    nodes: int

    @property
    def ranks_per_node(self) -> int:
        """One rank a GPU that computes, else one."""
        return self.node.gpus if drives_gpus(self.node) else 1


def field_of(remote: Remote, group: str | None, nodes: int | None) -> Field:
    """Return the group's nodes, all of them unless told how many. Raises BenchError when they are not there."""
    cluster = remote.stack.cluster
    groups = list(dict.fromkeys(node.group for node in cluster.nodes))
    if not groups or (group is not None and group not in groups):
        raise BenchError(f"there is no node group '{group or ''}'; the cluster has {', '.join(groups) or 'none'}")
    chosen = group or max(groups, key=lambda name: max(node.gpus for node in cluster.nodes if node.group == name))
    members = [node for node in cluster.nodes if node.group == chosen]
    if nodes is not None and nodes > len(members):
        raise BenchError(f"group '{chosen}' has {len(members)} nodes, not {nodes}; use --nodes {len(members)} or fewer")
    return Field(remote=remote, group=chosen, node=members[0], nodes=nodes or len(members))


def counts(most: int) -> list[int]:
    """Return 1, 2, 4, ... and `most` itself."""
    found = [1 << power for power in range(most.bit_length()) if 1 << power < most]
    return [*found, most]


def nccl(field: Field, args: Sequence[str], least: float | None) -> Record:
    """Measure all-reduce. Raises BenchError when the job gave no figures."""
    sizes = _NCCL if drives_gpus(field.node) else ()
    run_dir, _ = _run(field, "allreduce", field.nodes, [*sizes, *args])
    report: dict[str, Any] = json.loads(_read(field, f"{run_dir}/allreduce.json"))
    rows = report.pop("results")
    floor = least if least is not None else field.remote.stack.cluster.busbw_floor(field.group, field.nodes)
    return _record(field, "nccl", field.nodes, report["ranks"], floor, rows, report)


def train(field: Field, args: Sequence[str], least: float | None) -> Record:
    """Measure training on all of the nodes. Raises BenchError when the job gave no figures."""
    return _train(field, field.nodes, args, least)


def scaling(field: Field, args: Sequence[str], least: float | None) -> Record:
    """Measure training on 1, 2, 4, ... nodes with the same batch a rank."""
    points = [_train(field, nodes, args, None) for nodes in counts(field.nodes)]
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
    return _record(field, "scaling", field.nodes, points[-1].ranks, least, rows, {})


def _train(field: Field, nodes: int, args: Sequence[str], least: float | None) -> Record:
    real = drives_gpus(field.node)
    ranks = nodes * field.ranks_per_node
    batch = ranks * (_TRAIN_ROWS if real else _TINY_ROWS)
    sizes = ["--batch", str(batch), "--steps", str(_STEPS), "--save-every", "0", "--run-dir", f"$RUN_DIR/{_OUTPUT}"]
    run_dir, said = _run(field, "train-tiny", nodes, [*(_TRAIN if real else _TINY), *sizes, *args])
    rows = [json.loads(line) for line in _read(field, f"{run_dir}/{_OUTPUT}/metrics.jsonl").splitlines()]
    return _record(field, "train", nodes, ranks, least, rows, summary_of(said))


def summary_of(said: Sequence[str]) -> dict[str, Any]:
    """Return the trainer's last words. Raises BenchError when there are none, or when they hold no rates."""
    for line in reversed(said):
        if line.startswith('{"summary"'):
            found: dict[str, Any] = json.loads(line)
            if "tokens_per_s" in found:
                return found
    raise BenchError("the training ended without figures; it needs more than 10 steps to leave out the first ones")


def _record(  # noqa: PLR0913, PLR0917  (a record has that many parts)
    field: Field, kind: str, nodes: int, ranks: int, floor: float | None, rows: list[dict[str, Any]], summary: Any
) -> Record:
    if not rows:
        raise BenchError(f"the {kind} benchmark measured nothing; look at its log with `yard ps` and `yard logs`")
    return Record(
        kind=kind,
        cluster=field.remote.stack.cluster.name,
        group=field.group,
        gpu_type=field.node.gpu_type,
        nodes=nodes,
        ranks=ranks,
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        floor=floor,
        rows=rows,
        summary=summary,
    )


def _run(field: Field, recipe: str, nodes: int, args: Sequence[str]) -> tuple[str, list[str]]:
    """Run a recipe to its end, its log on stderr. Returns its folder and log. Interrupted, the job is cancelled."""
    remote = field.remote
    overrides = {"nodes": nodes, "group": field.group, "retries": 0, "name": f"bench-{recipe}"}
    loaded = Wish(job=recipe, overrides=overrides, settings=(), args=tuple(args), smoke=False).load()
    prepared = prepare(loaded, remote.stack.cluster)
    sent = submit(remote, loaded.spec.name, prepared.files, loaded.spec.chain)
    sys.stderr.write(f"yard: job {sent.job} runs {recipe} on {nodes} of group {field.group}\n")
    said: list[str] = []

    def show(line: str) -> None:
        said.append(line)
        sys.stderr.write(f"  {line}\n")

    try:
        ended = follow(remote, sent.job, 0, show)
    except KeyboardInterrupt:
        scheduler_of(remote.stack.cluster).cancel(remote, [read_job(remote, sent.job)])
        raise BenchError(f"interrupted; job {sent.job} was cancelled") from None
    if ended.verdict:
        raise BenchError(f"job {sent.job} {ended.state}: `yard logs {sent.job}` tells why; nothing was measured")
    return sent.run_dir, said


def _read(field: Field, path: str) -> str:
    return field.remote.run(f"cat {shlex.quote(path)}")
