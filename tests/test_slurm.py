"""Slurm's configuration: what must be in it, for every version, and that names and addresses stay together."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from components.catalog import Image, images
from components.errors import CatalogError
from components.plan import ClusterPlan
from components.slurm import (
    SLURM_VERSIONS,
    render_cgroup_conf,
    render_gres_conf,
    render_slurm_conf,
    render_slurmdbd_conf,
)

RENDERERS = [render_slurm_conf, render_gres_conf, render_cgroup_conf, render_slurmdbd_conf]


def keys(text: str) -> dict[str, str]:
    """Return the key=value lines that set one thing each."""
    return dict(line.split("=", 1) for line in text.splitlines() if re.fullmatch(r"\w+=\S+", line))


def expand(names: str) -> list[str]:
    """Return every name of a host list, as Slurm would."""
    found = re.fullmatch(r"(.*)\[(\d+)-(\d+)\]", names)
    if found is None:
        return [names]
    return [f"{found[1]}{number}" for number in range(int(found[2]), int(found[3]) + 1)]


def node_addresses(text: str) -> dict[str, str]:
    """Return each node's address as slurmctld would read it."""
    lines = [dict(word.split("=", 1) for word in line.split()) for line in text.splitlines() if line[:8] == "NodeName"]
    return {
        name: address
        for line in lines
        for name, address in zip(expand(line["NodeName"]), expand(line["NodeAddr"]), strict=True)
    }


@pytest.mark.parametrize("kind", ["local_plan", "wide_plan"])
def test_every_worker_has_its_own_address(kind: str, request: pytest.FixtureRequest) -> None:
    plan: ClusterPlan = request.getfixturevalue(kind)
    expected = {host.name: str(host.private_ip) for host in plan.workers}
    assert node_addresses(render_slurm_conf(plan)) == expected


def test_decisions_that_keep_jobs_safe(local_plan: ClusterPlan) -> None:
    conf = keys(render_slurm_conf(local_plan))
    assert conf["ReturnToService"] == "1"
    assert conf["KillOnBadExit"] == "1"
    assert conf["AuthInfo"] == "cred_expire=20"
    assert conf["PropagateResourceLimits"] == "NONE"
    assert int(conf["UnkillableStepTimeout"]) >= 5 * int(conf["MessageTimeout"])
    assert conf["SlurmctldHost"] == "yard-head(10.77.0.4)"


def test_no_key_is_set_twice(plan_of_each_image: ClusterPlan) -> None:
    for render in RENDERERS:
        lines = [line.split("=")[0] for line in render(plan_of_each_image).splitlines() if "=" in line]
        once = [key for key in lines if key not in {"NodeName", "PartitionName"}]
        assert len(once) == len(set(once))


def test_the_first_group_is_the_default_partition(wide_plan: ClusterPlan) -> None:
    found = re.findall(r"^PartitionName=(\S+) Nodes=(\S+) Default=(\S+)", render_slurm_conf(wide_plan), re.MULTILINE)
    assert found == [
        ("big", "wide-big-[0-299]", "YES"),
        ("single", "wide-single-0", "NO"),
        ("cpu", "wide-cpu-[0-1]", "NO"),
    ]


def test_a_job_gets_the_share_of_what_it_asks_for(wide_plan: ClusterPlan) -> None:
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


def test_fewer_cpus_than_gpus_get_no_cpu_default(local_plan: ClusterPlan) -> None:
    # One CPU for two GPUs: a default of one CPU each would ask for more than the node has.
    assert "DefCpuPerGPU" not in render_slurm_conf(local_plan)


def test_gpus_are_the_catalogs_device_files(wide_plan: ClusterPlan) -> None:
    lines = render_gres_conf(wide_plan).splitlines()[1:]
    assert lines == [
        "AutoDetect=off",
        "NodeName=wide-big-[0-299] Name=gpu Type=h100 File=/dev/nvidia[0-7]",
        "NodeName=wide-single-0 Name=gpu Type=h100 File=/dev/nvidia0",
    ]


def test_a_cluster_without_gpus_knows_no_gres(wide_plan: ClusterPlan) -> None:
    plan = replace(wide_plan, workers=wide_plan.group("cpu"))
    assert "gres" not in render_slurm_conf(plan).replace("AccountingStorageTRES=gres/gpu", "").lower()
    assert render_gres_conf(plan).splitlines()[1:] == ["AutoDetect=off"]


def test_the_password_is_not_ours_to_write(local_plan: ClusterPlan) -> None:
    assert "StoragePass" not in render_slurmdbd_conf(local_plan)


def test_all_versions_are_rendered() -> None:
    assert {image.slurm_version for image in images().values()} == set(SLURM_VERSIONS)


@pytest.mark.parametrize("render", RENDERERS)
@pytest.mark.parametrize("version", [(20, 11), (25, 11)])
def test_an_unknown_version_is_refused(
    render: Callable[[ClusterPlan], str], version: tuple[int, int], local_plan: ClusterPlan
) -> None:
    odd = Image(name="odd", os="odd", slurm_version=version, source="made up", dated="2026-01-01")
    with pytest.raises(CatalogError, match=rf"Slurm {version[0]}\.{version[1]:02}"):
        render(replace(local_plan, image=odd))
