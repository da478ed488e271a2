"""Host reports: the tab-separated lines that the probes print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Rows = list[tuple[str, ...]]


@dataclass(kw_only=True)
class HostReport:
    """The report from one host: rows by probe. `error` contains a message if the report is incomplete."""

    name: str
    rows: dict[str, Rows] = field(default_factory=dict)
    error: str = ""

    def add(self, line: str) -> None:
        """Add one line of probe output."""
        probe, *fields = line.rstrip("\n").split("\t")
        self.rows.setdefault(probe, []).append(tuple(fields))

    def of(self, probe: str) -> Rows:
        """Return the rows of a probe, or an empty list if there are none."""
        return self.rows.get(probe, [])

    def value(self, probe: str, key: str) -> str:
        """Return the second field of the probe's first row whose first field is `key`, or an empty string."""
        return next((row[1] for row in self.of(probe) if len(row) > 1 and row[0] == key), "")


def peer_lines(name: str, head: str, reports: Mapping[str, HostReport]) -> list[str]:
    """Return the facts about other hosts that `name` needs in the second phase.

    Munge credentials are exchanged only between the head and each worker, because workers do not authenticate to each
    other.
    """
    lines = []
    for other, report in reports.items():
        if other == name:
            continue
        if port := report.value("tcp", "port"):
            lines.append(f"peer tcp {other} {port}")
        if report.value("nfs", "write") == "0":
            lines.append(f"peer nfs {other} written")
        credential = report.value("munge", "credential")
        if credential.startswith("MUNGE:") and head in {name, other}:
            lines.append(f"peer munge {other} {credential}")
    return lines
