"""Slurm's configuration files for all supported versions and machine types."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import get_args

import pytest

from components.catalog import NUMA_AS_SOCKET_SINCE, Image, Machine, fabrics, images, machines
from components.node import slurm
from components.node.files import shipped_files
from components.plan.plan import ClusterPlan
from components.platforms import PLATFORMS
from components.platforms.registry import platform_facts, platform_model
from components.spec.people import UserSpec
from tests.components.platforms.recording import planned
from tests.people import person
from trainyard.errors import CatalogError

RENDERERS = [slurm.render_slurm_conf, slurm.render_gres_conf, slurm.render_cgroup_conf, slurm.render_slurmdbd_conf]
KNOWN = [row for provider in PLATFORMS for row in machines(provider).values() if row.topology is not None]
WITH_AFFINITY = [row for row in KNOWN if row.topology is not None and row.topology.gpu_numa]

# CPU masks per GPU from ai-infrastructure-on-azure at a01b0731, slurm/NCCL/configs/hopper.conf. The order is the same
# as on ND A100 v4 (azhpc-images at 8e9d055f, topology/ndv4-topo.xml).
AZURE_MASKS = (
    "ffffff000000,ffffff000000,ffffff,ffffff,ffffff000000000000000000,ffffff000000000000000000,"
    "ffffff000000000000,ffffff000000000000"
)


def keys(text: str) -> dict[str, str]:
    """Return the values of the KEY=VALUE lines by key."""
    return dict(line.split("=", 1) for line in text.splitlines() if re.fullmatch(r"\w+=\S+", line))


def lines_of(text: str, key: str) -> list[dict[str, str]]:
    """Return the words of the lines that start with KEY=."""
    lines = (line for line in text.splitlines() if line.startswith(f"{key}="))
    return [dict(word.split("=", 1) for word in line.split()) for line in lines]


def expand(names: str) -> list[str]:
    found = re.fullmatch(r"(.*)\[(\d+)-(\d+)\]", names)
    return [f"{found[1]}{number}" for number in range(int(found[2]), int(found[3]) + 1)] if found else [names]


def with_machine(plan: ClusterPlan, machine: Machine, version: tuple[int, int]) -> ClusterPlan:
    """Return the plan with workers of this machine type and an image with this Slurm version."""
    image = Image(name="any", os="any", slurm_version=version, source="made up", dated="2026-01-01")
    return replace(plan, image=image, workers=tuple(replace(host, machine=machine) for host in plan.workers))


def gpu_cores(plan: ClusterPlan, gpus: int) -> list[set[int]]:
    """Return the cores of each GPU in gres.conf in device file order, or empty sets if Cores is absent."""
    found: dict[int, set[int]] = {}
    for line in lines_of(slurm.render_gres_conf(plan), "NodeName"):
        device = re.fullmatch(r"/dev/\w+?\[?(\d+)(?:-(\d+)\])?", line["File"])
        assert device is not None
        first, _, last = line.get("Cores", "").partition("-")
        for gpu in range(int(device[1]), int(device[2] or device[1]) + 1):
            assert gpu not in found
            found[gpu] = set(range(int(first), int(last) + 1)) if first else set()
    assert sorted(found) == list(range(gpus))
    return [found[gpu] for gpu in range(gpus)]


def test_outage_of_ten_minutes_is_below_slurms_limit(local_plan: ClusterPlan) -> None:
    values = keys(slurm.render_slurm_conf(local_plan))
    # The oldest last response when the outage begins, and the time until the first ping after the outage.
    oldest, first_ping = 2 * int(values["HealthCheckInterval"]), int(values["SlurmdTimeout"]) / 10
    assert int(values["SlurmdTimeout"]) > 600 + oldest + first_ping


@pytest.mark.parametrize("kind", ["local_plan", "wide_plan"])
def test_node_lines_have_the_address_of_each_worker(kind: str, request: pytest.FixtureRequest) -> None:
    plan: ClusterPlan = request.getfixturevalue(kind)
    found = [
        pair
        for line in lines_of(slurm.render_slurm_conf(plan), "NodeName")
        for pair in zip(expand(line["NodeName"]), expand(line["NodeAddr"]), strict=True)
    ]
    assert found == [(host.name, str(host.private_ip)) for host in plan.workers]


@pytest.mark.parametrize(("containers", "folders"), [("none", []), ("enroot", ["/usr/local/share", "/usr/share"])])
def test_pyxis_is_loaded_only_with_enroot(containers: str, folders: list[str], local_plan: ClusterPlan) -> None:
    text = slurm.render_plugstack_conf(replace(local_plan, containers=containers))
    included = [line for line in text.splitlines() if not line.startswith("#")]
    assert included == [f"include {folder}/pyxis/*.conf" for folder in folders]
    [stage] = [file.text for file in shipped_files() if file.stage == "70-slurm"]
    assert set(folders) <= set(re.findall(r"compgen -G '(\S+)/pyxis/\*\.conf'", stage)), (
        "the stage checks the same files"
    )


@pytest.mark.parametrize(("people", "separate"), [(1, True), (0, False)])
def test_jobs_of_people_have_their_own_temporary_folders(people: int, separate: bool, local_plan: ClusterPlan) -> None:
    plan = replace(local_plan, users=(UserSpec.model_validate(person("ann")),) * people)
    assert keys(slurm.render_slurm_conf(plan)).get("JobContainerType") == ("job_container/tmpfs" if separate else None)
    assert ("Dirs=/tmp,/var/tmp,/dev/shm\n" in slurm.render_job_container_conf(plan)) is separate


# On existing hosts, which can have older versions, `users` is refused (users-supported in plan_checks.py).
@pytest.mark.parametrize("provider", sorted(PLATFORMS.keys() - {"hosts"}))
def test_slurm_separates_the_jobs_of_people_on_every_created_machine(provider: str) -> None:
    model = platform_model({"provider": provider})
    assert model is not None
    names = get_args(model.model_fields["image"].annotation)
    assert names
    assert all(images()[name].slurm_version >= (23, 11) for name in names)


def test_settings_that_protect_jobs(local_plan: ClusterPlan) -> None:
    conf = keys(slurm.render_slurm_conf(local_plan))
    assert (conf["ReturnToService"], conf["KillOnBadExit"], conf["AuthInfo"]) == ("1", "1", "cred_expire=20")
    assert conf["PropagateResourceLimits"] == "NONE"
    assert int(conf["UnkillableStepTimeout"]) >= 5 * int(conf["MessageTimeout"])
    # Without this option, a job that is requeued after a failed prolog would be held.
    assert "nohold_on_prolog_fail" in conf["SchedulerParameters"]
    shipped = {file.path for file in shipped_files() if file.executable}
    assert {conf[key] for key in ("HealthCheckProgram", "Prolog", "Epilog")} <= shipped


def test_settings_that_protect_the_cluster(plan_of_each_image: ClusterPlan) -> None:
    text, database = slurm.render_slurm_conf(plan_of_each_image), slurm.render_slurmdbd_conf(plan_of_each_image)
    assert {line["AllowGroups"] for line in lines_of(text, "PartitionName")} == {"trainer"}
    assert "disable_triggers" in keys(text)["SlurmctldParameters"].split(",")
    assert keys(text)["AccountingStorageHost"] == keys(database)["DbdHost"] == "localhost"
    assert "StoragePass" not in database


def test_sets_each_key_once(plan_of_each_image: ClusterPlan) -> None:
    for render in RENDERERS:
        lines = [line.split("=")[0] for line in render(plan_of_each_image).splitlines() if "=" in line]
        once = [key for key in lines if key not in {"NodeName", "PartitionName"}]
        assert len(once) == len(set(once))


def test_default_shares_fit_into_a_node(wide_plan: ClusterPlan, local_plan: ClusterPlan) -> None:
    # A node of the local plan has one CPU and two GPUs, so one CPU per GPU is impossible.
    for plan, without_cpus in ((wide_plan, {"cpu"}), (local_plan, {"gpu"})):
        partitions = {line["PartitionName"]: line for line in lines_of(slurm.render_slurm_conf(plan), "PartitionName")}
        assert {name for name, line in partitions.items() if "DefCpuPerGPU" not in line} == without_cpus
        for name, line in partitions.items():
            machine = plan.group(name)[0].machine
            assert int(line["DefMemPerCPU"]) * machine.vcpus <= machine.schedulable_memory_mib
            assert int(line.get("DefCpuPerGPU", 0)) * machine.gpus <= machine.vcpus


def test_no_gres_without_gpus(wide_plan: ClusterPlan) -> None:
    plan = replace(wide_plan, groups={"cpu": wide_plan.groups["cpu"]}, workers=wide_plan.group("cpu"))
    assert "gres" not in slurm.render_slurm_conf(plan).replace("AccountingStorageTRES=gres/gpu", "").lower()
    assert slurm.render_gres_conf(plan).splitlines()[1:] == ["AutoDetect=off"]


@pytest.mark.parametrize("render", RENDERERS)
@pytest.mark.parametrize("version", [(20, 11), (25, 11)])
def test_refuses_unsupported_versions(
    render: Callable[[ClusterPlan], str], version: tuple[int, int], local_plan: ClusterPlan
) -> None:
    with pytest.raises(CatalogError, match=rf"Slurm {version[0]}\.{version[1]:02}"):
        render(with_machine(local_plan, local_plan.workers[0].machine, version))


@pytest.mark.parametrize("version", slurm.SLURM_VERSIONS)
def test_product_of_sockets_cores_threads_is_the_cpu_count(version: tuple[int, int], local_plan: ClusterPlan) -> None:
    for machine in KNOWN:
        plan = with_machine(local_plan, machine, version)
        [line] = lines_of(slurm.render_slurm_conf(plan), "NodeName")
        product = int(line["Sockets"]) * int(line["CoresPerSocket"]) * int(line["ThreadsPerCore"])
        assert product == int(line["CPUs"]) == machine.vcpus, machine.name
        # On one socket, each GPU is near all cores.
        assert line["Sockets"] != "1" or "Cores=" not in slurm.render_gres_conf(plan), machine.name


@pytest.mark.parametrize("version", slurm.SLURM_VERSIONS)
@pytest.mark.parametrize("machine", WITH_AFFINITY, ids=lambda machine: machine.name)
def test_each_gpu_has_the_cores_of_its_socket(
    machine: Machine, version: tuple[int, int], local_plan: ClusterPlan
) -> None:
    assert machine.topology is not None
    plan = with_machine(local_plan, machine, version)
    [line], cores = lines_of(slurm.render_slurm_conf(plan), "NodeName"), gpu_cores(plan, machine.gpus)
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
    threads = fabrics()["gpudirect-tcpx"].env["NCCL_GPUDIRECTTCPX_TX_BINDINGS"]
    # Core numbers are those of the first threads.
    first = {card: int(cores.split("-")[0]) for card, cores in (part.split(":") for part in threads.split(";"))}
    assert list(first) == ["enp6s0", "enp12s0", "enp134s0", "enp140s0"]
    cores = gpu_cores(with_machine(local_plan, machines("gcp")[name], (23, 11)), 8)
    assert all(first[card] in cores[gpu] for gpu, card in zip(range(0, 8, 2), first, strict=True))


def test_numa_nodes_are_sockets_only_if_numbers_differ(local_plan: ClusterPlan) -> None:
    option = "SlurmdParameters=numa_node_as_socket\n"
    a100, h100 = machines("azure")["Standard_ND96asr_v4"], machines("azure")["Standard_ND96isr_H100_v5"]
    assert option in slurm.render_slurm_conf(with_machine(local_plan, a100, (23, 11)))
    assert option not in slurm.render_slurm_conf(with_machine(local_plan, h100, (23, 11)))
    # Slurm 21.08 does not support the option, so the node has its two real sockets.
    old = with_machine(local_plan, a100, (21, 8))
    assert option not in slurm.render_slurm_conf(old)
    assert lines_of(slurm.render_slurm_conf(old), "NodeName")[0]["Sockets"] == "2"
    assert gpu_cores(old, 8)[2] == set(range(48))


def test_only_elastic_groups_are_powered_down() -> None:
    plan = planned("local", {"nodes__more": {"machine": "vm-gpu2", "count": 2}, "nodes__gpu__elastic": {"min": 0}}).plan
    text = slurm.render_slurm_conf(plan)
    assert re.findall(r"^(?:Suspend|Resume)\w+=.*", text, re.MULTILINE) == [
        "ResumeProgram=/usr/bin/true",
        "ResumeTimeout=1200",
        "SuspendProgram=/usr/bin/true",
        "SuspendTimeout=60",
    ]
    partitions = re.findall(r"^PartitionName=(\w+) (.*)", text, re.MULTILINE)
    assert [name for name, settings in partitions if "SuspendTime=" in settings] == ["gpu"]
    assert any("/usr/bin/true" in file.text for file in shipped_files() if "slurmctld.service.d" in file.path), (
        "slurmctld refuses programs that it cannot run"
    )


def test_power_saving_is_off_without_elastic_groups(local_plan: ClusterPlan) -> None:
    assert not re.search("Suspend|Resume", slurm.render_slurm_conf(local_plan))


@pytest.mark.parametrize("stack", ["local", "azure-a100", "gcp-a2"])
def test_elastic_groups_use_a_version_whose_sources_were_read(stack: str) -> None:
    """The facts are in repair/power.py."""
    plan = planned(stack, {}).plan
    assert platform_facts(plan.provider).power_channel(plan) is not None
    assert plan.image.slurm_version in {(23, 11), (24, 11)}
