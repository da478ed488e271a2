"""Compares GPUs and RDMA ports between hosts, and checks which network NCCL used in the newest GPU job.

A single host's GPUs are checked by the health checks in the bundle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from yard.doctor.findings import Examined, HostProblem, HostReport, outliers, problem, rdma_layer, unequal_versions

_PORT_FIELDS = 3


def check_driver(examined: Examined) -> Iterator[HostProblem]:
    """Check that all workers have the same driver version and that their RDMA cards can access GPU memory."""
    versions = {report.name: report.value("driver", "version") for report in examined.workers}
    yield from unequal_versions("the GPU driver", {name: version for name, version in versions.items() if version})
    for report in examined.workers:
        version = versions[report.name]
        if version and rdma_layer(examined.nodes[report.name].fabric) and not report.value("driver", "direct"):
            yield problem(report.name, "gpudirect")


def check_topology(examined: Examined) -> Iterator[HostProblem]:
    """Check that all nodes in a group have the same GPU topology."""
    links: dict[str, dict[str, str]] = {}
    for report in examined.workers:
        rows = "; ".join(" ".join(row) for row in report.of("topology"))
        # If there are no rows, nvidia-smi has failed. The health checks report this failure.
        if rows:
            links.setdefault(examined.nodes[report.name].group, {})[report.name] = rows
    for by_name in links.values():
        for name, found, usual in outliers(by_name):
            pairs = zip(found.split("; "), usual.split("; "), strict=False)
            row, expected = next((pair for pair in pairs if pair[0] != pair[1]), (found, usual))
            yield problem(name, "topology", found=row, expected=expected)


def check_infiniband(examined: Examined) -> Iterator[HostProblem]:
    """Check that the active ports on an RDMA fabric have the same rates on all nodes."""
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
    """Return the state and rate of each port that collectives use.

    If NCCL_IB_HCA contains exact device names, NCCL ignores all other devices.
    """
    setting = next((row[2] for row in report.of("settings") if row[:2] == ("fabric", "NCCL_IB_HCA")), "")
    devices = setting.removeprefix("=").split(",") if setting.startswith("=") else []
    rows = (row for row in report.of("infiniband") if len(row) > _PORT_FIELDS)
    return [
        (state, rate)
        for port, state, rate, found_layer in rows
        if found_layer == layer and (not devices or port.partition("/")[0] in devices)
    ]


_NETWORKS = {
    "ethernet": "Socket",
    "gvnic": "FastSocket",
    "gpudirect-tcpx": r"GPUDirectTCPX\w*",
    "gpudirect-tcpxo": "FasTrak",
    "gpudirect-gib": "gIB",
    "infiniband": r"IB(ext\w*)?",
    "roce": r"IB(ext\w*)?",
}
"""Mapping from fabric to a regular expression for the network name in NCCL's log. "infiniband" stands for all fabrics
whose names begin with it.

IBext is the HPC-X plugin. It uses the same cards as NCCL's own IB. Source: NCCL logs in public repositories and in
Google's documentation of gIB, read 2026-11-22.
"""


def check_nccl(examined: Examined) -> Iterator[HostProblem]:
    """Check that NCCL used the fabric's network and topology file in the newest GPU job."""
    for report in examined.workers:
        node = examined.nodes[report.name]
        network, job = report.value("nccl", "network"), report.value("nccl", "job")
        expected = _NETWORKS.get("infiniband" if node.fabric.startswith("infiniband") else node.fabric)
        if network and expected is not None and not re.fullmatch(expected, network):
            yield problem(report.name, "nccl-network", found=network, fabric=node.fabric, job=job)
        wanted = examined.cluster.env.get(node.group, {}).get("NCCL_TOPO_FILE", "")
        topology = report.value("nccl", "topology")
        if network and wanted and topology != wanted:
            yield problem(report.name, "nccl-topology", found=topology or "no file", expected=wanted, job=job)


def nccl_facts(examined: Examined) -> list[str]:
    """Return a line for each distinct result and the hosts that share it. Hosts without a log are omitted."""
    hosts: dict[str, list[str]] = {}
    for report in examined.workers:
        if report.value("nccl", "job"):
            hosts.setdefault(_facts(report), []).append(report.name)
    return [f"{', '.join(names)}: {facts}" for facts, names in hosts.items()]


def _facts(report: HostReport) -> str:
    parts = {
        "NCCL": report.value("nccl", "version"),
        "network": report.value("nccl", "network"),
        "plugin": report.value("nccl", "plugin"),
        "topology": report.value("nccl", "topology"),
        "libraries of running ranks": report.value("nccl", "libraries"),
    }
    return (
        f"{', '.join(f'{name} {value}' for name, value in parts.items() if value)} (job {report.value('nccl', 'job')})"
    )
