"""The stages that only a cloud's machines go through, each in a folder of its own with recorded commands."""

from __future__ import annotations

import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.stage_sandbox import STAGES, Sandbox

STORAGE = ("systemctl", "exportfs", "mkfs.ext4", "blkid", "systemd-escape", "ssh-keygen", "chown")
TRANSPORT = ("curl", "apt-get", "docker", "modprobe", "systemctl", "add-nvidia-repositories", "mount")
UNITS = {
    "systemd-escape --path --suffix=mount /home": "0 home.mount",
    "systemd-escape --path --suffix=mount /shared": "0 shared.mount",
    "systemd-escape --path --suffix=mount /srv": "0 srv-trainyard.mount",
}
ON_DISK = {
    "ROLE": "head",
    "NETWORK": "10.77.0.0/20",
    "CLUSTER": "c",
    "SHARED_DISK": "/dev/disk/by-id/x",
    "SHARED_SOURCE": "",
    "SHARED_NFS": "4.2",
}


def storage(tmp_path: Path, blkid: str) -> Sandbox:
    home = tmp_path / "home" / "trainer"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("made before\n")
    (tmp_path / "shared" / "jobs").mkdir(parents=True)
    (tmp_path / "shared").chmod(0o1777)
    return Sandbox(tmp_path, STORAGE, {**UNITS, "blkid": blkid})


def unit(tmp_path: Path, name: str) -> str:
    return (tmp_path / "etc" / "systemd" / "system" / name).read_text().replace(str(tmp_path), "")


def test_an_empty_disk_is_formatted_and_takes_what_was_there(tmp_path: Path) -> None:
    ran = storage(tmp_path, "2 ").run("50-storage", **ON_DISK)
    assert ran.code == 0, ran.errors
    assert [line for line in ran.commands if line.startswith("mkfs")] == [
        "mkfs.ext4 -q -m 0 -L trainyard /dev/disk/by-id/x"
    ]
    held = tmp_path / "srv" / "trainyard"
    assert (held / "home" / "trainer" / ".ssh" / "id_ed25519").read_text() == "made before\n"
    assert (held / "shared").stat().st_mode & 0o7777 == 0o1777
    assert "What=/srv/trainyard/home\nWhere=/home\nType=none\nOptions=bind\n" in unit(tmp_path, "home.mount")
    assert "systemctl start home.mount" in ran.commands
    assert "systemctl start nfs-server.service" in ran.commands


def test_a_disk_that_holds_files_is_never_formatted_and_keeps_them(tmp_path: Path) -> None:
    old = tmp_path / "srv" / "trainyard" / "home"
    old.mkdir(parents=True)
    (old / "theirs").write_text("of the old head\n")
    (tmp_path / "srv" / "trainyard" / "shared").mkdir()
    ran = storage(tmp_path, "0 TYPE=ext4").run("50-storage", **ON_DISK)
    assert ran.code == 0, ran.errors
    assert not [line for line in ran.commands if line.startswith("mkfs")]
    assert sorted(path.name for path in old.iterdir()) == ["theirs"]


def test_a_disk_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    ran = storage(tmp_path, "4 ").run("50-storage", **ON_DISK)
    assert ran.code == 1
    assert not [line for line in ran.commands if line.startswith("mkfs")]
    assert "fail blkid cannot read" in ran.said[-1]


def test_a_worker_mounts_a_server_outside_and_makes_nothing_there(tmp_path: Path) -> None:
    held = tmp_path / "srv" / "trainyard"
    (held / "home").mkdir(parents=True)
    (held / "shared").mkdir()
    env = ON_DISK | {"ROLE": "worker", "SHARED_DISK": "", "SHARED_SOURCE": "10.9.8.2:/vol", "SHARED_NFS": "4.1"}
    ran = storage(tmp_path, "0 ").run("50-storage", **env)
    assert ran.code == 0, ran.errors
    mount = unit(tmp_path, "srv-trainyard.mount")
    assert "What=10.9.8.2:/vol\nWhere=/srv/trainyard\nType=nfs\nOptions=vers=4.1,hard," in mount
    assert sorted(path.name for path in held.iterdir()) == ["home", "shared"]
    assert [line for line in ran.commands if line.startswith("systemctl start")] == [
        "systemctl start srv-trainyard.mount",
        "systemctl start home.mount",
        "systemctl start shared.mount",
    ]


def transport(tmp_path: Path, answers: dict[str, str]) -> Sandbox:
    card = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:06:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x1ae0\n")
    (card / "device").write_text("0x0084\n")
    token = {"curl -fsS --max-time": '0 {"access_token": "t"}', "docker inspect": "1 "}
    return Sandbox(tmp_path, (*TRANSPORT, "mv", "chmod"), token | answers)


def test_a_plain_network_needs_no_transport(tmp_path: Path) -> None:
    ran = transport(tmp_path, {}).run("45-transport", FABRIC="ethernet")
    assert (ran.code, ran.commands) == (0, [])


def test_a_node_works_without_fast_socket_and_says_so(tmp_path: Path) -> None:
    ran = transport(tmp_path, {"curl": "7 "}).run("45-transport", FABRIC="gvnic")
    assert ran.code == 0
    assert ran.said == ["say WARNING: no Fast Socket; NCCL uses plain TCP streams"]
    assert not list((tmp_path / "etc").glob("**/*.list"))


def test_tcpxo_is_the_helper_the_devices_the_plugin_and_its_daemon(tmp_path: Path) -> None:
    ran = transport(tmp_path, {}).run("45-transport", FABRIC="gpudirect-tcpxo")
    assert ran.code == 0, ran.errors
    assert "modprobe import-helper" in ran.commands
    assert any(re.match(r"mount --bind /sys/bus/pci/devices/0000:06:00.0 ", line) for line in ran.commands)
    plugin, daemon = [line for line in ran.commands if line.startswith("docker run")]
    assert plugin.endswith("nccl-plugin-gpudirecttcpx-dev:v1.0.17 install --install-nccl")
    assert "--restart=always" in daemon
    assert daemon.endswith("tcpgpudmarxd-dev:v1.0.23 --num_hops=2 --num_nics=8 --uid= --alsologtostderr")
    assert not (tmp_path / "run" / "trainyard" / "docker").exists()


def test_a_daemon_that_is_there_stays(tmp_path: Path) -> None:
    there = "0 us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.23"
    ran = transport(tmp_path, {"docker inspect": there}).run("45-transport", FABRIC="gpudirect-tcpxo")
    assert ran.code == 0, ran.errors
    assert [line.split()[1] for line in ran.commands if line.startswith("docker")] == ["inspect"]


def test_gpudirect_that_cannot_be_had_keeps_the_node_from_work(tmp_path: Path) -> None:
    ran = transport(tmp_path, {"curl": "7 "}).run("45-transport", FABRIC="gpudirect-gib")
    assert ran.code != 0


FABRIC = ("modprobe", "systemctl", "nv-fabricmanager", "dpkg-query", "apt-mark", "timeout")
TOPOLOGY = "/opt/microsoft/ndv5-topo.xml"


def fabric(tmp_path: Path, ports: dict[str, str], answers: dict[str, str] | None = None) -> Sandbox:
    """A node of one NVSwitch with a driver, whose image has a topology, and RDMA devices in these states."""
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
    (tmp_path / "proc" / "driver" / "nvidia-nvswitch").mkdir(parents=True)
    same = {"nv-fabricmanager --version": "0 Fabric Manager version is : 580.173.02"}
    return Sandbox(tmp_path, FABRIC, same | (answers or {}))


UP = {f"mlx5_ib{index}": "4: ACTIVE" for index in range(8)}


def test_a_node_whose_fabric_is_up_goes_on_with_its_kernel_and_driver_held(tmp_path: Path) -> None:
    packages = {"dpkg-query": "0 ii linux-image-6.8\nrc nvidia-old\nii nvidia-fabricmanager\n"}
    ran = fabric(tmp_path, UP | {"mlx5_an0": "4: ACTIVE"}, packages).run("35-fabric", RDMA="8")
    assert ran.code == 0, ran.errors
    assert "timeout 600 systemctl start sku-customizations.service" in ran.commands
    assert "systemctl start nvidia-fabricmanager.service" in ran.commands
    assert "apt-mark hold linux-image-6.8 nvidia-fabricmanager" in ran.commands
    assert "say 8 RDMA ports are up" in ran.said
    assert TOPOLOGY in (tmp_path / "etc" / "trainyard" / "fabric.env").read_text()


@pytest.mark.parametrize("down", ["1: DOWN", "2: INIT"])
def test_a_port_that_is_down_keeps_the_node_from_work(tmp_path: Path, down: str) -> None:
    ran = fabric(tmp_path, UP | {"mlx5_ib3": down, "mlx5_an0": "4: ACTIVE"}).run("35-fabric", RDMA="8")
    assert ran.code == 1
    assert "ports_up" in ran.said[-1]


def test_a_fabric_manager_of_another_version_is_refused_before_it_fails_in_its_own_words(tmp_path: Path) -> None:
    other = {"nv-fabricmanager --version": "0 Fabric Manager version is : 580.126.16"}
    ran = fabric(tmp_path, UP, other).run("35-fabric", RDMA="8")
    assert ran.code == 1
    assert ran.said[-1].startswith("fail fabric manager 580.126.16 and driver 580.173.02 differ")


def test_a_topology_that_the_image_lacks_is_not_named_to_nccl(tmp_path: Path) -> None:
    sandbox = fabric(tmp_path, UP)
    (tmp_path / "opt" / "microsoft" / "ndv5-topo.xml").unlink()
    ran = sandbox.run("35-fabric", RDMA="8")
    assert ran.code == 0, ran.errors
    assert (tmp_path / "etc" / "trainyard" / "fabric.env").read_text() == "NCCL_IB_HCA=mlx5_ib\n"


def test_a_machine_without_any_of_it_is_left_as_it_is(tmp_path: Path) -> None:
    env = tmp_path / "etc" / "trainyard" / "fabric.env"
    env.parent.mkdir(parents=True)
    env.write_text("NCCL_IB_DISABLE=1\n")
    ran = Sandbox(tmp_path, FABRIC, {}).run("35-fabric", RDMA="0")
    assert (ran.code, ran.commands) == (0, [])
    assert ran.said == ["say no RDMA device on this machine type"]


@pytest.mark.parametrize(
    ("driver", "gpus", "code", "words"),
    [
        ("580.173.02", 8, 0, ""),
        ("580.999.01", 8, 0, "say WARNING: driver 580.999.01, and the pinned image has 580.173.02"),
        ("580.173.02", 7, 1, "fail nvidia-smi shows 7 GPUs, the machine type has 8"),
    ],
)
def test_gpus_are_counted_and_the_driver_compared(
    tmp_path: Path, driver: str, gpus: int, code: int, words: str
) -> None:
    version = tmp_path / "sys" / "module" / "nvidia" / "version"
    version.parent.mkdir(parents=True)
    version.write_text(f"{driver}\n")
    listed = "0 " + "".join(f"GPU {index}: NVIDIA A100\n" for index in range(gpus))
    sandbox = Sandbox(tmp_path, ("nvidia-smi", "modprobe"), {"nvidia-smi -L": listed})
    ran = sandbox.run("30-driver", GPUS="8", GPU_TYPE="a100", GPU_DEVICE="/dev/nvidia", DRIVER="580.173.02")
    assert ran.code == code, ran.errors
    assert words in "".join(ran.said)
    assert bool(ran.said) is bool(words)


class Metadata(BaseHTTPRequestHandler):
    """A metadata server that takes guest attributes."""

    taken: list[tuple[str, str | None, bytes]]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.taken.append((self.path, self.headers["Metadata-Flavor"], body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def publish(tmp_path: Path, firmware: str, port: int) -> str:
    """Run the bootstrap's own function on a machine with that firmware and a metadata server on that port."""
    text = (STAGES.parent / "bootstrap").read_text()
    [function] = re.findall(r"^publish_host_key\(\) \{.*?^\}$", text, re.M | re.S)
    product = tmp_path / "product_name"
    product.write_text(f"{firmware}\n")
    moved = function.replace("/sys/class/dmi/id/product_name", str(product)).replace(
        "/dev/tcp/169.254.169.254/80", f"/dev/tcp/127.0.0.1/{port}"
    )
    script = f'set -euo pipefail\nTRAINYARD_NODE=n\nconsole() {{ echo "$*"; }}\n{moved}\npublish_host_key "$@"\n'
    command = ["bash", "-c", script, "_", "ssh-ed25519", "AAAAkey"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


@pytest.mark.parametrize(("firmware", "published"), [("Google Compute Engine", True), ("Standard PC (Q35)", False)])
def test_the_host_key_goes_to_a_metadata_server_that_takes_it(tmp_path: Path, firmware: str, published: bool) -> None:
    taken: list[tuple[str, str | None, bytes]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Server", (Metadata,), {"taken": taken}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        said = publish(tmp_path, firmware, server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    path = "/computeMetadata/v1/instance/guest-attributes/hostkeys/ssh-ed25519"
    assert taken == ([(path, "Google", b"AAAAkey")] if published else [])
    assert said == ""


def test_a_metadata_server_that_is_not_there_is_told_on_the_console_and_the_boot_goes_on(tmp_path: Path) -> None:
    assert "could not publish its host key" in publish(tmp_path, "Google Compute Engine", 9)


@pytest.mark.parametrize(
    ("states", "code", "cards"),
    [
        ({"mlx5_0": "InfiniBand 4: ACTIVE", "mlx5_1": "Ethernet 4: ACTIVE", "mlx5_10": "InfiniBand 4: ACTIVE"}, 0, 2),
        ({"mlx5_0": "InfiniBand 4: ACTIVE", "mlx5_1": "Ethernet 4: ACTIVE", "mlx5_10": "InfiniBand 1: DOWN"}, 1, 0),
    ],
)
def test_cards_that_nobody_named_are_those_of_infiniband_that_are_up(
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
    ran = Sandbox(tmp_path, FABRIC, {}).run("35-fabric", RDMA="2")
    assert ran.code == code, ran.errors
    if cards:
        assert env.read_text() == "NCCL_IB_HCA==mlx5_0,mlx5_10\n"


def test_a_borrowed_worker_takes_the_job_users_home_and_no_other(tmp_path: Path) -> None:
    env = {**ON_DISK, "ROLE": "worker", "SHARED_DISK": "", "HEAD_IP": "10.0.0.4", "TEST_BORROWED": "1"}
    ran = storage(tmp_path, "0 ").run("50-storage", **env)
    assert ran.code == 0, ran.errors
    # Units are named for where they mount, which in this sandbox is deeper.
    units = sorted((tmp_path / "etc" / "systemd" / "system").glob("*.mount"))
    assert [file.name.endswith(("home-trainer.mount", "shared.mount")) for file in units] == [True, True]
    assert f"What=10.0.0.4:{tmp_path}/home/trainer\n" in units[0].read_text()
    [started] = [line for line in ran.commands if line.startswith("systemctl start")]
    assert re.fullmatch(r"systemctl start \S*home-trainer\.automount \S*shared\.automount", started)


@pytest.mark.parametrize(("scheduler", "there"), [("none", True), ("slurm", False)])
def test_a_head_without_a_scheduler_has_a_hostfile(tmp_path: Path, scheduler: str, there: bool) -> None:
    (tmp_path / "hostfile").write_text("a slots=8\n")
    env = {"ROLE": "head", "SCHEDULER": scheduler, "TEST_HANDOVER": str(tmp_path)}
    ran = Sandbox(tmp_path, (), {}).run("75-hostfile", **env)
    assert ran.code == 0, ran.errors
    assert (tmp_path / "job" / "hostfile").exists() == there


def test_the_hostfile_of_a_cluster_that_has_slurm_now_is_gone(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("a slots=8\n")
    for scheduler in ("none", "slurm"):
        ran = Sandbox(tmp_path, (), {}).run(
            "75-hostfile", ROLE="head", SCHEDULER=scheduler, TEST_HANDOVER=str(tmp_path)
        )
        assert ran.code == 0, ran.errors
    assert not (tmp_path / "job" / "hostfile").exists()


@pytest.mark.parametrize(("was", "left"), [("copy", "theirs\n"), ("absent", None), (None, "here\n")])
def test_the_hostfile_of_a_borrowed_head_is_its_owners_again(tmp_path: Path, was: str | None, left: str | None) -> None:
    ledger, file = tmp_path / "ledger", tmp_path / "job" / "hostfile"
    (ledger / "copies" / "job").mkdir(parents=True)
    (ledger / "copies" / "job" / "hostfile").write_text("theirs\n")
    (ledger / "notes").write_text(f"{file}\t{was}\n" if was else "")
    file.parent.mkdir()
    file.write_text("here\n")
    ran = Sandbox(tmp_path, (), {}).run("75-hostfile", ROLE="head", TEST_BORROWED=str(ledger))
    assert ran.code == 0, ran.errors
    assert (file.read_text() if file.exists() else None) == left
