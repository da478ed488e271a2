"""Defines the reports that the checks read and the problems that they find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import yaml

from trainyard.outputs import Cluster, Node

Rows = list[tuple[str, ...]]


@dataclass(kw_only=True)
class HostReport:
    """The probes' output on a host. `rows` maps each probe to its rows, and `error` says why a report is incomplete."""

    name: str
    rows: dict[str, Rows] = field(default_factory=dict)
    error: str = ""

    def add(self, line: str) -> None:
        """Add one line of probe output."""
        probe, *fields = line.rstrip("\n").split("\t")
        self.rows.setdefault(probe, []).append(tuple(fields))

    def of(self, probe: str) -> Rows:
        """Return the rows that a probe printed."""
        return self.rows.get(probe, [])

    def value(self, probe: str, key: str) -> str:
        """Return the second field of the probe's first row whose first field is `key`, or an empty string."""
        return next((row[1] for row in self.of(probe) if len(row) > 1 and row[0] == key), "")


def peer_lines(name: str, head: str, reports: Mapping[str, HostReport]) -> list[str]:
    """Return the facts about other hosts that the host `name` needs in the second phase.

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


@dataclass(frozen=True)
class HostProblem:
    """A host's problem that can break jobs. The fields are keys in the output of `yard doctor --json`."""

    node: str
    what: str
    cause: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Examined:
    """The stack's outputs and all hosts' reports, beginning with the head's report."""

    cluster: Cluster
    reports: Mapping[str, HostReport]
    stack: str

    @property
    def has_slurm(self) -> bool:
        """Whether Slurm runs the jobs."""
        return self.cluster.scheduler == "slurm"

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """The workers by name."""
        return {node.name: node for node in self.cluster.nodes}

    @property
    def answered(self) -> list[HostReport]:
        """The complete reports."""
        return [report for report in self.reports.values() if not report.error]

    @property
    def workers(self) -> list[HostReport]:
        """The workers' complete reports."""
        return [report for report in self.answered if report.name != self.cluster.head.name]

    @property
    def head(self) -> HostReport | None:
        """The head's report, or None if it is incomplete."""
        return next((report for report in self.answered if report.name == self.cluster.head.name), None)


HostCheck = Callable[[Examined], Iterator[HostProblem]]


@cache
def _texts() -> dict[str, dict[str, str]]:
    texts: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("problems.yaml").read_text())
    return texts


def problem(host: str, text: str, **values: object) -> HostProblem:
    """Return a host's problem. `text` names an entry in problems.yaml, and `values` fill the entry's placeholders."""
    rerun = f"run `yard ssh {host} --admin -- sudo systemctl restart trainyard-bootstrap`"
    parts = (_texts()[text][part].format(host=host, rerun=rerun, **values) for part in ("what", "cause", "fix"))
    return HostProblem(host, *parts)


def rdma_layer(fabric: str) -> str | None:
    """Return sysfs's name for the link layer of the fabric's RDMA ports, or None if the fabric has no RDMA."""
    if fabric.startswith("infiniband"):
        return "InfiniBand"
    return "Ethernet" if fabric == "roce" else None


def outliers(values: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each value that differs from the most frequent one as (name, value, most frequent value)."""
    for usual, _ in Counter(values.values()).most_common(1):
        yield from ((name, value, usual) for name, value in values.items() if value != usual)


def unequal_versions(software: str, versions: Mapping[str, str]) -> Iterator[HostProblem]:
    """Yield a problem for each host whose version differs from the most frequent one."""
    for name, version, usual in outliers(versions):
        yield problem(name, "version", software=software, found=version, expected=usual)
