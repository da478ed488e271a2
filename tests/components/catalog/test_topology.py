"""Topology in slurm.conf and gres.conf, for all machine types and Slurm versions."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from components.catalog import NUMA_AS_SOCKET_SINCE, Image, Machine, fabrics, floors, machines, topologies
from components.node.slurm import SLURM_VERSIONS, render_gres_conf, render_slurm_conf
from components.plan.plan import ClusterPlan
from components.platforms import PLATFORMS

KNOWN = [row for provider in PLATFORMS for row in machines(provider).values() if row.topology is not None]
WITH_AFFINITY = [row for row in KNOWN if row.topology is not None and row.topology.gpu_numa]

# CPU masks per GPU from ai-infrastructure-on-azure at a01b0731, slurm/NCCL/configs/hopper.conf. The order is the same
# as on ND A100 v4 (azhpc-images at 8e9d055f, topology/ndv4-topo.xml).
TX_BINDINGS = "NCCL_GPUDIRECTTCPX_TX_BINDINGS"
AZURE_MASKS = (
    "ffffff000000,ffffff000000,ffffff,ffffff,ffffff000000000000000000,ffffff000000000000000000,"
    "ffffff000000000000,ffffff000000000000"
)


def with_machine(plan: ClusterPlan, machine: Machine, version: tuple[int, int]) -> ClusterPlan:
    """Return the plan with workers of this machine type and an image with this Slurm version."""
    image = Image(name="any", os="any", slurm_version=version, source="made up", dated="2026-01-01")
    return replace(plan, image=image, workers=tuple(replace(host, machine=machine) for host in plan.workers))


def node_line(plan: ClusterPlan) -> dict[str, str]:
    line = next(line for line in render_slurm_conf(plan).splitlines() if line.startswith("NodeName="))
    return dict(word.split("=", 1) for word in line.split())


def gpu_cores(plan: ClusterPlan, gpus: int) -> list[set[int]]:
    """Return the cores of each GPU in gres.conf in device file order, or empty sets if Cores is absent."""
    found: dict[int, set[int]] = {}
    for line in render_gres_conf(plan).splitlines():
        device = re.search(r"File=/dev/\w+?\[?(\d+)(?:-(\d+)\])?(?: |$)", line)
        if device is None:
            continue
        cores = re.search(r"Cores=(\d+)-(\d+)", line)
        near = set(range(int(cores[1]), int(cores[2]) + 1)) if cores else set()
        for gpu in range(int(device[1]), int(device[2] or device[1]) + 1):
            assert gpu not in found
            found[gpu] = near
    assert sorted(found) == list(range(gpus))
    return [found[gpu] for gpu in range(gpus)]


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_topologies_and_floors_are_of_known_machines(provider: str) -> None:
    assert set(topologies(provider)) <= set(machines(provider))
    assert set(floors(provider)) <= set(machines(provider))


@pytest.mark.parametrize("version", SLURM_VERSIONS)
def test_product_of_sockets_cores_threads_is_the_cpu_count(version: tuple[int, int], local_plan: ClusterPlan) -> None:
    for machine in KNOWN:
        line = node_line(with_machine(local_plan, machine, version))
        product = int(line["Sockets"]) * int(line["CoresPerSocket"]) * int(line["ThreadsPerCore"])
        assert product == int(line["CPUs"]) == machine.vcpus, machine.name


@pytest.mark.parametrize("version", SLURM_VERSIONS)
@pytest.mark.parametrize("machine", WITH_AFFINITY, ids=lambda machine: machine.name)
def test_each_gpu_has_the_cores_of_its_socket(
    machine: Machine, version: tuple[int, int], local_plan: ClusterPlan
) -> None:
    assert machine.topology is not None
    plan = with_machine(local_plan, machine, version)
    line, cores = node_line(plan), gpu_cores(plan, machine.gpus)
    per_socket = int(line["CoresPerSocket"])
    # For a GPU, Slurm accepts only the cores of a whole socket. Every socket has at least one GPU.
    assert all(len(near) == per_socket and min(near) % per_socket == 0 for near in cores)
    assert set().union(*cores) == set(range(int(line["Sockets"]) * per_socket))
    for (one, near), (other, also) in pairwise(zip(machine.topology.gpu_numa, cores, strict=True)):
        if one == other:
            assert near == also
        elif version >= NUMA_AS_SOCKET_SINCE:
            assert near.isdisjoint(also)


@pytest.mark.parametrize("name", ["Standard_ND96asr_v4", "Standard_ND96amsr_A100_v4"])
def test_cores_of_nd_a100_match_the_masks_of_azure(name: str, local_plan: ClusterPlan) -> None:
    masks = [int(mask, 16) for mask in AZURE_MASKS.split(",")]
    expected = [{cpu for cpu in range(96) if mask >> cpu & 1} for mask in masks]
    # With one thread per core, core numbers and CPU numbers are the same.
    assert gpu_cores(with_machine(local_plan, machines("azure")[name], (23, 11)), 8) == expected


@pytest.mark.parametrize("name", ["a3-highgpu-8g", "a3-megagpu-8g"])
def test_cores_of_a3_match_the_bindings_of_google(name: str, local_plan: ClusterPlan) -> None:
    """Google binds the threads of each card to cores near the GPUs that share the card's PCIe switch."""
    bindings = dict(part.split(":") for part in fabrics()["gpudirect-tcpx"].env[TX_BINDINGS].split(";"))
    # Core numbers are those of the first threads.
    first = {card: int(cores.split("-")[0]) for card, cores in bindings.items()}
    assert list(first) == ["enp6s0", "enp12s0", "enp134s0", "enp140s0"]
    cores = gpu_cores(with_machine(local_plan, machines("gcp")[name], (23, 11)), 8)
    assert [first[card] in cores[gpu] for gpu, card in zip(range(0, 8, 2), first, strict=True)] == [True] * 4


def test_numa_nodes_are_sockets_only_if_numbers_differ(local_plan: ClusterPlan) -> None:
    option = "SlurmdParameters=numa_node_as_socket\n"
    a100, h100 = machines("azure")["Standard_ND96asr_v4"], machines("azure")["Standard_ND96isr_H100_v5"]
    assert option in render_slurm_conf(with_machine(local_plan, a100, (23, 11)))
    assert option not in render_slurm_conf(with_machine(local_plan, h100, (23, 11)))
    # Slurm 21.08 does not support the option, so the node has its two real sockets.
    old = with_machine(local_plan, a100, (21, 8))
    assert option not in render_slurm_conf(old)
    assert node_line(old)["Sockets"] == "2"
    assert gpu_cores(old, 8)[2] == set(range(48))


def test_machine_without_topology_has_only_cpus(wide_plan: ClusterPlan) -> None:
    conf = render_slurm_conf(wide_plan)
    assert "Sockets=" not in conf
    assert "Cores=" not in render_gres_conf(wide_plan)


def test_machine_with_one_socket_has_no_cores_line(local_plan: ClusterPlan) -> None:
    for machine in KNOWN:
        assert machine.topology is not None
        if machine.gpus and machine.topology.sockets * machine.topology.numa_per_socket == 1:
            assert "Cores=" not in render_gres_conf(with_machine(local_plan, machine, (23, 11))), machine.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sockets": 4}, "has 96 vCPUs, and its topology has 192"),
        ({"gpu_numa": (0, 1)}, "has 8 GPUs, and its topology has 2"),
    ],
)
def test_refuses_a_topology_that_contradicts_the_machine(change: dict[str, object], message: str) -> None:
    machine = machines("azure")["Standard_ND96isr_H100_v5"]
    assert machine.topology is not None
    row = machine.model_dump() | {"topology": machine.topology.model_dump() | change}
    with pytest.raises(ValueError, match=message):
        Machine.model_validate(row)


def test_gpu_affinity_is_unknown_without_numa_nodes() -> None:
    gcp, azure = machines("gcp"), machines("azure")
    assert gcp["a2-highgpu-8g"].gpu_affinity_unknown
    assert not gcp["a3-megagpu-8g"].gpu_affinity_unknown
    assert not gcp["a2-highgpu-1g"].gpu_affinity_unknown
    assert not azure["Standard_ND96isr_H100_v5"].gpu_affinity_unknown
    assert not machines("local")["vm-gpu2"].gpu_affinity_unknown
