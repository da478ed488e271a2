"""Records of benchmark runs, saved as one JSON file per run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from yard.errors import BenchError

_FORMAT = 1


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
        """Title for charts and plots."""
        benchmark = {"nccl": "All-reduce", "train": "Training", "scaling": "Weak scaling"}[self.kind]
        size = f"{self.nodes} node{'s' if self.nodes > 1 else ''}, {self.ranks} ranks"
        return f"{benchmark}: {self.cluster}, group {self.group} ({self.gpu_type or 'no GPU'}), {size}"


_NEEDED = {
    "nccl": ("size", "time_us", "algbw", "busbw", "wrong"),
    "train": ("step", "loss", "step_ms", "tokens_per_s"),
    "scaling": ("nodes", "ranks", "tokens_per_s", "efficiency"),
}


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
