"""What is noticeable in a job's record, what differs between two records, and what the differences probably mean."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from yard.report.record import Gpu, NodeRecord, Record
from yard.run.flight import BUSY_PERCENT, together
from yard.run.hang import ranks_text
from yard.show import counted, duration

SLOWER = 1.08
"""A rank counts as slow if its own time in a step is this many times the median of all ranks."""
_SAME_SPEED = 0.03
_THROTTLED_SHARE = 0.1
_LEAST_BUSY = _LEAST_ROWS = 3
"""The fewest samples under load from which a GPU is judged, and the fewest records of the ranks' own times."""
_CLOCK_SHARE, _BUSBW_SHARE = 0.95, 0.9
_SLOW_STEP, _PHASE_SHARE = 1.25, 0.02
"""How much slower than the median the steps of a slow phase are, and its shortest share of all points."""
_IDLE_PERCENT = 10
_WAIT_SHARE = 0.2
_HEALTHY = "no fault"
_SHOWN, _CLIPPED, _MOST_PLACES = 8, 80, 3
_HUNG = re.compile(r"has written no heartbeat for|\(stall_minutes\)$")
_STARTED = re.compile(r"job \d+, start \d+, on ")
_PLACE = re.compile(r"ranks? [\d, -]+: in ")
"""The messages of yard about a hang, a start, and the place where ranks were (hang.py)."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something noticeable in a job. `kind` names the rule. `nodes` and `ranks` are affected, or empty."""

    kind: str
    text: str
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A value that differs between two jobs. A missing value is empty."""

    group: str
    name: str
    first: str
    second: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How two jobs differ: a sentence about their speed, the probable causes in order, and all differences."""

    conclusion: str
    causes: tuple[Finding, ...]
    differences: tuple[Difference, ...]


def findings(record: Record) -> list[Finding]:
    """Return what is noticeable in a job, the most likely causes of a low speed first."""
    rules = (
        _hang, _throttled, _slow_ranks, _slow_clocks, _slow_phase, _faults, _bandwidth, _unequal_nodes, _idle,
        _waits_for_data, _lost,
    )  # fmt: skip
    return [found for rule in rules for found in rule(record)]


def _gpus(record: Record) -> Iterator[tuple[NodeRecord, Gpu]]:
    return ((node, gpu) for node in record.last for gpu in node.gpus)


def _hang(record: Record) -> Iterator[Finding]:
    """Find starts in which the ranks hung, and say where they were, from yard's messages."""
    starts: list[list[str]] = [[]]
    for message in record.messages:
        if _STARTED.match(message):
            starts.append([])
        starts[-1].append(message)
    for messages in starts:
        reasons = [text for text in messages if _HUNG.search(text)]
        groups = [text for text in messages if text.startswith("process group ")]
        # The place with the fewest ranks is first.
        places = [text for text in messages if _PLACE.match(text)]
        if reasons or groups:
            shown = (*reasons[:1], *(groups or places[:_MOST_PLACES]))
            yield Finding(kind="hang", text="; ".join(("the job hung", *shown)))


def _throttled(record: Record) -> Iterator[Finding]:
    for node in record.last:
        found = [gpu for gpu in node.gpus if throttled_share(gpu) >= _THROTTLED_SHARE]
        if not found:
            continue
        share = max(map(throttled_share, found))
        reasons = sorted({reason for gpu in found for reason in gpu.throttled})
        yield Finding(
            kind="throttled GPU",
            text=f"{_named('GPU', [gpu.index for gpu in found])} of {node.node} throttled in {share:.0%} of the "
            f"samples under load ({', '.join(reasons)})",
            nodes=(node.node,),
            ranks=tuple(gpu.rank for gpu in found if gpu.rank is not None),
        )


def throttled_share(gpu: Gpu) -> float:
    """Return the share of the samples under load in which the GPU was throttled, or 0 if there are too few samples."""
    return max(gpu.throttled.values(), default=0) / gpu.busy if gpu.busy >= _LEAST_BUSY else 0.0


def slow_ranks(record: Record) -> tuple[int, ...]:
    """Return the ranks whose own time in a step is longer than that of the others. Short jobs have too few records."""
    own = record.steps.rank_ms
    if not own or record.steps.rank_rows < _LEAST_ROWS or statistics.median_low(own) <= 0:
        return ()
    limit = statistics.median_low(own) * SLOWER
    return tuple(rank for rank, value in enumerate(own) if value > limit)


def _slow_ranks(record: Record) -> Iterator[Finding]:
    slow, own = slow_ranks(record), record.steps.rank_ms
    if slow:
        ratio = statistics.median(own[rank] for rank in slow) / statistics.median_low(own)
        nodes = tuple(dict.fromkeys(filter(None, map(record.node_of, slow))))
        where = f", on {_listed(nodes)}" if nodes else ""
        verb = "was" if len(slow) == 1 else "were"
        text = f"{len(slow)} of {counted(len(own), 'rank')} {verb} {ratio - 1:.0%} slower ({ranks_text(slow)}{where})"
        yield Finding(kind="slow rank", text=text, nodes=nodes, ranks=slow)


def _slow_clocks(record: Record) -> Iterator[Finding]:
    clocks = [gpu.clock for _, gpu in _gpus(record) if gpu.clock is not None]
    if not clocks:
        return
    usual = statistics.median(clocks)
    for node, gpu in _gpus(record):
        if gpu.clock is None or gpu.busy < _LEAST_BUSY or throttled_share(gpu) >= _THROTTLED_SHARE:
            continue
        if gpu.clock < _CLOCK_SHARE * usual:
            most = f"most GPUs at {usual:.0f} MHz"
            text = f"GPU {gpu.index} of {node.node} ran at {gpu.clock:.0f} MHz under load, and {most}"
            ranks = () if gpu.rank is None else (gpu.rank,)
            yield Finding(kind="slow clock", text=text, nodes=(node.node,), ranks=ranks)


def _slow_phase(record: Record) -> Iterator[Finding]:
    """Find the longest time in which steps were slower than usual, which the median of all steps does not show.

    The first point is ignored, because a job's first steps load and compile kernels.
    """
    steps, median = record.steps, record.steps.median_ms
    if not median:
        return
    slow: list[list[int]] = []
    for index, value in enumerate(steps.step_ms):
        if index and value is not None and value > _SLOW_STEP * median:
            if slow and slow[-1][-1] == index - 1:
                slow[-1].append(index)
            else:
                slow.append([index])
    longest = max(slow, key=len, default=[])
    if len(longest) < _LEAST_ROWS or len(longest) < _PHASE_SHARE * len(steps.step_ms):
        return
    first, last = steps.step[longest[0] - 1], steps.step[longest[-1]]
    took = statistics.median(value for index in longest if (value := steps.step_ms[index]) is not None)
    text = f"steps {(first or 0) + 1:,.0f} to {last:,.0f} took {took:.1f} ms each, and the median is {median:.1f} ms"
    yield Finding(kind="slow phase", text=text)


def _faults(record: Record) -> Iterator[Finding]:
    for node in record.last:
        if (health := node.hardware.get("health", _HEALTHY)) != _HEALTHY:
            text = f"{node.node} had a fault when the job started: {health}"
            yield Finding(kind="fault", text=text, nodes=(node.node,))


def _bandwidth(record: Record) -> Iterator[Finding]:
    for size in (1, 2):
        measured = [row for row in record.busbw if len(row.nodes) == size]
        usual = statistics.median(row.busbw for row in measured) if measured else 0.0
        for row in measured:
            if row.busbw < (row.floor or 0) or row.busbw < _BUSBW_SHARE * usual:
                usually = f"median {usual:.4g}" + (f", floor {row.floor:.4g}" if row.floor is not None else "")
                text = f"the bus bandwidth of {' and '.join(row.nodes)} was {row.busbw:.4g} GB/s ({usually})"
                yield Finding(kind="bandwidth", text=text, nodes=row.nodes)


def _unequal_nodes(record: Record) -> Iterator[Finding]:
    for kind in ("software", "hardware"):
        for name, value in node_facts(record.last, kind).items():
            if (
                value.endswith(")")
                and len({getattr(node, kind).get(name) for node in record.last}) > 1
                and name != "health"
            ):
                yield Finding(kind="unequal nodes", text=f"the nodes differ in {name}: {value}")


def _idle(record: Record) -> Iterator[Finding]:
    used = [
        (node, gpu, gpu.mean_use) for node, gpu in _gpus(record) if gpu.mean_use is not None and gpu.rank is not None
    ]
    if not used or statistics.median(use for *_, use in used) < BUSY_PERCENT:
        return
    for node, gpu, use in used:
        if use < _IDLE_PERCENT:
            text = f"GPU {gpu.index} of {node.node} was used {use:.0f} % of the time"
            yield Finding(kind="idle GPU", text=text, nodes=(node.node,), ranks=(gpu.rank or 0,))


def _waits_for_data(record: Record) -> Iterator[Finding]:
    rows = zip(record.steps.data_ms, record.steps.step_ms, strict=True)
    shares = [data / step for data, step in rows if data is not None and step]
    if shares and (share := statistics.median(shares)) > _WAIT_SHARE:
        yield Finding(kind="data", text=f"rank 0 waited for data in {share:.0%} of the time of a step")


def _lost(record: Record) -> Iterator[Finding]:
    used = record.goodput
    if used is None and len(record.starts) > 1:
        ends = "; ".join(f"start {start.number} {start.cause}" for start in record.starts[-_SHOWN:-1])
        yield Finding(kind="restarts", text=f"the job started {len(record.starts)} times: {ends}")
    if used is not None and used.starts > 1:
        parts = {
            "between starts": used.waiting_s,
            "for repeated steps": used.redone_s,
            "for checkpoints": used.saving_s,
        }
        text = ", ".join(f"{duration(round(seconds))} {name}" for name, seconds in parts.items() if round(seconds))
        yield Finding(kind="restarts", text=f"the job started {used.starts} times and lost {text or 'little time'}")


def _named(noun: str, numbers: Sequence[int]) -> str:
    return f"{noun} {numbers[0]}" if len(numbers) == 1 else f"{noun}s {', '.join(map(str, numbers))}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def node_facts(nodes: Sequence[NodeRecord], kind: str) -> dict[str, str]:
    """Return the facts of a kind (`software` or `hardware`). If nodes differ, a value contains their names."""
    facts: dict[str, dict[str, str]] = {}
    for node in nodes:
        for name, value in getattr(node, kind).items():
            facts.setdefault(name, {})[node.node] = value
    return {name: together(values) for name, values in facts.items()}


# --- two records ------------------------------------------------------------------------------------------------------


def results(record: Record) -> dict[str, str]:
    """Return the job's results by name. Unknown results are omitted."""
    job, steps, used = record.job, record.steps, record.goodput
    losses = [loss for loss in steps.loss if loss is not None]
    rates = [rate for rate in steps.tokens_per_s if rate is not None]
    found = {
        "state": job.state,
        "exit code": str(job.exit_code) if job.ended else "",
        "starts": str(len(record.starts) or ""),
        "elapsed": duration(job.elapsed_s),
        "steps": f"{steps.count:,}" if steps.count else "",
        "median step": f"{steps.median_ms:.1f} ms" if steps.median_ms is not None else "",
        "tokens per second": f"{statistics.median(rates):,.0f}" if rates else "",
        "last loss": f"{losses[-1]:.4f}" if losses else "",
        "goodput": f"{used.goodput:.0%}" if used is not None else "",
        "cost": f"${record.usd:,.2f}" if record.usd is not None else "",
    }
    return {name: value for name, value in found.items() if value}


def _sections(record: Record) -> dict[str, Mapping[str, str]]:
    nccl: dict[str, dict[str, str]] = {}
    for host, facts in record.nccl.items():
        for name, value in facts.items():
            nccl.setdefault(f"NCCL {name}", {})[host] = value
    chosen: dict[str, dict[str, str]] = {}
    for row in record.busbw:
        if row.algorithm:
            chosen.setdefault(_ALGORITHMS[len(row.nodes) > 1], {})[" and ".join(row.nodes)] = row.algorithm
    names = ", ".join(node.node for node in record.last) or record.job.node_list
    return {
        "code": record.code,
        "arguments": record.arguments,
        "environment": record.environment,
        "software": {
            **node_facts(record.last, "software"),
            **{name: together(row) for name, row in (nccl | chosen).items()},
        },
        "nodes": {"cluster": record.cluster, **record.placement, "names": names},
        "hardware": node_facts(record.last, "hardware"),
        "results": results(record),
    }


def differences(first: Record, second: Record) -> list[Difference]:
    """Return the values that differ, in groups."""
    left, right = _sections(first), _sections(second)
    return [
        Difference(group=group, name=name, first=left[group].get(name, ""), second=right[group].get(name, ""))
        for group in left
        for name in dict.fromkeys((*left[group], *right[group]))
        if left[group].get(name) != right[group].get(name)
    ]


def compare(first: Record, second: Record) -> Comparison:
    """Compare two jobs. The causes are those of the slower one, or of the failed one."""
    found = differences(first, second)
    conclusion, slower, faster = _speed(first, second)
    return Comparison(
        conclusion=conclusion, causes=tuple(_causes(slower, faster, found)), differences=tuple(found)
    )  # fmt: skip


def _speed(first: Record, second: Record) -> tuple[str, Record, Record]:
    """Return a sentence, and the jobs in the order of the slower and the faster one."""
    one, other = first.steps.median_ms, second.steps.median_ms
    names = f"jobs {first.job.id} and {second.job.id}"
    if not one or not other:
        without = [str(record.job.id) for record in (first, second) if not record.steps.median_ms]
        unknown = f"{'job' if len(without) == 1 else 'jobs'} {' and '.join(without)}"
        states = f"they ended as {first.job.state} and {second.job.state}"
        failed = first.job.state != "COMPLETED" and second.job.state == "COMPLETED"
        order = (first, second) if failed else (second, first)
        return f"the speed of {names} cannot be compared, because {unknown} recorded no steps; {states}", *order
    slower, faster = (second, first) if other >= one else (first, second)
    ratio = max(one, other) / min(one, other)
    times = f"a step took {one:.1f} ms in job {first.job.id} and {other:.1f} ms in job {second.job.id}"
    if first.world_size != second.world_size:
        sizes = f"{first.world_size} and {second.world_size} ranks"
        return f"{times}; they had {sizes}, so the times are not directly comparable", slower, faster
    if ratio - 1 < _SAME_SPEED:
        return f"{names} had the same speed: {times}", slower, faster
    return f"job {slower.job.id} was {ratio - 1:.0%} slower: {times}", slower, faster


def _causes(slower: Record, faster: Record, found: Sequence[Difference]) -> Iterator[Finding]:
    """Yield the probable causes: what is noticeable only in the slower job, and then the differences."""
    usual = {finding.kind for finding in findings(faster)}
    own = [finding for finding in findings(slower) if finding.kind not in usual]
    slow = next((finding for finding in own if finding.kind == "slow rank"), None)
    for finding in own:
        if finding.kind == "throttled GPU":
            effect = f": {slow.text}" if slow is not None and set(slow.nodes) & set(finding.nodes) else ""
            text = f"job {slower.job.id} ran on a node that throttled{effect}. {finding.text}"
            yield Finding(kind=finding.kind, text=text, nodes=finding.nodes, ranks=finding.ranks)
        elif finding is not slow or not any(other.kind == "throttled GPU" for other in own):
            yield Finding(kind=finding.kind, text=f"in job {slower.job.id}, {finding.text}", nodes=finding.nodes,
                          ranks=finding.ranks)  # fmt: skip
    if slower.world_size != faster.world_size:
        sizes = f"{slower.world_size} instead of {faster.world_size}"
        yield Finding(
            kind="world size", text=f"job {slower.job.id} had {sizes} ranks, so each step communicates differently"
        )
    for kind, sentence, concerns in _RULES:
        rows = [row for row in found if concerns(row)]
        if rows:
            changes = "; ".join(map(_change, rows[:_SHOWN])) + (
                f"; and {len(rows) - _SHOWN} more" * (len(rows) > _SHOWN)
            )
            yield Finding(kind=kind, text=f"{sentence}: {changes}")


def _change(row: Difference) -> str:
    first, second = (
        f"{text[:_CLIPPED]}..." if len(text) > _CLIPPED else text or "none" for text in (row.first, row.second)
    )
    return f"{row.name} {first} -> {second}"


def _concerns(group: str, names: Iterable[str] = (), without: Iterable[str] = ()) -> Callable[[Difference], bool]:
    """Return a function that selects the differences of a group, either `names` or all names but `without`."""
    chosen, omitted = frozenset(names), frozenset(without)
    return lambda row: row.group == group and (row.name in chosen if chosen else row.name not in omitted)


_DRIVER, _NETWORK = (
    ("GPU driver", "CUDA of the driver"),
    ("NCCL network", "NCCL plugin", "NCCL rings", "fabric settings"),
)
_ALGORITHMS = ("all-reduce algorithm of a node", "all-reduce algorithm of pairs")
_RULES = (
    ("network", "NCCL used another network or plugin", _concerns("software", _NETWORK)),
    ("algorithm", "NCCL chose another algorithm in the bandwidth gate", _concerns("software", _ALGORITHMS)),
    ("driver", "the GPU drivers differ", _concerns("software", _DRIVER)),
    ("environment", "the environments differ", _concerns("environment")),
    (
        "software",
        "the software of the nodes differs",
        _concerns("software", without=(*_NETWORK, *_DRIVER, *_ALGORITHMS)),
    ),
    ("hardware", "the hardware or its settings differ", _concerns("hardware", without=("health",))),
    ("code", "the code differs", _concerns("code")),
    ("arguments", "the arguments differ", _concerns("arguments", without=("name", "nodes"))),
    ("nodes", "the jobs ran on other nodes", _concerns("nodes", ("cluster", "groups", "names"))),
)
"""The rules for differences, in the order of their likelihood: a kind, a sentence, and the differences."""
