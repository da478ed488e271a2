"""The stages for NVIDIA's driver, CUDA's devices, fabrics and NCCL, with recorded commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.catalog import fabrics
from components.platforms.gcp.spec import families
from tests.cloud_init.stage_sandbox import Ran, Sandbox

COMMANDS = (
    *("apt-get", "apt-cache", "dpkg-query", "dpkg", "dkms", "modinfo", "uname", "df", "modprobe", "systemctl"),
    *("nvidia-smi", "timeout", "install", "curl", "gpg"),
)
KERNEL, DRIVER, HASH = "6.12.117+deb13-cloud-amd64", "550.163.01", "a" * 64
LOCK = f"""driver {DRIVER}
module nvidia-current-open
archive debian /usr/share/keyrings/debian.gpg - - trixie contrib
package nvidia-smi {DRIVER}-4 {HASH}
package nvidia-dkms {DRIVER}-* -
file ROOT/etc/dkms/nvidia.conf
| # fix
|
| MAKE[0]="sed -i 's/a/b/' x && ${{MAKE[0]}}"
file ROOT/etc/dkms/other.conf
| two
"""


def stanza(name: str, revision: str, sha256: str = HASH) -> str:
    return f"Package: {name}\nVersion: {DRIVER}-{revision}\nSHA256: {sha256}\n\n"


INDEX = stanza("nvidia-smi", "2", "b" * 64) + stanza("nvidia-smi", "4") + stanza("nvidia-dkms", "1ubuntu1", "c" * 64)
INSTALLED = f"0  nvidia-smi={DRIVER}-4=installed\n nvidia-dkms={DRIVER}-1ubuntu1=installed\n"
TARGETS = "apt-get indextargets --no-release-info"
GPU = {"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n"}
LOADED = "sys/module/nvidia/version"
ANSWERS = {
    "uname": f"0 {KERNEL}\n",
    "modinfo": f"0 {DRIVER}\n",
    "apt-cache show": f"0 {INDEX}",
    # Without this option, apt lists only sources whose indexes it has read.
    TARGETS: "0 /x/trainyard-driver.list:1 trixie http://old/debian\n/x/y.list:1 trixie http://m/debian/\n",
    "df": "0 Avail\n9000\n8000\n",
    "nvidia-smi -L": "0 GPU 0: NVIDIA A100\n",
}
FACTS = {"GPUS": "1", "GPU_TYPE": "a100", "GPU_DEVICE": "/dev/nvidia", "GROUP": "gpu", "NODE": "n", "OS": "debian-13"}


def install(
    root: Path, answers: dict[str, str] | None = None, lock: str = LOCK, files: dict[str, str] = GPU, **env: str
) -> Ran:
    """Run 30-driver on a node with one GPU and a lock, and without an installed driver."""
    given = answers or {}
    node = Sandbox(root, COMMANDS, given | {key: text for key, text in ANSWERS.items() if key not in given})
    locked = {"etc/os-release": "VERSION_CODENAME=trixie\n", "etc/trainyard/driver.lock": lock}
    node.write({path: text.replace("ROOT", str(root)) for path, text in {**locked, **files}.items()})
    (root / "var/lib/trainyard").mkdir(parents=True, exist_ok=True)
    return node.run("30-driver", DRIVER_FROM="install", DRIVER=DRIVER, **FACTS | env)


STOP = {"modprobe nvidia": "1 stop here"}
STOPPED = "fail modprobe nvidia: stop here"


def test_locked_packages_are_installed(tmp_path: Path) -> None:
    ran = install(tmp_path, STOP, LOCK + "optional dcgm 1:4.6.0-1 -\n")
    assert ran.failure() == STOPPED
    start = "apt-get -q -y --no-install-recommends --allow-change-held-packages --allow-downgrades install "
    assert f"{start}nvidia-smi={DRIVER}-4 nvidia-dkms={DRIVER}-*" in ran.commands
    assert f"apt-get -q -y --no-install-recommends install linux-headers-{KERNEL}" in ran.commands
    source = (tmp_path / "etc/apt/sources.list.d/trainyard-driver.list").read_text()
    assert source.endswith("debian.gpg] http://m/debian trixie contrib\n")
    fix = "# fix\n\nMAKE[0]=\"sed -i 's/a/b/' x && ${MAKE[0]}\"\n"
    assert [(tmp_path / f"etc/dkms/{name}.conf").read_text() for name in ("nvidia", "other")] == [fix, "two\n"]
    assert "log WARNING: the archives do not have the locked versions of dcgm" in ran.output


def test_installed_driver_is_not_downloaded_again(tmp_path: Path) -> None:
    answers = {"dpkg-query": INSTALLED, "timeout 120 nvidia-smi -L": "0 GPU 0: A100\n"}
    ran = install(tmp_path, answers, files=GPU | {LOADED: f"{DRIVER}\n"}).passed()
    assert ran.calls("apt-", "dkms", "dpkg ") == []


REFUSED = "E: Failed to fetch http://m/debian/dists/trixie/InRelease  Could not connect"
NO_PACKAGES = {"apt-get -q -y --no-install-recommends --allow": "100 ", "modinfo": "1 "}
NO_HEADERS = {"apt-get -q -y --no-install-recommends install linux-headers": "100 ", "modinfo": "1 "}
MAKE_LOG = {f"var/lib/dkms/nvidia/{DRIVER}/build/make.log": "nv.c:1: error: too few arguments\n"}


@pytest.mark.parametrize(
    ("answers", "files", "words"),
    [
        ({"apt-get -q update": f"100 Err:1 http://m\n{REFUSED}\n"}, {}, f"archive cannot be read ({REFUSED}). Fix: "),
        ({TARGETS: "0 /x/y.list:1 trixie-updates http://m/debian\n"}, {}, "not contain the archive of debian-13."),
        ({"df": "0 Avail\n9000\n1535\n"}, {}, "installation needs 1536 MiB on /usr and /var, and 1535 MiB"),
        ({"apt-cache show": f"0 {INDEX}".replace("-4\n", "-3\n")}, {}, f"archives have {DRIVER}-2 {DRIVER}-3"),
        ({"apt-cache show": f"0 {INDEX}".replace(HASH, "d" * 64)}, {}, f"(SHA-256 {'d' * 64})"),
        ({"apt-cache show": "0 "}, {}, "and the archives have no such package"),
        (NO_HEADERS, {}, f"apt-get cannot install linux-headers-{KERNEL}, which the build"),
        (NO_PACKAGES, {}, "apt-get cannot install the packages"),
        (NO_PACKAGES, MAKE_LOG, f"DKMS cannot build the modules for kernel {KERNEL} (nv.c:1: error: too few"),
    ],
)
def test_failed_installation_is_explained(
    tmp_path: Path, answers: dict[str, str], files: dict[str, str], words: str
) -> None:
    ran = install(tmp_path, answers, files=GPU | files)
    assert words in ran.failure()
    assert any(" install " in line for line in ran.commands) is ("modinfo" in answers)


def test_module_is_built_for_a_new_kernel(tmp_path: Path) -> None:
    ran = install(tmp_path, {"modinfo": "0 "})
    assert f"dkms autoinstall -k {KERNEL}" in ran.commands
    assert f"fail driver {DRIVER}: kernel {KERNEL} has no module nvidia-current-open of this version" in ran.failure()


@pytest.mark.parametrize(
    ("existing", "words", "reboots"),
    [("", "and the reboot did not start", 1), ("/ledger", "Fix: reboot this host, then run pulumi up again", 0)],
)
def test_machine_reboots_once_if_nouveau_is_in_use(tmp_path: Path, existing: str, words: str, reboots: int) -> None:
    answers, files = {"dpkg-query": INSTALLED, "modprobe -r nouveau": "1 "}, {"sys/module/nouveau/x": "", **GPU}
    ran = install(tmp_path, answers, files=files, TEST_LEDGER=existing)
    assert words in ran.failure()
    assert ran.commands.count("systemctl reboot") == reboots
    if reboots:
        again = install(tmp_path, answers, files=files)
        assert "the module nouveau uses the GPUs, also after a reboot" in again.failure()
        assert "systemctl reboot" not in again.commands


def test_other_loaded_driver_is_unloaded(tmp_path: Path) -> None:
    ran = install(tmp_path, {"dpkg-query": INSTALLED} | STOP, files=GPU | {LOADED: "535.1\n"})
    assert "modprobe -r nvidia-uvm nvidia-drm nvidia-modeset nvidia-peermem nvidia" in ran.commands


@pytest.mark.parametrize("extra", ["", f"nvswitch nvidia-fabricmanager {DRIVER}-* -\n"])
def test_nvswitch_needs_the_locked_fabric_manager(tmp_path: Path, extra: str) -> None:
    files = GPU | {"proc/driver/nvidia-nvswitch/devices/0": "", LOADED: f"{DRIVER}\n"}
    answers = {
        "dpkg-query -W -f  ${Package}=${Version}=${db:Status-Status}\\n nvidia-smi": INSTALLED,
        "apt-cache show nvidia-fabricmanager": f"0 {stanza('nvidia-fabricmanager', '1')}",
        "timeout 120 nvidia-smi -L": "0 GPU 0: A100\n",
    }
    ran = install(tmp_path, answers, LOCK + extra, files)
    if extra:
        ran.passed()
        assert any(line.endswith(f"install nvidia-fabricmanager={DRIVER}-*") for line in ran.commands)
    else:
        assert "this machine has NVSwitch, and the lock for debian-13 has no fabric manager" in ran.failure()


def from_image(root: Path, answers: dict[str, str], loaded: str = "", pinned: str = "580.173.02") -> Ran:
    """Run 30-driver on a node with eight GPUs and the image's driver."""
    node = Sandbox(root, ("nvidia-smi", "modprobe"), answers)
    node.write({LOADED: f"{loaded}\n"} if loaded else {})
    return node.run("30-driver", GPUS="8", GPU_TYPE="a100", GPU_DEVICE="/dev/nvidia", DRIVER=pinned)


@pytest.mark.parametrize(
    ("pinned", "gpus", "words"),
    [
        ("580.173.02", 8, ""),
        ("580.173", 8, ""),
        ("580.999.01", 8, "log WARNING: this node has driver 580.173.02; the pinned image has 580.999.01"),
        ("580.173.02", 7, "fail nvidia-smi shows 7 GPUs, the machine type has 8"),
    ],
)
def test_gpu_count_and_driver_version_are_checked(tmp_path: Path, pinned: str, gpus: int, words: str) -> None:
    """After an upgrade of the kernel, the module files of the running kernel can be missing."""
    listed = "0 " + "".join(f"GPU {index}: NVIDIA A100\n" for index in range(gpus))
    answers = {"nvidia-smi -L": listed, "modprobe nvidia": "1 Module nvidia not found"}
    ran = from_image(tmp_path, answers, "580.173.02", pinned)
    assert ran.output == ([words] if words else [])
    assert ran.code == (gpus < 8), ran.errors


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("could not insert 'nvidia': Key was rejected by service", "Secure Boot is on"),
        ("could not insert 'nvidia': Required key not available", "Secure Boot is on"),
        ("modprobe: FATAL: Module nvidia not found", "fail modprobe nvidia: modprobe: FATAL: Module nvidia not found"),
    ],
)
def test_refused_driver_module_is_explained(tmp_path: Path, refusal: str, words: str) -> None:
    message = from_image(tmp_path, {"modprobe nvidia": f"1 {refusal}"}).failure()
    assert words in message
    assert refusal in message


def cuda(root: Path, answers: dict[str, str] | None = None, **env: str) -> Ran:
    """Run the stage on a node with a loaded driver and without CUDA's device files."""
    node = Sandbox(root, ("systemctl", "timeout", "modprobe", "mknod"), answers or {})
    node.write({"proc/devices": "Character devices:\n195 nvidia\n511 nvidia-uvm\n"})
    return node.run("33-cuda", **{"GPUS": "1", "GPU_DEVICE": "/dev/nvidia"} | env)


PERSISTENCE = "timeout 120 nvidia-smi -pm 1"


def test_gpus_of_an_image_driver_stay_initialized(tmp_path: Path) -> None:
    """Ubuntu's unit runs without persistence mode and stops when nothing needs it."""
    steps = ["systemctl daemon-reload", "systemctl start nvidia-persistenced.service", PERSISTENCE]
    assert [line for line in cuda(tmp_path).passed().commands if line in steps] == steps
    drop_in = tmp_path / "etc/systemd/system/nvidia-persistenced.service.d/trainyard.conf"
    assert drop_in.read_text() == "[Unit]\nStopWhenUnneeded=no\n"
    assert "systemctl daemon-reload" not in cuda(tmp_path).commands


@pytest.mark.parametrize(
    ("answers", "env", "sets"),
    [
        ({"systemctl cat": "1 "}, {}, True),
        ({}, {"TEST_LEDGER": "/ledger", "DRIVER_FROM": "install"}, True),
        ({}, {"TEST_LEDGER": "/ledger"}, False),
    ],
)
def test_persistence_mode_is_set_unless_the_owner_decides(
    tmp_path: Path, answers: dict[str, str], env: dict[str, str], sets: bool
) -> None:
    ran = cuda(tmp_path, answers, **env).passed()
    assert (PERSISTENCE in ran.commands) is sets
    if answers or not sets:
        assert ran.calls("systemctl start") == []


@pytest.mark.parametrize("existing", ["", "/ledger"])
def test_uvm_devices_are_created_if_they_are_missing(tmp_path: Path, existing: str) -> None:
    assert cuda(tmp_path, TEST_LEDGER=existing).passed().calls("modprobe nvidia-uvm", "mknod") == [
        "modprobe nvidia-uvm",
        "mknod -m 0666 /dev/nvidia-uvm c 511 0",
        "mknod -m 0666 /dev/nvidia-uvm-tools c 511 1",
    ]


def test_driver_without_the_uvm_module_fails_the_stage(tmp_path: Path) -> None:
    message = cuda(tmp_path, {"modprobe nvidia-uvm": "1 "}).failure()
    assert message.startswith("fail modprobe nvidia-uvm fails")


@pytest.mark.parametrize(
    ("exists", "words"), [(False, "the job user cannot open"), (True, "/dev/nvidia-none0 is missing")]
)
def test_node_is_not_ready_if_jobs_cannot_open_uvm(tmp_path: Path, exists: bool, words: str) -> None:
    """The second case ends at the next check. No machine has its devices, also not one with real GPUs."""
    node = Sandbox(tmp_path)
    node.write({"dev/nvidia-uvm": ""} if exists else {})
    for folder in ("dev", "home", "shared/jobs"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    env = {"SHARED_SOURCE": "10.0.0.9:/shared", "GPUS": "1", "GPU_DEVICE": "/dev/nvidia-none", "GPU_TYPE": "a100"}
    assert words in node.run("90-health", ROLE="worker", NODE="n", **env).failure()


FABRIC = ("modprobe", "systemctl", "nv-fabricmanager", "dpkg-query", "apt-mark", "timeout")
TOPOLOGY = "/opt/microsoft/ndv5-topo.xml"
FABRIC_ENV = "etc/trainyard/fabric.env"
UP = {f"mlx5_ib{index}": "InfiniBand 4: ACTIVE" for index in range(8)}


def fabric(root: Path, devices: dict[str, str], env: str, answers: dict[str, str] | None = None) -> Sandbox:
    """Return a node with RDMA devices, given as name with link layer and state, and with this fabric.env."""
    node = Sandbox(root, FABRIC, answers or {})
    node.write({FABRIC_ENV: env, LOADED: "580.173.02\n"})
    for name, text in devices.items():
        layer, _, state = text.partition(" ")
        port = f"sys/class/infiniband/{name}/ports/1"
        node.write({f"{port}/link_layer": f"{layer}\n", f"{port}/state": f"{state}\n"})
    return node


def on_azure(root: Path, devices: dict[str, str] = UP, answers: dict[str, str] | None = None) -> Sandbox:
    """Return a node with an NVSwitch, a topology file and RDMA devices."""
    same = {"nv-fabricmanager --version": "0 Fabric Manager version is : 580.173.02"}
    env = f"NCCL_IB_HCA=mlx5_ib\nNCCL_TOPO_FILE={root}{TOPOLOGY}\n"
    node = fabric(root, devices, env, same | (answers or {}))
    node.write({TOPOLOGY.lstrip("/"): "<system/>\n", "usr/lib/systemd/system/sku-customizations.service": ""})
    (root / "proc/driver/nvidia-nvswitch/devices/0000:05:00.0").mkdir(parents=True)
    return node


def test_machine_without_nvswitch_needs_no_fabric_manager(tmp_path: Path) -> None:
    node = on_azure(tmp_path, answers={"nv-fabricmanager --version": "1 "})
    (tmp_path / "proc/driver/nvidia-nvswitch/devices/0000:05:00.0").rmdir()
    commands = node.run("35-fabric", RDMA="8").passed().commands
    assert not [command for command in commands if "fabricmanager" in command and "dpkg" not in command]


def test_kernel_and_driver_packages_are_held(tmp_path: Path) -> None:
    packages = {"dpkg-query": "0 ii linux-image-6.8\nrc nvidia-old\nii nvidia-fabricmanager\n"}
    node = on_azure(tmp_path, UP | {"mlx5_an0": "Ethernet 4: ACTIVE"}, packages)
    ran = node.run("35-fabric", RDMA="8").passed()
    assert "timeout 600 systemctl start sku-customizations.service" in ran.commands
    assert "systemctl start nvidia-fabricmanager.service" in ran.commands
    assert "apt-mark hold linux-image-6.8 nvidia-fabricmanager" in ran.commands
    assert "log 8 RDMA ports are up" in ran.output
    assert TOPOLOGY in (node.read(FABRIC_ENV) or "")


def test_inactive_port_fails_the_stage(tmp_path: Path) -> None:
    devices = UP | {"mlx5_ib3": "InfiniBand 2: INIT", "mlx5_an0": "Ethernet 4: ACTIVE"}
    assert "ports_up" in on_azure(tmp_path, devices).run("35-fabric", RDMA="8").failure()


def test_fabric_manager_of_another_version_is_an_error(tmp_path: Path) -> None:
    other = {"nv-fabricmanager --version": "0 Fabric Manager version is : 580.126.16"}
    message = on_azure(tmp_path, answers=other).run("35-fabric", RDMA="8").failure()
    assert message.startswith("fail fabric manager 580.126.16 and driver 580.173.02 differ")


def test_missing_topology_file_is_removed_from_fabric_env(tmp_path: Path) -> None:
    node = on_azure(tmp_path)
    (tmp_path / TOPOLOGY.lstrip("/")).unlink()
    node.run("35-fabric", RDMA="8").passed()
    assert node.read(FABRIC_ENV) == "NCCL_IB_HCA=mlx5_ib\n"


@pytest.mark.parametrize("state", ["4: ACTIVE", "1: DOWN"])
@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("infiniband", {"mlx5_0": "InfiniBand 4: ACTIVE", "mlx5_1": "Ethernet 4: ACTIVE", "mlx5_10": "InfiniBand"}),
        ("gpudirect-gib", {"rocep145s0": "Ethernet 4: ACTIVE", "rocep146s0": "Ethernet"}),
    ],
)
def test_collectives_use_the_active_devices_of_the_fabric(
    tmp_path: Path, name: str, devices: dict[str, str], state: str
) -> None:
    before, after = "", ""
    if name == "infiniband":
        before = "NCCL_IB_HCA==of_an_earlier_boot\n"
        after = "NCCL_IB_HCA==mlx5_0,mlx5_10\nUCX_NET_DEVICES=mlx5_0:1,mlx5_10:1\n"
    last = [*devices][-1]
    node = fabric(tmp_path, devices | {last: f"{devices[last]} {state}"}, before)
    ran = node.run("35-fabric", RDMA="2", FABRIC=name)
    if state == "1: DOWN":
        ran.failure()
        return
    ran.passed()
    assert node.read(FABRIC_ENV) == after


@pytest.mark.parametrize(
    ("name", "listed", "found", "warns"),
    [
        ("infiniband", "", "mlx5_0,mlx5_1,mlx5_2", True),
        ("infiniband", "mlx5_0,mlx5_2", "mlx5_0,mlx5_2", False),
        ("roce", "mlx5_3,mlx5_4", "mlx5_3,mlx5_4", False),
    ],
)
def test_collectives_use_only_the_listed_devices(
    tmp_path: Path, name: str, listed: str, found: str, warns: bool
) -> None:
    devices = {f"mlx5_{index}": f"{'InfiniBand' if index < 3 else 'Ethernet'} 4: ACTIVE" for index in range(6)}
    node = fabric(tmp_path, devices, "")
    ran = node.run("35-fabric", RDMA="2", FABRIC=name, RDMA_DEVICES=listed, TEST_LEDGER="1").passed()
    assert f"NCCL_IB_HCA=={found}\n" in (node.read(FABRIC_ENV) or "")
    assert any("WARNING" in line for line in ran.output) == warns
    assert "modprobe nvidia-peermem" in ran.commands


def cards(root: Path, name: str, with_address: set[str], rdma: dict[str, str]) -> bool:
    """Run 42-cards on a node with this fabric. `rdma`: RDMA devices and their cards. Return whether it passed."""
    answers = {f"ip -o -4 addr show dev {card} ": "0 2: inet 10.0.0.9/24" for card in with_address}
    node = Sandbox(root, ("ip",), answers)
    node.write({FABRIC_ENV: "".join(f"{key}={value}\n" for key, value in fabrics()[name].env.items())})
    for device, card in rdma.items():
        (root / "sys/class/infiniband" / device / "device/net" / card).mkdir(parents=True)
    ran = node.run("42-cards", FABRIC=name, RDMA=str(len(rdma)))
    assert ran.code == 0 or "would wait for: all_have_addresses" in ran.output[-1], ran.errors
    return ran.code == 0


TCPXO = {"enp0s12", "enp6s0", "enp7s0", "enp13s0", "enp14s0", "enp134s0", "enp135s0", "enp141s0", "enp142s0"}
TCPX = {"enp0s12", "enp6s0", "enp12s0", "enp134s0", "enp140s0"}
ROCE = {f"rocep{index}": f"gpu{index}rdma0" for index in range(8)}


@pytest.mark.parametrize(
    ("name", "named", "rdma"),
    [("gpudirect-tcpxo", TCPXO, {}), ("gpudirect-tcpx", TCPX, {}), ("gpudirect-gib", set(ROCE.values()), ROCE)],
)
def test_stage_waits_for_all_network_cards_of_the_fabric(
    tmp_path: Path, name: str, named: set[str], rdma: dict[str, str]
) -> None:
    assert cards(tmp_path / "all", name, named, rdma)
    for missing in sorted(named):
        assert not cards(tmp_path / missing, name, named - {missing}, rdma)


@pytest.mark.parametrize(("machine", "named"), [("a3-highgpu", TCPX), ("a3-megagpu", TCPXO)])
def test_cards_of_each_google_machine_match_nccls_names(machine: str, named: set[str]) -> None:
    assert len(named) == families()[machine].nics.gvnic


SETTINGS = "CUDA_DEVICE_ORDER=PCI_BUS_ID\nNCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_TUNER='a b;c'\nUCX_NET_DEVICES=mlx5_0:1\n"
FOUND = "0 1 libs found in cache\n\tlibnccl-net.so (libc6,x86-64) => /var/lib/tcpx/lib64/libnccl-net.so\n"
OTHER = "0 \tlibnccl-net-shim.so (libc6,x86-64) => /var/lib/tcpx/lib64/libnccl-net-shim.so\n"
"""The index of a library whose ELF header contains another name than its file (glibc 2.36, tested 2026-11-24)."""
NET = "NCCL_NET=GPUDirectTCPX_v7\nNCCL_PROTO=Simple\n"


@pytest.mark.parametrize(
    ("gpus", "env", "index", "settings"),
    [
        ("8", SETTINGS, "0 ", "NCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_TUNER=a b;c\n"),
        ("0", SETTINGS, "0 ", None),
        ("8", NET, FOUND, NET),
        ("8", NET, OTHER, "NCCL_PROTO=Simple\n"),
    ],
)
def test_settings_of_nccl_are_copied(tmp_path: Path, gpus: str, env: str, index: str, settings: str | None) -> None:
    """With an NCCL_NET that is not found, NCCL would fail in every program that does not set LD_LIBRARY_PATH."""
    node = Sandbox(tmp_path, ("ldconfig",), {"ldconfig -p": index})
    node.write({FABRIC_ENV: env})
    ran = node.run("46-nccl", ROLE="worker", GPUS=gpus).passed()
    assert node.read("etc/nccl.conf") == settings
    assert [line[:11] for line in ran.output] == ["log WARNING"] * (index == OTHER)
