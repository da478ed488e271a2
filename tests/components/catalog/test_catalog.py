"""The catalog, the lock of NVIDIA's driver, and the compatibility of stages with published builds of images."""

from __future__ import annotations

import configparser
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from components import catalog
from components.catalog import fabrics, image_contracts, images
from components.node.user_data import cloud_config
from components.plan.plan import ClusterPlan
from components.platforms import PLATFORMS
from components.spec.cluster import MirrorsSpec
from tests.cloud_init.stage_sandbox import STAGES, Sandbox
from tests.components.platforms.recording import KEYS
from tests.conftest import ROOT
from trainyard.errors import CatalogError

LOCKS = [pytest.param(lock, id=name) for name, lock in catalog.driver_locks().items()]
TOOLKIT = ROOT / "cloud-init/files/usr/local/lib/trainyard/stages/44-containers"
H100 = "Standard_ND96isr_H100_v5"


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_rows_are_of_known_machines_and_services(provider: str) -> None:
    known = set(catalog.machines(provider))
    assert {row.gpus > 0 for row in catalog.machines(provider).values()} == {True, False}
    assert {*catalog.prices(provider), *catalog.topologies(provider), *catalog.floors(provider)} <= known
    assert set(catalog.throughputs(provider)) <= {*catalog.service_prices(provider), *known}
    for row in catalog.service_prices(provider).values():
        price = row.usd_per_hour or row.usd_per_gib_hour or row.usd_per_month_of_size or row.usd_per_gb
        assert bool(price) == bool(row.priced), row.name


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_machines_are_consistent(provider: str) -> None:
    for row in catalog.machines(provider).values():
        assert (row.gpus > 0) == (row.gpu_type is not None) == (row.gpu_device is not None), row.name
        assert row.fabric in catalog.fabrics(), row.name
        assert 0 < row.schedulable_memory_mib < row.memory_mib, row.name


def test_versions_in_each_image_are_compatible() -> None:
    for name, image in catalog.images().items():
        assert list(catalog.incompatible(image.versions, catalog.conflicts())) == [], name


def test_mpi_uses_the_infiniband_cards_and_no_other_card() -> None:
    with_cards = [row for row in catalog.machines("azure").values() if row.fabric.startswith("infiniband-")]
    assert {row.name: row.rdma for row in with_cards}["Standard_ND40rs_v2"] == 1
    for row in with_cards:
        cards = ",".join(f"mlx5_ib{n}:1" for n in range(row.rdma))
        assert catalog.fabrics()[row.fabric].env.get("UCX_NET_DEVICES") == cards, row.name


@pytest.mark.parametrize(
    ("memory", "schedulable"), [(1024, 768), (4096, 3072), (16384, 15360), (1900544, 1900544 - 95027)]
)
def test_schedulable_memory(memory: int, schedulable: int) -> None:
    machine = catalog.machines("local")["vm-head"].model_copy(update={"memory_mib": memory})
    assert machine.schedulable_memory_mib == schedulable


def test_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fabrics.yaml").write_text("x: {env: 5, source: s, dated: today}\n")
    monkeypatch.setattr(catalog, "_FOLDER", tmp_path)
    with pytest.raises(CatalogError, match=r"catalog/fabrics\.yaml"):
        catalog.read_rows("fabrics.yaml", catalog.Fabric)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sockets": 4}, "has 96 vCPUs, and its topology has 192"),
        ({"gpu_numa": (0, 1)}, "has 8 GPUs, and its topology has 2"),
    ],
)
def test_refuses_a_topology_that_contradicts_the_machine(change: dict[str, object], message: str) -> None:
    row = catalog.machines("azure")[H100].model_dump()
    with pytest.raises(ValueError, match=message):
        catalog.Machine.model_validate(row | {"topology": row["topology"] | change})


@pytest.mark.parametrize("fields", [{"spot_usd_per_hour": 1.0}, {"spot_source": "a list of 2026-01-01"}])
def test_a_spot_price_without_a_source_is_rejected(fields: dict[str, object]) -> None:
    row = {"name": "m", "usd_per_hour": 2.0, "region": "r", "source": "s", "dated": "2026-01-01"}
    with pytest.raises(ValidationError, match="both spot_usd_per_hour and spot_source"):
        catalog.Price.model_validate(row | fields)


@pytest.mark.parametrize(
    ("provider", "name", "unknown"),
    [
        ("gcp", "a2-highgpu-8g", True),
        ("gcp", "a2-highgpu-1g", False),
        ("gcp", "a3-megagpu-8g", False),
        ("azure", H100, False),
        ("local", "vm-gpu2", False),
    ],
)
def test_gpu_affinity_is_unknown_without_numa_nodes(provider: str, name: str, unknown: bool) -> None:
    assert catalog.machines(provider)[name].gpu_affinity_unknown is unknown


def test_machine_without_gpus_keeps_its_quotas() -> None:
    machine = catalog.machines("gcp")["a2-highgpu-8g"]
    found = machine.without_gpus()
    assert (found.gpus, found.gpu_type, found.gpu_device, found.floors) == (0, None, None, None)
    assert found.usd_per_hour == machine.usd_per_hour
    assert found.quotas == {name: 8 if count == "gpus" else count for name, count in machine.quotas.items()}
    assert 8 in found.quotas.values()


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_is_consistent(lock: catalog.DriverLock) -> None:
    assert list(catalog.incompatible(lock.versions, catalog.conflicts())) == []
    packages = (*lock.packages.values(), *lock.nvswitch.values())
    branch = lock.driver.partition(".")[0]
    of_driver = [package.version for package in packages if package.version.startswith(branch)]
    assert any(version.startswith(f"{lock.driver}-") for version in of_driver)
    assert all(version.startswith(lock.driver) for version in of_driver)
    assert bool(lock.nvswitch) == ("fabric_manager" in lock.versions) == ("nscq" in lock.versions)
    assert ("their hashes" in lock.unverified) == any(package.sha256 is None for package in packages)
    assert f"\nreadonly toolkit={lock.versions['container_toolkit']}\n" in TOOLKIT.read_text()
    assert lock.refused_gpus.keys() <= {row.gpu_type for name in PLATFORMS for row in catalog.machines(name).values()}
    for url in filter(None, (archive.url for archive in lock.archives)):
        found = [name for name, row in catalog.archives().items() if re.match(rf"(?:{row.url})(/|$)", url)]
        assert len(found) == 1, f"{url} can have no mirror"


def test_each_archive_is_a_key_of_mirrors() -> None:
    assert list(MirrorsSpec.model_fields) == [*catalog.archives(), "pypi"]


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"driver": "580.1", "fabric_manager": "580.2"}, "driver 580.1 and fabric manager 580.2"),
        ({"driver": "580.1", "fabric_manager": "580.1", "nscq": "580.2"}, "driver 580.1 and NSCQ 580.2"),
        ({"driver": "550.1", "cuda": "13.0"}, "this release of CUDA needs driver 580 or later"),
        ({"driver": "580.1", "cuda": "12.9", "nccl": "2.27.5-1+cuda13.0"}, "NCCL for CUDA 13.0"),
        ({"driver": "580.1", "container_toolkit": "1.17.7-1"}, "enroot cannot start containers"),
        ({"driver": "580.1", "fabric_manager": "580.1", "cuda": "13.0", "nccl": "2.27.5-1+cuda12.9"}, None),
        ({"driver": "550.163.01", "cuda": "12.4", "nccl": "2.22.3-1-1"}, None),
        ({"container_toolkit": "1.17.8-1"}, None),
    ],
)
def test_incompatible_versions_are_reported(versions: dict[str, str], words: str | None) -> None:
    found = list(catalog.incompatible(versions, catalog.conflicts()))
    assert len(found) == (words is not None)
    assert (words or "") in "".join(found)


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
