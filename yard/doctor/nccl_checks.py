"""Checks how NCCL ran in the newest GPU job on each node, based on NCCL's own log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from yard.doctor.findings import Examined, HostProblem, problem
from yard.doctor.reports import HostReport

_NETWORKS = {
    "ethernet": "Socket",
    "gvnic": "FastSocket",
    "gpudirect-tcpx": r"GPUDirectTCPX\w*",
    "gpudirect-tcpxo": "FasTrak",
    "gpudirect-gib": "gIB",
    "infiniband": r"IB(ext\w*)?",
    "roce": r"IB(ext\w*)?",
}
"""Regular expression for the network name in NCCL's log, by fabric. Fabrics whose names begin with "infiniband-"
have the same value as "infiniband".

IBext is the plugin of HPC-X, which uses the same cards as NCCL's own IB. Source: logs of NCCL in public repositories
and in Google's documentation of gIB, read 2026-11-22.
"""


def check_nccl(examined: Examined) -> Iterator[HostProblem]:
    """In the newest GPU job, NCCL used the fabric's network and topology file."""
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
    """Return a line for each distinct result, with the hosts. Hosts without a log are omitted."""
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
