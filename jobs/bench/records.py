"""What a benchmark measured, as it is kept: one JSON file a run, whose shape these types are. Pure but for files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs.errors import BenchError

_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of a benchmark.

    `floor` is the least that passes, in the kind's own unit, or None where nobody published one; `rows` is what was
    measured: sizes of an all-reduce, steps of a training, node counts of a scaling. `cluster`, `group` and `gpu_type`
    say on what, `taken` (ISO 8601) when.
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
        """What the record is of, in words."""
        what = {"nccl": "All-reduce", "train": "Training", "scaling": "Weak scaling"}[self.kind]
        where = f"{self.nodes} node{'s' if self.nodes > 1 else ''}, {self.ranks} ranks"
        return f"{what}: {self.cluster}, group {self.group} ({self.gpu_type or 'no GPU'}), {where}"


_NEEDED = {
    "nccl": ("size", "time_us", "algbw", "busbw", "wrong"),
    "train": ("step", "loss", "step_ms", "tokens_per_s"),
    "scaling": ("nodes", "ranks", "tokens_per_s", "efficiency"),
}


def save(record: Record, path: Path) -> None:
    """Write the record."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"format": _FORMAT, **asdict(record)}, indent=1) + "\n")
    except OSError as error:
        raise BenchError(f"{path} cannot be written ({error.strerror}); name another folder with --out") from error


def load(path: Path, kind: str) -> Record:
    """Read a kept record. Raises BenchError when it is none of that kind, or damaged."""
    try:
        raw = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BenchError(f"{path} cannot be read ({error}); name a file that `yard bench --out` wrote") from error
    if not isinstance(raw, dict) or raw.pop("format", None) != _FORMAT:
        raise BenchError(f"{path} is no record of this version; name a file that `yard bench --out` wrote")
    try:
        record = Record(**raw)
        missing = [key for row in record.rows for key in _NEEDED[record.kind] if key not in row]
    except (TypeError, KeyError) as error:
        raise BenchError(f"{path} is damaged ({error}); run the benchmark again") from error
    if missing or not record.rows:
        raise BenchError(f"{path} is damaged ({missing[0] if missing else 'rows'} missing); run the benchmark again")
    if record.kind != kind:
        raise BenchError(f"{path} is a record of {record.kind}; use `yard bench {record.kind} --from`")
    return record
