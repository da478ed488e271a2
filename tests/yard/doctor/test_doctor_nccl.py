"""Checks of the NCCL log in `yard doctor`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.yard.doctor.doctor_samples import FIRST, HEAD, SECOND
from tests.yard.doctor.test_doctor import examined
from trainyard.outputs import Cluster
from yard.doctor.checks import CHECKS
from yard.doctor.gpu_checks import nccl_facts

NCCL_LOG = [
    "nccl\tjob\tallreduce-1",
    "nccl\tversion\t2.27.5+cuda12.9",
    "nccl\tnetwork\tIB",
    "nccl\ttopology\t/opt/a.xml",
]


@pytest.mark.parametrize(
    ("fabric", "network", "fits"),
    [
        ("ethernet", "Socket", True),
        ("infiniband-ndr", "IBext_v8", True),
        ("infiniband-ndr", "Socket", False),
        ("gvnic", "FastSocket", True),
        ("gvnic", "Socket", False),
        ("gpudirect-tcpx", "GPUDirectTCPX_v7", True),
        ("gpudirect-tcpxo", "GPUDirectTCPX_v7", False),
        ("gpudirect-tcpxo", "FasTrak", True),
        ("gpudirect-gib", "gIB", True),
        ("roce", "IB", True),
    ],
)
def test_the_network_in_the_log_belongs_to_the_fabric(local: Cluster, fabric: str, network: str, fits: bool) -> None:
    cluster = replace(local, nodes=tuple(replace(node, fabric=fabric) for node in local.nodes))
    lines = {FIRST: [line.replace("\tIB", f"\t{network}") for line in NCCL_LOG], SECOND: ["nccl\tlibraries\t"]}
    found = list(CHECKS["nccl"](examined(cluster, lines)))
    assert [problem.node for problem in found] == ([] if fits else [FIRST])
    assert all(f"'{network}', which does not belong to the fabric {fabric} (job allreduce-1)" in p.what for p in found)


def test_the_topology_file_in_the_log_is_that_of_the_fabric(local: Cluster) -> None:
    nodes = tuple(replace(node, fabric="infiniband-ndr") for node in local.nodes)
    lines = {FIRST: NCCL_LOG, SECOND: [line for line in NCCL_LOG if "topology" not in line]}
    right = replace(local, nodes=nodes, env={"gpu": {"NCCL_TOPO_FILE": "/opt/a.xml"}})
    [found] = CHECKS["nccl"](examined(right, lines))
    assert (found.node, "NCCL used no file as topology file, not /opt/a.xml" in found.what) == (SECOND, True)
    assert len(list(CHECKS["nccl"](examined(replace(right, env={"gpu": {"NCCL_TOPO_FILE": "/b"}}), lines)))) == 2


def test_equal_facts_of_nccl_share_a_line(local: Cluster) -> None:
    library = "nccl\tlibraries\t/shared/envs/torch-1/libnccl.so.2"
    facts = nccl_facts(examined(local, {HEAD: NCCL_LOG, FIRST: NCCL_LOG, SECOND: NCCL_LOG}))
    shown = "NCCL 2.27.5+cuda12.9, network IB, topology /opt/a.xml (job allreduce-1)"
    assert facts == [f"{FIRST}, {SECOND}: {shown}"]
    facts = nccl_facts(examined(local, {FIRST: [*NCCL_LOG, library], SECOND: ["nccl\tlibraries\t"]}))
    assert len(facts) == 1
    assert "libraries of running ranks /shared/envs/torch-1/libnccl.so.2 (job" in facts[0]
