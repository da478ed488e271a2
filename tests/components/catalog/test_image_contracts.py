"""Compatibility of the bootstrap stages with the published builds of the pinned images."""

from __future__ import annotations

import configparser
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.catalog import fabrics, image_contracts, images
from components.node.user_data import cloud_config
from components.plan.plan import ClusterPlan
from tests.cloud_init.stage_sandbox import STAGES, Sandbox
from tests.components.platforms.recording import KEYS
from tests.conftest import ROOT

CONTRACTS = image_contracts()
by_image = pytest.mark.parametrize("name", sorted(CONTRACTS))


def config(plan: ClusterPlan, image: str) -> dict[str, Any]:
    on_image = replace(plan, image=images()[image])
    loaded: dict[str, Any] = yaml.safe_load(cloud_config(on_image, on_image.head, KEYS))
    return loaded


def installed_packages(folder: Path, role: str, system: str, group: str = "") -> set[str]:
    """Run the stage 20-apt in a sandbox, and return the arguments passed to `apt-get install`."""
    node = Sandbox(folder, ("apt-get", "systemctl", "chmod"), {})
    (folder / "usr/sbin").mkdir(parents=True)
    ran = node.run("20-apt", ROLE=role, GROUP=group, OS=system, GPU_DEVICE="").passed()
    [command] = [line for line in ran.commands if " install " in line]
    return set(command.split())


def test_each_cloud_image_has_a_contract() -> None:
    assert {name for name, image in images().items() if image.reference} <= CONTRACTS.keys() <= images().keys()


@by_image
def test_cloud_init_generates_the_host_key_for_the_agent(name: str, local_plan: ClusterPlan) -> None:
    agent = CONTRACTS[name].files.get("/etc/waagent.conf", "")
    required = re.findall(r"^Provisioning\.SshHostKeyPairType=(\w+)$", agent, re.M)
    generated = config(local_plan, name)["ssh_genkeytypes"]
    assert {*required, "ed25519"} <= set(generated)
    # Only root can use Azure's wire server.
    assert not agent or "OS.EnableFirewall=y\n" in agent


@by_image
def test_agents_do_not_replace_host_keys(name: str, local_plan: ClusterPlan) -> None:
    path = "/etc/default/instance_configs.cfg"
    # The agent reads its defaults and these files in this order (google_guest_agent/cfg/cfg.go in
    # GoogleCloudPlatform/guest-agent at 080cbc35, read 2026-11-24).
    files = [f"{path}.distro", f"{path}.template", path]
    shipped = {file: CONTRACTS[name].files[file] for file in files if file in CONTRACTS[name].files}
    if not shipped:
        pytest.skip("the image has no Google guest agent")
    added = {file["path"]: file["content"] for file in config(local_plan, name)["write_files"]}
    for image_files in (shipped, {}):
        agent = configparser.ConfigParser(strict=False)
        agent.read_string("[InstanceSetup]\nset_host_keys = true\n")
        for file in files:
            agent.read_string(image_files.get(file, "") + added.get(file, ""))
        # An image without Ubuntu's file, for example a custom image, also keeps its host keys.
        assert not agent["InstanceSetup"].getboolean("set_host_keys")


@by_image
def test_stages_do_not_conflict_with_sysctls_of_images(name: str) -> None:
    settings = re.compile(r"^([a-z][\w.]+) = (.+)$", re.M)
    image_settings = dict(settings.findall(CONTRACTS[name].files.get("/etc/sysctl.conf", "")))
    stage_settings = dict(settings.findall((STAGES / "31-system").read_text()))
    assert stage_settings
    assert {key: value for key, value in stage_settings.items() if image_settings.get(key, value) != value} == {}


@by_image
@pytest.mark.parametrize("role", ["head", "worker"])
def test_all_requested_packages_exist(tmp_path: Path, name: str, role: str) -> None:
    installed = installed_packages(tmp_path, role, images()[name].os)
    assert not set(CONTRACTS[name].no_packages) & installed
    assert {"munge", "slurm-client", "unattended-upgrades"} <= installed


@by_image
def test_mpirun_is_loaded_from_its_module(name: str) -> None:
    lines = (ROOT / "yard" / "run" / "shared.sh").read_text().partition("\nload_mpirun() {\n")[2].partition("\n}\n")[0]
    for command, module in CONTRACTS[name].modules.items():
        assert f"command -v {command} " in lines
        assert f"module load {module}" in lines


def test_fabrics_use_the_rdma_names_of_azure_images() -> None:
    named = {
        name: fabric.env.get("NCCL_IB_HCA") for name, fabric in fabrics().items() if name.startswith("infiniband-")
    }
    assert CONTRACTS["azure-ubuntu-24.04-hpc"].services["azure_persistent_rdma_naming.service"] == "enabled"
    assert set(named.values()) == {"mlx5_ib"}


@pytest.mark.parametrize(
    ("system", "package"), [("debian-12", "libpmix-dev"), ("debian-13", "libpmix2t64"), ("ubuntu-24.04", "libpmix2t64")]
)
@pytest.mark.parametrize("role", ["head", "worker"])
def test_library_of_the_pmix_plugin_is_installed(tmp_path: Path, system: str, package: str, role: str) -> None:
    installed = installed_packages(tmp_path, role, system)
    assert package in installed


@pytest.mark.parametrize(("role", "group"), [("worker", "cpu"), ("head", "cpu"), ("head", "")])
def test_torch_is_installed_only_where_jobs_run(tmp_path: Path, role: str, group: str) -> None:
    """The head of a Slurm cluster is in no group."""
    assert ("python3-torch" in installed_packages(tmp_path, role, "debian-13", group)) is bool(group)


def test_library_of_one_architecture_counts_as_installed(tmp_path: Path) -> None:
    folder = tmp_path / "var/lib/dpkg/info"
    folder.mkdir(parents=True)
    (folder / "libpmix2t64:amd64.list").touch()
    assert "libpmix2t64" not in installed_packages(tmp_path, "head", "debian-13")


def test_no_stage_changes_a_hostname_that_the_agent_monitors() -> None:
    assert "Provisioning.MonitorHostName=y\n" in CONTRACTS["azure-ubuntu-24.04-hpc"].files["/etc/waagent.conf"]
    changes = re.compile(r"\bhostnamectl\b|(?m:^ *hostname )|/etc/hostname\b|kernel\.hostname")
    assert changes.search("hostname node1")
    assert [stage.name for stage in STAGES.iterdir() if changes.search(stage.read_text())] == []
