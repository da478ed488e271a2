"""Checks that compare the GPUs and RDMA ports of several hosts. The health checks of one host are in the bundle."""

from __future__ import annotations

from collections.abc import Iterator

from yard.doctor.findings import Examined, HostProblem, outliers, problem, rdma_layer, unequal_versions
from yard.doctor.reports import HostReport

_PORT_FIELDS = 3


def check_driver(examined: Examined) -> Iterator[HostProblem]:
    """The driver version is the same on all workers, and the driver supports the node's RDMA cards."""
    versions = {report.name: report.value("driver", "version") for report in examined.workers}
    yield from unequal_versions("the GPU driver", {name: version for name, version in versions.items() if version})
    for report in examined.workers:
        version = versions[report.name]
        if version and rdma_layer(examined.nodes[report.name].fabric) and not report.value("driver", "direct"):
            yield problem(report.name, "gpudirect")


def check_topology(examined: Examined) -> Iterator[HostProblem]:
    """All nodes in a group have the same GPU topology."""
    links: dict[str, dict[str, str]] = {}
    for report in examined.workers:
        rows = "; ".join(" ".join(row) for row in report.of("topology"))
        # If there are no rows, nvidia-smi failed. The health checks report this failure.
        if rows:
            links.setdefault(examined.nodes[report.name].group, {})[report.name] = rows
    for by_name in links.values():
        for name, found, usual in outliers(by_name):
            pairs = zip(found.split("; "), usual.split("; "), strict=False)
            row, expected = next((pair for pair in pairs if pair[0] != pair[1]), (found, usual))
            yield problem(name, "topology", found=row, expected=expected)


def check_infiniband(examined: Examined) -> Iterator[HostProblem]:
    """On an RDMA fabric, the active ports have the same rates on all nodes."""
    rates = {}
    for report in examined.workers:
        layer = rdma_layer(examined.nodes[report.name].fabric)
        if layer is None:
            continue
        if active := sorted(rate for state, rate in _rdma_ports(report, layer) if state.endswith("ACTIVE")):
            rates[report.name] = ", ".join(active)
    for name, rate, usual in outliers(rates):
        yield problem(name, "rdma-rate", found=rate, expected=usual)


def _rdma_ports(report: HostReport, layer: str) -> list[tuple[str, str]]:
    """Return (state, rate) for each port that collectives use.

    If NCCL_IB_HCA is a list of exact device names, ports on other devices are ignored.
    """
    setting = next((row[2] for row in report.of("settings") if row[:2] == ("fabric", "NCCL_IB_HCA")), "")
    devices = setting.removeprefix("=").split(",") if setting.startswith("=") else []
    rows = (row for row in report.of("infiniband") if len(row) > _PORT_FIELDS)
    return [
        (state, rate)
        for port, state, rate, found_layer in rows
        if found_layer == layer and (not devices or port.partition("/")[0] in devices)
    ]
