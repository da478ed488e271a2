"""The stages against what the pinned images' published builds leave behind."""

from __future__ import annotations

import configparser
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.catalog import fabrics, image_contracts, images
from components.cloud_init import AccessKeys, cloud_config
from components.plan import ClusterPlan
from jobs.launchers import mpirun
from tests.stage_sandbox import STAGES, Sandbox

CONTRACTS = image_contracts()
KEYS = AccessKeys("ssh-ed25519 AAAAadmin admin@yard", "ssh-ed25519 AAAAcluster cluster@yard")
by_image = pytest.mark.parametrize("name", sorted(CONTRACTS))


def config(plan: ClusterPlan, image: str) -> dict[str, Any]:
    """Return what cloud-init itself carries out on the head of a cluster of that image."""
    on_image = replace(plan, image=images()[image])
    loaded: dict[str, Any] = yaml.safe_load(cloud_config(on_image, on_image.head, KEYS))
    return loaded


def test_every_image_of_a_cloud_has_a_contract() -> None:
    assert {name for name, image in images().items() if image.reference} <= CONTRACTS.keys() <= images().keys()


@by_image
def test_cloud_init_makes_the_host_key_the_agent_awaits(name: str, local_plan: ClusterPlan) -> None:
    agent = CONTRACTS[name].files.get("/etc/waagent.conf", "")
    awaited = re.findall(r"^Provisioning\.SshHostKeyPairType=(\w+)$", agent, re.M)
    made = config(local_plan, name)["ssh_genkeytypes"]
    assert {*awaited, "ed25519"} <= set(made)


@by_image
def test_no_agent_replaces_host_keys(name: str, local_plan: ClusterPlan) -> None:
    path = "/etc/default/instance_configs.cfg"
    shipped = CONTRACTS[name].files.get(path)
    if shipped is None:
        pytest.skip("no guest agent of Google's")
    added = "".join(file["content"] for file in config(local_plan, name)["write_files"] if file["path"] == path)
    agent = configparser.ConfigParser(strict=False)
    agent.read_string(shipped + added)
    assert not agent["InstanceSetup"].getboolean("set_host_keys")


@by_image
def test_no_stage_sets_what_the_image_sets_at_each_boot(name: str) -> None:
    settings = re.compile(r"^([a-z][\w.]+) = (.+)$", re.M)
    theirs = dict(settings.findall(CONTRACTS[name].files.get("/etc/sysctl.conf", "")))
    ours = dict(settings.findall((STAGES / "10-base").read_text()))
    assert ours
    assert {key: value for key, value in ours.items() if theirs.get(key, value) != value} == {}


@by_image
@pytest.mark.parametrize("role", ["head", "worker"])
def test_no_package_is_asked_for_that_the_archive_lacks(tmp_path: Path, name: str, role: str) -> None:
    node = Sandbox(tmp_path, ("apt-get", "systemctl", "chmod"), {})
    (tmp_path / "usr/sbin").mkdir(parents=True)
    ran = node.run("20-apt", ROLE=role, OS=images()[name].os, GPU_DEVICE="")
    assert ran.code == 0, ran.errors
    [installed] = [line for line in ran.commands if " install " in line]
    assert not set(CONTRACTS[name].no_packages) & set(installed.split())
    assert {"munge", "slurm-client"} <= set(installed.split())


@by_image
def test_mpirun_is_loaded_from_the_module_that_has_it(name: str) -> None:
    lines = "\n".join(mpirun.LOAD)
    for command, module in CONTRACTS[name].modules.items():
        assert f"command -v {command} " in lines
        assert f"module load {module}" in lines


def test_infiniband_cards_have_the_names_that_azures_image_gives() -> None:
    named = {
        name: fabric.env.get("NCCL_IB_HCA") for name, fabric in fabrics().items() if name.startswith("infiniband-")
    }
    assert CONTRACTS["azure-ubuntu-24.04-hpc"].services["azure_persistent_rdma_naming.service"] == "enabled"
    assert set(named.values()) == {"mlx5_ib"}
