"""Results of the health checks that are installed on each host."""

from __future__ import annotations

from collections.abc import Iterator

from yard.doctor.findings import Examined, HostProblem, problem

_FIELDS = 5


def check_health(examined: Examined) -> Iterator[HostProblem]:
    """All health checks for the host pass. The host's bundle contains the checks and the texts of their problems."""
    for report in examined.answered:
        rows = report.of("health")
        if ("ran",) not in rows:
            yield problem(report.name, "health")
        for check, _, text, cause, fix in (row for row in rows if len(row) == _FIELDS):
            yield HostProblem(report.name, f"{check}: {text}", cause, fix.replace("{host}", report.name))
