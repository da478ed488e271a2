"""The stages for drivers and fabrics on cloud machines, in a sandbox with recorded commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.catalog import fabrics
from components.platforms.gcp.spec import families
from tests.cloud_init.stage_sandbox import Sandbox

FABRIC = ("modprobe", "systemctl", "nv-fabricmanager", "dpkg-query", "apt-mark", "timeout")
TOPOLOGY = "/opt/microsoft/ndv5-topo.xml"


def fabric(tmp_path: Path, ports: dict[str, str], answers: dict[str, str] | None = None) -> Sandbox:
    """A node with an NVSwitch, a driver, a topology file and RDMA devices. `ports`: device names and their states."""
    files = {
        "etc/trainyard/fabric.env": f"NCCL_IB_HCA=mlx5_ib\nNCCL_TOPO_FILE={tmp_path}{TOPOLOGY}\n",
        "opt/microsoft/ndv5-topo.xml": "<system/>\n",
        "sys/module/nvidia/version": "580.173.02\n",
        "usr/lib/systemd/system/sku-customizations.service": "",
        **{f"sys/class/infiniband/{name}/ports/1/state": f"{state}\n" for name, state in ports.items()},
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "proc/driver/nvidia-nvswitch/devices/0000:05:00.0").mkdir(parents=True)
    same = {"nv-fabricmanager --version": "0 Fabric Manager version is : 580.173.02"}
    return Sandbox(tmp_path, FABRIC, same | (answers or {}))


UP = {f"mlx5_ib{index}": "4: ACTIVE" for index in range(8)}


def test_machine_without_nvswitch_needs_no_fabric_manager(tmp_path: Path) -> None:
    node = fabric(tmp_path, UP, {"nv-fabricmanager --version": "1 "})
    (tmp_path / "proc/driver/nvidia-nvswitch/devices/0000:05:00.0").rmdir()
    ran = node.run("35-fabric", RDMA="8")
    assert ran.code == 0, ran.errors
    assert not [command for command in ran.commands if "fabricmanager" in command and "dpkg" not in command]


def test_kernel_and_driver_packages_are_held(tmp_path: Path) -> None:
    packages = {"dpkg-query": "0 ii linux-image-6.8\nrc nvidia-old\nii nvidia-fabricmanager\n"}
    ran = fabric(tmp_path, UP | {"mlx5_an0": "4: ACTIVE"}, packages).run("35-fabric", RDMA="8")
    assert ran.code == 0, ran.errors
    assert "timeout 600 systemctl start sku-customizations.service" in ran.commands
    assert "systemctl start nvidia-fabricmanager.service" in ran.commands
    assert "apt-mark hold linux-image-6.8 nvidia-fabricmanager" in ran.commands
    assert "log 8 RDMA ports are up" in ran.output
    assert TOPOLOGY in (tmp_path / "etc" / "trainyard" / "fabric.env").read_text()


@pytest.mark.parametrize("down", ["1: DOWN", "2: INIT"])
def test_inactive_port_fails_the_stage(tmp_path: Path, down: str) -> None:
    ran = fabric(tmp_path, UP | {"mlx5_ib3": down, "mlx5_an0": "4: ACTIVE"}).run("35-fabric", RDMA="8")
    assert ran.code == 1
    assert "ports_up" in ran.output[-1]


def test_fabric_manager_of_another_version_is_an_error(tmp_path: Path) -> None:
    other = {"nv-fabricmanager --version": "0 Fabric Manager version is : 580.126.16"}
    ran = fabric(tmp_path, UP, other).run("35-fabric", RDMA="8")
    assert ran.code == 1
    assert ran.output[-1].startswith("fail fabric manager 580.126.16 and driver 580.173.02 differ")


def test_missing_topology_file_is_removed_from_fabric_env(tmp_path: Path) -> None:
    sandbox = fabric(tmp_path, UP)
    (tmp_path / "opt" / "microsoft" / "ndv5-topo.xml").unlink()
    ran = sandbox.run("35-fabric", RDMA="8")
    assert ran.code == 0, ran.errors
    assert (tmp_path / "etc" / "trainyard" / "fabric.env").read_text() == "NCCL_IB_HCA=mlx5_ib\n"


def test_machine_without_fabric_devices_is_unchanged(tmp_path: Path) -> None:
    env = tmp_path / "etc" / "trainyard" / "fabric.env"
    env.parent.mkdir(parents=True)
    env.write_text("NCCL_IB_DISABLE=1\n")
    ran = Sandbox(tmp_path, FABRIC, {}).run("35-fabric", RDMA="0")
    assert (ran.code, ran.commands) == (0, [])
    assert ran.output == ["log no RDMA device on this machine type"]


@pytest.mark.parametrize(
    ("driver", "gpus", "code", "words"),
    [
        ("580.173.02", 8, 0, ""),
        ("580.999.01", 8, 0, "log WARNING: this node has driver 580.999.01; the pinned image has 580.173.02"),
        ("580.173.02", 7, 1, "fail nvidia-smi shows 7 GPUs, the machine type has 8"),
    ],
)
def test_gpu_count_and_driver_version_are_checked(
    tmp_path: Path, driver: str, gpus: int, code: int, words: str
) -> None:
    version = tmp_path / "sys" / "module" / "nvidia" / "version"
    version.parent.mkdir(parents=True)
    version.write_text(f"{driver}\n")
    listed = "0 " + "".join(f"GPU {index}: NVIDIA A100\n" for index in range(gpus))
    sandbox = Sandbox(tmp_path, ("nvidia-smi", "modprobe"), {"nvidia-smi -L": listed})
    ran = sandbox.run("30-driver", GPUS="8", GPU_TYPE="a100", GPU_DEVICE="/dev/nvidia", DRIVER="580.173.02")
    assert ran.code == code, ran.errors
    assert words in "".join(ran.output)
    assert bool(ran.output) is bool(words)


def test_loaded_driver_needs_no_module_files(tmp_path: Path) -> None:
    """After an upgrade of the kernel, the module files of the running kernel can be missing."""
    version = tmp_path / "sys" / "module" / "nvidia" / "version"
    version.parent.mkdir(parents=True)
    version.write_text("580.159.04\n")
    answers = {"nvidia-smi -L": "0 GPU 0: NVIDIA H200\n", "modprobe nvidia": "1 Module nvidia not found in directory"}
    ran = Sandbox(tmp_path, ("nvidia-smi", "modprobe"), answers).run(
        "30-driver", GPUS="1", GPU_TYPE="h200", GPU_DEVICE="/dev/nvidia", DRIVER="580.159"
    )
    assert (ran.code, ran.output) == (0, [])


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", "Secure Boot is on"),
        ("modprobe: ERROR: could not insert 'nvidia': Required key not available", "Secure Boot is on"),
        ("modprobe: FATAL: Module nvidia not found", "fail modprobe nvidia: modprobe: FATAL: Module nvidia not found"),
    ],
)
def test_refused_driver_module_is_explained(tmp_path: Path, refusal: str, words: str) -> None:
    sandbox = Sandbox(tmp_path, ("nvidia-smi", "modprobe"), {"modprobe nvidia": f"1 {refusal}"})
    ran = sandbox.run("30-driver", GPUS="8", GPU_TYPE="a100", GPU_DEVICE="/dev/nvidia", DRIVER="580.173.02")
    assert ran.code == 1
    assert words in ran.output[-1]
    assert refusal in ran.output[-1]


def cards(tmp_path: Path, fabric: str, with_address: set[str], rdma: dict[str, str]) -> bool:
    """Run 42-cards on a node with this fabric. `rdma`: RDMA devices and their cards. Return whether the stage
    passed."""
    env = tmp_path / "etc" / "trainyard" / "fabric.env"
    env.parent.mkdir(parents=True)
    env.write_text("".join(f"{key}={value}\n" for key, value in fabrics()[fabric].env.items()))
    for device, card in rdma.items():
        (tmp_path / "sys/class/infiniband" / device / "device/net" / card).mkdir(parents=True)
    answers = {f"ip -o -4 addr show dev {card} ": "0 2: inet 10.0.0.9/24" for card in with_address}
    ran = Sandbox(tmp_path, ("ip",), answers).run("42-cards", FABRIC=fabric, RDMA=str(len(rdma)))
    assert ran.code == 0 or "would wait for: all_have_addresses" in ran.output[-1], ran.errors
    return ran.code == 0


TCPXO = {"enp0s12", "enp6s0", "enp7s0", "enp13s0", "enp14s0", "enp134s0", "enp135s0", "enp141s0", "enp142s0"}
TCPX = {"enp0s12", "enp6s0", "enp12s0", "enp134s0", "enp140s0"}
ROCE = {f"rocep{index}": f"gpu{index}rdma0" for index in range(8)}


@pytest.mark.parametrize(
    ("fabric", "cards_of_it", "rdma"),
    [("gpudirect-tcpxo", TCPXO, {}), ("gpudirect-tcpx", TCPX, {}), ("gpudirect-gib", set(ROCE.values()), ROCE)],
)
def test_stage_waits_for_all_network_cards_of_the_fabric(
    tmp_path: Path, fabric: str, cards_of_it: set[str], rdma: dict[str, str]
) -> None:
    assert cards(tmp_path / "all", fabric, cards_of_it, rdma)
    for missing in sorted(cards_of_it):
        assert not cards(tmp_path / missing, fabric, cards_of_it - {missing}, rdma)


def test_cards_of_each_google_machine_match_nccls_names() -> None:
    for name, fabric in (("a3-highgpu", "gpudirect-tcpx"), ("a3-megagpu", "gpudirect-tcpxo")):
        named = {"gpudirect-tcpx": TCPX, "gpudirect-tcpxo": TCPXO}[fabric]
        assert len(named) == families()[name].nics.gvnic


@pytest.mark.parametrize(
    ("states", "code", "cards"),
    [
        ({"mlx5_0": "InfiniBand 4: ACTIVE", "mlx5_1": "Ethernet 4: ACTIVE", "mlx5_10": "InfiniBand 4: ACTIVE"}, 0, 2),
        ({"mlx5_0": "InfiniBand 4: ACTIVE", "mlx5_1": "Ethernet 4: ACTIVE", "mlx5_10": "InfiniBand 1: DOWN"}, 1, 0),
    ],
)
def test_collectives_use_active_infiniband_devices_by_default(
    tmp_path: Path, states: dict[str, str], code: int, cards: int
) -> None:
    for name, words in states.items():
        layer, _, state = words.partition(" ")
        port = tmp_path / "sys" / "class" / "infiniband" / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text(f"{layer}\n")
        (port / "state").write_text(f"{state}\n")
    env = tmp_path / "etc" / "trainyard" / "fabric.env"
    env.parent.mkdir(parents=True)
    env.write_text("NCCL_IB_HCA==of_an_earlier_boot\n")
    ran = Sandbox(tmp_path, FABRIC, {}).run("35-fabric", RDMA="2", FABRIC="infiniband")
    assert ran.code == code, ran.errors
    if cards:
        assert env.read_text() == "NCCL_IB_HCA==mlx5_0,mlx5_10\nUCX_NET_DEVICES=mlx5_0:1,mlx5_10:1\n"


@pytest.mark.parametrize(
    ("fabric_name", "listed", "found", "warns"),
    [
        ("infiniband", "", "mlx5_0,mlx5_1,mlx5_2", True),
        ("infiniband", "mlx5_0,mlx5_2", "mlx5_0,mlx5_2", False),
        ("roce", "mlx5_3,mlx5_4", "mlx5_3,mlx5_4", False),
    ],
)
def test_collectives_use_only_the_listed_devices(
    tmp_path: Path, fabric_name: str, listed: str, found: str, warns: bool
) -> None:
    layers = {f"mlx5_{index}": "InfiniBand" if index < 3 else "Ethernet" for index in range(6)}
    files = {f"sys/class/infiniband/{name}/ports/1/link_layer": layer for name, layer in layers.items()}
    files |= {f"sys/class/infiniband/{name}/ports/1/state": "4: ACTIVE" for name in layers}
    files |= {"etc/trainyard/fabric.env": "", "sys/module/nvidia/version": "580.1"}
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    env = {"RDMA": "2", "FABRIC": fabric_name, "RDMA_DEVICES": listed, "TEST_LEDGER": "1"}
    ran = Sandbox(tmp_path, FABRIC, {}).run("35-fabric", **env)
    assert ran.code == 0, ran.errors
    assert f"NCCL_IB_HCA=={found}\n" in (tmp_path / "etc/trainyard/fabric.env").read_text()
    assert any("WARNING" in line for line in ran.output) == warns
    assert "modprobe nvidia-peermem" in ran.commands


@pytest.mark.parametrize(("second", "code"), [("4: ACTIVE", 0), ("1: DOWN", 1)])
def test_gib_cards_are_counted_but_not_written_to_fabric_env(tmp_path: Path, second: str, code: int) -> None:
    for name, state in {"rocep145s0": "4: ACTIVE", "rocep146s0": second}.items():
        port = tmp_path / "sys" / "class" / "infiniband" / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "link_layer").write_text("Ethernet\n")
        (port / "state").write_text(f"{state}\n")
    env = tmp_path / "etc" / "trainyard" / "fabric.env"
    env.parent.mkdir(parents=True)
    env.write_text("NCCL_NET=gIB\n")
    ran = Sandbox(tmp_path, FABRIC, {}).run("35-fabric", RDMA="2", FABRIC="gpudirect-gib")
    assert ran.code == code, ran.errors
    assert env.read_text() == "NCCL_NET=gIB\n"
