"""Slurm configuration files for all supported versions."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from components.catalog import Image, images
from components.node.files import shipped_files
from components.node.slurm import (
    SLURM_VERSIONS,
    render_cgroup_conf,
    render_gres_conf,
    render_plugstack_conf,
    render_slurm_conf,
    render_slurmdbd_conf,
)
from components.node.user_data import JOB_USER
from components.plan.plan import ClusterPlan
from trainyard.errors import CatalogError

RENDERERS = [render_slurm_conf, render_gres_conf, render_cgroup_conf, render_slurmdbd_conf]


def keys(text: str) -> dict[str, str]:
    """Return the values of the KEY=VALUE lines by key."""
    return dict(line.split("=", 1) for line in text.splitlines() if re.fullmatch(r"\w+=\S+", line))


def expand(names: str) -> list[str]:
    """Expand a host list."""
    found = re.fullmatch(r"(.*)\[(\d+)-(\d+)\]", names)
    if found is None:
        return [names]
    return [f"{found[1]}{number}" for number in range(int(found[2]), int(found[3]) + 1)]


def node_addresses(text: str) -> dict[str, str]:
    """Return the addresses of the nodes by node name."""
    lines = [dict(word.split("=", 1) for word in line.split()) for line in text.splitlines() if line[:8] == "NodeName"]
    return {
        name: address
        for line in lines
        for name, address in zip(expand(line["NodeName"]), expand(line["NodeAddr"]), strict=True)
    }


def test_outage_of_ten_minutes_is_below_slurms_limit(local_plan: ClusterPlan) -> None:
    values = keys(render_slurm_conf(local_plan))
    # The oldest last response when the outage begins, and the time until the first ping after the outage.
    oldest, first_ping = 2 * int(values["HealthCheckInterval"]), int(values["SlurmdTimeout"]) / 10
    assert int(values["SlurmdTimeout"]) > 600 + oldest + first_ping


@pytest.mark.parametrize("kind", ["local_plan", "wide_plan"])
def test_node_lines_have_the_address_of_each_worker(kind: str, request: pytest.FixtureRequest) -> None:
    plan: ClusterPlan = request.getfixturevalue(kind)
    expected = {host.name: str(host.private_ip) for host in plan.workers}
    assert node_addresses(render_slurm_conf(plan)) == expected


@pytest.mark.parametrize(
    ("containers", "included"),
    [("none", []), ("enroot", ["include /usr/local/share/pyxis/*.conf", "include /usr/share/pyxis/*.conf"])],
)
def test_pyxis_is_loaded_only_with_enroot(containers: str, included: list[str], local_plan: ClusterPlan) -> None:
    text = render_plugstack_conf(replace(local_plan, containers=containers))
    assert [line for line in text.splitlines() if not line.startswith("#")] == included


def test_settings_that_protect_jobs(local_plan: ClusterPlan) -> None:
    conf = keys(render_slurm_conf(local_plan))
    assert conf["ReturnToService"] == "1"
    assert conf["KillOnBadExit"] == "1"
    assert conf["AuthInfo"] == "cred_expire=20"
    assert conf["PropagateResourceLimits"] == "NONE"
    assert int(conf["UnkillableStepTimeout"]) >= 5 * int(conf["MessageTimeout"])
    assert conf["SlurmctldHost"] == "yard-head(10.77.0.4)"


def test_health_programs_are_shipped(local_plan: ClusterPlan) -> None:
    conf = keys(render_slurm_conf(local_plan))
    shipped = {file.path for file in shipped_files() if file.executable}
    assert {conf[key] for key in ("HealthCheckProgram", "Prolog", "Epilog")} <= shipped
    # Without this option, a job that is requeued after a failed prolog would be held.
    assert "nohold_on_prolog_fail" in conf["SchedulerParameters"]


@pytest.mark.parametrize(
    ("version", "flags"),
    [
        ((21, 8), "Alloc"),
        ((22, 5), "Contain"),
        ((23, 11), "Contain,ForceRequeueOnFail"),
        ((24, 11), "Contain,ForceRequeueOnFail"),
    ],
)
def test_prolog_flags_are_known_to_the_version(version: tuple[int, int], flags: str, local_plan: ClusterPlan) -> None:
    image = local_plan.image.model_copy(update={"slurm_version": version})
    assert keys(render_slurm_conf(replace(local_plan, image=image)))["PrologFlags"] == flags


def test_sets_each_key_once(plan_of_each_image: ClusterPlan) -> None:
    for render in RENDERERS:
        lines = [line.split("=")[0] for line in render(plan_of_each_image).splitlines() if "=" in line]
        once = [key for key in lines if key not in {"NodeName", "PartitionName"}]
        assert len(once) == len(set(once))


def test_first_group_is_the_default_partition(wide_plan: ClusterPlan) -> None:
    found = re.findall(
        r"^PartitionName=(\S+) Nodes=(\S+) AllowGroups=trainer Default=(\S+)",
        render_slurm_conf(wide_plan),
        re.MULTILINE,
    )
    assert found == [
        ("big", "wide-big-[0-299]", "YES"),
        ("single", "wide-single-0", "NO"),
        ("cpu", "wide-cpu-[0-1]", "NO"),
    ]


def test_default_shares_fit_into_a_node(wide_plan: ClusterPlan) -> None:
    text = render_slurm_conf(wide_plan)
    for group in wide_plan.groups:
        machine = wide_plan.group(group)[0].machine
        line = re.search(rf"^PartitionName={group} .*$", text, re.MULTILINE)
        assert line is not None
        words = dict(word.split("=", 1) for word in line[0].split())
        assert int(words["DefMemPerCPU"]) * machine.vcpus <= machine.schedulable_memory_mib
        if machine.gpus:
            cpus = int(words["DefCpuPerGPU"])
            assert cpus * machine.gpus <= machine.vcpus
        else:
            assert "DefCpuPerGPU" not in words


def test_no_cpu_default_with_fewer_cpus_than_gpus(local_plan: ClusterPlan) -> None:
    # One CPU per GPU is impossible, because the node has one CPU and two GPUs.
    assert "DefCpuPerGPU" not in render_slurm_conf(local_plan)


def test_gres_has_device_files_of_the_catalog(wide_plan: ClusterPlan) -> None:
    lines = render_gres_conf(wide_plan).splitlines()[1:]
    assert lines == [
        "AutoDetect=off",
        "NodeName=wide-big-[0-299] Name=gpu Type=h100 File=/dev/nvidia[0-7]",
        "NodeName=wide-single-0 Name=gpu Type=h100 File=/dev/nvidia0",
    ]


def test_no_gres_without_gpus(wide_plan: ClusterPlan) -> None:
    plan = replace(wide_plan, groups={"cpu": wide_plan.groups["cpu"]}, workers=wide_plan.group("cpu"))
    assert "gres" not in render_slurm_conf(plan).replace("AccountingStorageTRES=gres/gpu", "").lower()
    assert render_gres_conf(plan).splitlines()[1:] == ["AutoDetect=off"]


def test_only_the_job_users_group_may_use_the_partitions(plan_of_each_image: ClusterPlan) -> None:
    partitions = [line for line in render_slurm_conf(plan_of_each_image).splitlines() if line[:13] == "PartitionName"]
    assert partitions
    assert all(f" AllowGroups={JOB_USER} " in line for line in partitions)


def test_slurmctld_accepts_no_triggers(plan_of_each_image: ClusterPlan) -> None:
    assert "disable_triggers" in keys(render_slurm_conf(plan_of_each_image))["SlurmctldParameters"].split(",")


def test_slurmdbd_is_used_over_loopback(plan_of_each_image: ClusterPlan) -> None:
    assert keys(render_slurm_conf(plan_of_each_image))["AccountingStorageHost"] == "localhost"
    assert keys(render_slurmdbd_conf(plan_of_each_image))["DbdHost"] == "localhost"


def test_slurmdbd_conf_has_no_password(local_plan: ClusterPlan) -> None:
    assert "StoragePass" not in render_slurmdbd_conf(local_plan)


def test_supports_the_slurm_version_of_each_image() -> None:
    assert {image.slurm_version for image in images().values()} == set(SLURM_VERSIONS)


@pytest.mark.parametrize("render", RENDERERS)
@pytest.mark.parametrize("version", [(20, 11), (25, 11)])
def test_refuses_unsupported_versions(
    render: Callable[[ClusterPlan], str], version: tuple[int, int], local_plan: ClusterPlan
) -> None:
    odd = Image(name="odd", os="odd", slurm_version=version, source="made up", dated="2026-01-01")
    with pytest.raises(CatalogError, match=rf"Slurm {version[0]}\.{version[1]:02}"):
        render(replace(local_plan, image=odd))
