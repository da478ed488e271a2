"""What the doctor says: a node, what is wrong, why, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

from jobs.doctor.reports import HostReport
from jobs.facts import Cluster


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that would break a job, or has."""

    probe: str
    node: str
    what: str
    cause: str
    fix: str

    def as_json(self) -> dict[str, str]:
        """Return the finding as `--json` prints it."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Examined:
    """Everything the checks judge: the outputs and the reports of all hosts, head first."""

    cluster: Cluster
    reports: Mapping[str, HostReport]

    @property
    def has_slurm(self) -> bool:
        """Whether Slurm runs the jobs."""
        return self.cluster.scheduler == "slurm"

    @property
    def answered(self) -> list[HostReport]:
        """The reports of the hosts that answered to the end."""
        return [report for report in self.reports.values() if not report.trouble]

    @property
    def workers(self) -> list[HostReport]:
        """The workers among them."""
        return [report for report in self.answered if report.name != self.cluster.head.name]

    @property
    def head(self) -> HostReport | None:
        """The head's report, when it answered."""
        return next((report for report in self.answered if report.name == self.cluster.head.name), None)


Check = Callable[[Examined], Iterator[Finding]]


def rdma_layer(fabric: str) -> str | None:
    """Return the link layer of the RDMA ports that collectives use, as the kernel names it; None without RDMA."""
    if fabric.startswith("infiniband"):
        return "InfiniBand"
    return "Ethernet" if fabric == "roce" else None


def odd_ones(values: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, its value, the usual value) of those that differ from most; of a draw, the first is usual."""
    usual = Counter(values.values()).most_common(1)
    for name, value in values.items():
        if value != usual[0][0]:
            yield name, value, usual[0][0]
