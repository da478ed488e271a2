"""What the hosts told: the probes' tab-separated lines, by host and probe. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Rows = list[tuple[str, ...]]


@dataclass(kw_only=True)
class HostReport:
    """One host's answer. `trouble` is what ssh or the shell said when it did not answer to the end."""

    name: str
    rows: dict[str, Rows] = field(default_factory=dict)
    trouble: str = ""

    def add(self, line: str) -> None:
        """Take one line of a probe."""
        probe, *fields = line.rstrip("\n").split("\t")
        self.rows.setdefault(probe, []).append(tuple(fields))

    def of(self, probe: str) -> Rows:
        """Return the rows of a probe; none when it said nothing."""
        return self.rows.get(probe, [])

    def value(self, probe: str, key: str) -> str:
        """Return the second field of the probe's row that begins with `key`; '' when there is none."""
        return next((row[1] for row in self.of(probe) if len(row) > 1 and row[0] == key), "")


def parse_report(name: str, lines: Iterable[str]) -> HostReport:
    """Return the report of one host from what its probes printed."""
    report = HostReport(name=name)
    for line in lines:
        report.add(line)
    return report


def peer_lines(name: str, head: str, reports: Mapping[str, HostReport]) -> list[str]:
    """Return what host `name` must know of the others for the second half of the probes.

    Credentials go between the head and each worker only: those are who talk to one another.
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
