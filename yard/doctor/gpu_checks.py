"""Checks for GPUs (count, driver, faults, links) and RDMA ports."""

from __future__ import annotations

from collections.abc import Iterator

from yard.doctor.findings import Examined, HostProblem, outliers, problem, rdma_layer, unequal_versions
from yard.doctor.reports import HostReport

_PORT_FIELDS = 3


def check_gpus(examined: Examined) -> Iterator[HostProblem]:
    """The number of working GPUs equals the number in the stack's outputs."""
    for report in examined.workers:
        found, expected = int(report.of("gpus")[0][0]), examined.nodes[report.name].gpus
        if found != expected:
            yield problem(report.name, "gpus", found=found, expected=expected)


def check_driver(examined: Examined) -> Iterator[HostProblem]:
    """The driver version is the same on all workers, and the driver supports the node's NVSwitch and RDMA cards."""
    versions = {report.name: report.value("driver", "version") for report in examined.workers}
    yield from unequal_versions("the GPU driver", {name: version for name, version in versions.items() if version})
    for report in examined.workers:
        version = versions[report.name]
        service, manager = report.value("driver", "managed"), report.value("driver", "manager")
        if service and manager != version:
            yield problem(report.name, "fabric-manager-version", found=manager or "absent", driver=version)
        elif service and service != "active":
            yield problem(report.name, "fabric-manager", state=service)
        if version and rdma_layer(examined.nodes[report.name].fabric) and not report.value("driver", "direct"):
            yield problem(report.name, "gpudirect")


def check_faults(examined: Examined) -> Iterator[HostProblem]:
    """No GPU reports uncorrectable memory errors, pending row remaps or Xid events."""
    for report in examined.workers:
        for row in report.of("faults"):
            if row[0] == "xid":
                yield problem(report.name, "xid", event=row[1])
            elif row[2].isdigit() and int(row[2]):
                yield problem(report.name, "memory-errors", gpu=row[1], errors=row[2])
            elif row[3].lower() in {"yes", "1"}:
                yield problem(report.name, "row-remaps", gpu=row[1])


def check_topology(examined: Examined) -> Iterator[HostProblem]:
    """All nodes in a group have the same GPU topology."""
    links: dict[str, dict[str, str]] = {}
    for report in examined.workers:
        rows = "; ".join(" ".join(row) for row in report.of("topology"))
        links.setdefault(examined.nodes[report.name].group, {})[report.name] = rows
    for by_name in links.values():
        for name, found, usual in outliers(by_name):
            pairs = zip(found.split("; "), usual.split("; "), strict=False)
            row, expected = next((pair for pair in pairs if pair[0] != pair[1]), (found, usual))
            yield problem(name, "topology", found=row or "nothing", expected=expected)


def check_infiniband(examined: Examined) -> Iterator[HostProblem]:
    """On an RDMA fabric, each node has active ports, and their rates equal the rates on the other nodes."""
    rates = {}
    for report in examined.workers:
        fabric = examined.nodes[report.name].fabric
        layer = rdma_layer(fabric)
        if layer is None:
            continue
        ports = _rdma_ports(report, layer)
        if not ports:
            yield problem(report.name, "rdma-missing", layer=layer, fabric=fabric)
        for port, state, _ in ports:
            if not state.endswith("ACTIVE"):
                yield problem(report.name, "rdma-inactive", port=port, state=state.partition(": ")[2] or state)
        if active := sorted(rate for _, state, rate in ports if state.endswith("ACTIVE")):
            rates[report.name] = ", ".join(active)
    for name, rate, usual in outliers(rates):
        yield problem(name, "rdma-rate", found=rate, expected=usual)


def _rdma_ports(report: HostReport, layer: str) -> list[tuple[str, str, str]]:
    """Return (port, state, rate) for each port that collectives use.

    If NCCL_IB_HCA is a list of exact device names, ports on other devices are ignored.
    """
    setting = next((row[2] for row in report.of("settings") if row[:2] == ("fabric", "NCCL_IB_HCA")), "")
    devices = setting.removeprefix("=").split(",") if setting.startswith("=") else []
    rows = (row for row in report.of("infiniband") if len(row) > _PORT_FIELDS)
    return [
        (port, state, rate)
        for port, state, rate, found_layer in rows
        if found_layer == layer and (not devices or port.partition("/")[0] in devices)
    ]
