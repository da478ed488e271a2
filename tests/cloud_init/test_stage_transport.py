"""The stage that installs NCCL's transport on Google Cloud, with recorded commands. Never run on a real cloud."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from components.catalog import fabrics
from tests.cloud_init.stage_sandbox import Ran, Sandbox

pytestmark = pytest.mark.engine

RECORDED = (
    *("curl", "apt-get", "apt-mark", "docker", "modprobe", "mount", "mv", "chmod"),
    *("dpkg-query", "dpkg-deb", "dkms", "gpg", "uname", "ldconfig"),
)
TCPXO_NODE = {"FABRIC": "gpudirect-tcpxo", "GPUS": "1"}
"""A node with one GPU, because the fake node has one aperture device."""
KERNEL = "6.17.0-1008-gcp"
"""The kernel in the pinned image. GoogleCloudPlatform/cluster-toolkit at 104708037 patches the module for 6.17."""
TCPXO = "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo"
TCPX = "us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpx"
PROFILE = """
echo "not a setting"
export NCCL_FASTRAK_NUM_FLOWS=2 NCCL_ALGO="Ring,Tree" NCCL_SOCKET_IFNAME=eth9
export NCCL_TUNER_CONFIG_PATH=${NCCL_LIB_DIR:?}/tuner.textproto LD_LIBRARY_PATH=$NCCL_LIB_DIR:$LD_LIBRARY_PATH
OTHER='a b' NCCL_ODD="it's; b"
"""
READY = "0 I1122 Buffer manager initialization complete"
CUDA_KEY, REGISTRY_KEY = "EB693B3035CD5710E231E123A4B469963BF863CC", "35BAA0B33E9EB396F59CA838C0BA5CE6DC6315A3"
KEYS = f"0 pub:-:\nfpr:::::::::{CUDA_KEY}:\nfpr:::::::::{REGISTRY_KEY}:\n"
"""Output of gpg for both keys. The fake gpg prints it for each file."""
SOURCE = 'MODULE_LICENSE("GPL");\nMODULE_IMPORT_NS(DMA_BUF);\n'


def node(tmp_path: Path, answers: dict[str, str] | None = None) -> Sandbox:
    """A node with the devices and files for all fabrics: an aperture card, plugin folders and settings."""
    files = {
        "sys/bus/pci/devices/0000:06:00.0/vendor": "0x1ae0\n",
        "sys/bus/pci/devices/0000:06:00.0/device": "0x0084\n",
        "var/lib/tcpxo/lib64/nccl-env-profile.sh": PROFILE,
        "var/lib/tcpxo/lib64/libnccl-net.so": "",
        "var/lib/tcpxo/.trainyard-plugin": f"{TCPXO}/nccl-plugin-gpudirecttcpx-dev:v1.0.17\n",
        "var/lib/tcpx/lib64/libnccl-net.so": "",
        "var/lib/tcpx/.trainyard-plugin": f"{TCPX}/nccl-plugin-gpudirecttcpx-dev:v3.1.9-2.19.4-12.0\n",
        "opt/tcpdirect_benchmark/gpu_rxq_configuration.textproto": "gpu_rxq_configs {}\n",
        "usr/local/gib/scripts/set_nccl_env.sh": "export NCCL_NET=gIB NCCL_IB_TC=52\n",
        "etc/trainyard/fabric.env": "NCCL_SOCKET_IFNAME==eth0\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "usr" / "src").mkdir(parents=True, exist_ok=True)
    usual = {
        "curl -fsS --max-time": '0 {"access_token": "t"}',
        "gpg": KEYS,
        "uname": f"0 {KERNEL}\n",
        "dkms status": f"0 dmabuf-import-helper/1.1, {KERNEL}, x86_64: installed\n",
        "docker inspect": "1 ",
        "docker logs": READY,
    }
    return Sandbox(tmp_path, RECORDED, usual | (answers or {}))


def started(ran: Ran, name: str) -> str:
    return next(line for line in ran.commands if line.startswith("docker run") and f"--name={name} " in line)


RUNNING = {"docker inspect": f"0 true {TCPXO}/tcpgpudmarxd-dev:v1.0.23\n"}


def test_ethernet_needs_no_transport(tmp_path: Path) -> None:
    ran = node(tmp_path).run("45-transport", FABRIC="ethernet")
    assert (ran.code, ran.commands) == (0, [])


def test_missing_fast_socket_is_only_a_warning(tmp_path: Path) -> None:
    ran = node(tmp_path, {"curl": "7 "}).run("45-transport", FABRIC="gvnic")
    assert ran.code == 0
    assert ran.output == ["log WARNING: Fast Socket is not installed; NCCL uses plain TCP streams"]
    assert not list((tmp_path / "etc").glob("**/*.list"))
    mark = tmp_path / "var/lib/fast-socket/lib64/not-installed"
    assert mark.read_text() == "Fast Socket is not installed; NCCL uses plain TCP streams\n"


def test_fast_socket_has_a_folder_for_containers(tmp_path: Path) -> None:
    """google/nccl-fastsocket at b3ff1c6f, BUILD: the package contains /usr/lib/libnccl-net.so."""
    folder = fabrics()["gvnic"].library_path
    assert folder
    assert fabrics()["gvnic"].mounts == (f"{folder.removesuffix('/lib64')}:ro",)
    assert node(tmp_path, {"curl": "7 "}).run("45-transport", FABRIC="gvnic").code == 0
    (tmp_path / "usr/lib").mkdir()
    (tmp_path / "usr/lib/libnccl-net.so").write_text("plugin")
    ran = node(tmp_path).run("45-transport", FABRIC="gvnic")
    assert (ran.code, ran.output) == (0, []), ran.errors
    assert [path.name for path in (tmp_path / folder.lstrip("/")).iterdir()] == ["libnccl-net.so"]


@pytest.mark.parametrize("fabric", ["gpudirect-tcpx", "gpudirect-tcpxo", "gpudirect-gib"])
def test_the_loader_finds_the_plugin_without_yard(tmp_path: Path, fabric: str) -> None:
    ran = fresh(tmp_path).run("45-transport", FABRIC=fabric, GPUS="1")
    assert ran.code == 0, (ran.errors, ran.output)
    path = fabrics()[fabric].library_path
    assert (tmp_path / "etc/ld.so.conf.d/trainyard-nccl.conf").read_text() == f"{tmp_path}{path}\n"
    assert "ldconfig " in ran.commands


def test_each_gpu_needs_an_aperture_device(tmp_path: Path) -> None:
    ran = fresh(tmp_path).run("45-transport", FABRIC="gpudirect-tcpxo", GPUS="8")
    assert ran.code == 1
    assert ran.output[-1].startswith("fail this node has 1 aperture devices for 8 GPUs")


class Docker(Sandbox):
    """A node with a fake docker, which reports the receive daemon as running once the daemon has been started."""

    def _stub(self, file: Path, log: Path) -> None:
        super()._stub(file, log)
        if file.name == "docker":
            image = f"$(grep -o 'us-docker[^ ]*tcpgpudmarxd-dev:[^ ]*' {log} | tail -n 1)"
            state = f'if [[ $1 == inspect ]]; then grep -q "^docker run --detach" {log} || exit 1\n'
            state += f'echo "true {image}"; exit 0; fi\n'
            text = file.read_text()
            head, mark, rest = text.partition("[[ $line != *-stdin* ]]")
            file.write_text(head + state + mark + rest)


def fresh(tmp_path: Path, answers: dict[str, str] | None = None) -> Docker:
    plain = node(tmp_path, answers)
    return Docker(plain.root, plain.recorded, plain.answers)


def test_tcpxo_daemon_has_the_options_of_google(tmp_path: Path) -> None:
    """GoogleCloudPlatform/slurm-gcp at 13fd92b6, tools/prologs-epilogs/receive-data-path-manager-mega."""
    ran = fresh(tmp_path).run("45-transport", **TCPXO_NODE)
    assert ran.code == 0, ran.errors
    assert "modprobe import-helper" in ran.commands
    assert any(re.match(r"mount --bind /sys/bus/pci/devices/0000:06:00.0 ", line) for line in ran.commands)
    daemon = started(ran, "receive-datapath-manager")
    for option in (
        *("--cap-add=NET_ADMIN", "--network=host", "--privileged", "--gpus all"),
        "--volume /var/lib/nvidia/lib64:/usr/local/nvidia/lib64",
        "--env LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu",
    ):
        assert f" {option} " in daemon
    assert daemon.endswith(f"{TCPXO}/tcpgpudmarxd-dev:v1.0.23 --num_hops=2 --num_nics=8 --uid= --alsologtostderr")
    assert any(line.startswith("docker logs") for line in ran.commands)
    assert not (tmp_path / "run" / "trainyard" / "docker").exists()


def test_tcpx_daemon_has_the_options_of_google(tmp_path: Path) -> None:
    """GoogleCloudPlatform/slurm-gcp at 13fd92b6, tools/prologs-epilogs/receive-data-path-manager."""
    ran = fresh(tmp_path).run("45-transport", FABRIC="gpudirect-tcpx").passed()
    daemon = started(ran, "receive-datapath-manager")
    topology = "/opt/tcpdirect_benchmark"
    for option in (
        "--entrypoint /tcpgpudmarxd/build/app/tcpgpudmarxd",
        "--ulimit memlock=-1",
        "--env LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/run/tcpx:/usr/lib/lib32:/usr/lib/x86_64-linux-gnu/",
        f"--volume {topology}:{topology}",
        "--volume /run/tcpx:/run/tcpx",
    ):
        assert f" {option} " in daemon
    assert daemon.endswith(
        f"{TCPX}/tcpgpudmarxd-dev:v2.0.12 --gpu_nic_preset manual --gpu_nic_topology "
        f"{topology}/gpu_rxq_configuration.textproto --gpu_shmem_type fd --uds_path /run/tcpx"
    )


def test_receive_daemon_has_no_restart_policy(tmp_path: Path) -> None:
    """With a restart policy, docker would start the daemon at boot, before the module is loaded.

    The device needs --mount, because --volume would create a folder in its place if the device is missing.
    """
    ran = fresh(tmp_path).run("45-transport", **TCPXO_NODE)
    daemon = started(ran, "receive-datapath-manager")
    assert "--restart" not in daemon
    assert "--mount type=bind,source=/dev/dmabuf_import_helper,target=/dev/dmabuf_import_helper" in daemon
    loaded = (tmp_path / "etc" / "modules-load.d" / "trainyard-import-helper.conf").read_text()
    assert loaded == "import-helper\n"


def test_daemon_that_never_becomes_ready_fails_the_stage(tmp_path: Path) -> None:
    ran = fresh(tmp_path, {"docker logs": "0 still mapping"}).run("45-transport", **TCPXO_NODE)
    assert ran.code == 1
    message = "fail receive-datapath-manager has not initialized its buffers after 120 s: still mapping"
    assert ran.output[-1].rstrip() == message
    assert "docker stop receive-datapath-manager" in ran.commands


@pytest.mark.parametrize("fabric", ["gpudirect-tcpx", "gpudirect-tcpxo"])
def test_log_of_an_ended_daemon_is_reported(tmp_path: Path, fabric: str) -> None:
    ran = node(tmp_path, {"docker logs": "0 no GPU found"}).run("45-transport", FABRIC=fabric, GPUS="1")
    assert ran.code == 1
    assert re.match(r"fail receive-datapath-manager has ended.*: no GPU found", ran.output[-1])


def test_running_daemon_is_not_restarted(tmp_path: Path) -> None:
    ran = node(tmp_path, RUNNING).run("45-transport", **TCPXO_NODE)
    assert ran.code == 0, ran.errors
    assert {line.split()[1] for line in ran.commands if line.startswith("docker")} == {"image", "inspect"}


def test_new_plugin_replaces_the_files_of_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "var/lib/tcpxo").mkdir(parents=True)
    made = fresh(tmp_path)
    (tmp_path / "var/lib/tcpxo/.trainyard-plugin").write_text("older\n")
    ran = made.run("45-transport", **TCPXO_NODE)
    assert ran.code == 1
    installer = started(ran, "nccl-installer")
    assert installer.endswith("nccl-plugin-gpudirecttcpx-dev:v1.0.17 install --install-nccl")
    # The docker command is recorded but not run, so no plugin is installed.
    assert "put no NCCL plugin into" in ran.output[-1]


def test_only_missing_images_are_pulled(tmp_path: Path) -> None:
    ran = fresh(tmp_path).run("45-transport", **TCPXO_NODE)
    assert not ran.calls("docker login", "docker pull")
    ran = fresh_without_images(tmp_path).run("45-transport", **TCPXO_NODE)
    assert ran.code == 0, ran.errors
    assert [line.split("/")[-1] for line in ran.commands if line.startswith("docker pull")] == [
        "nccl-plugin-gpudirecttcpx-dev:v1.0.17",
        "tcpgpudmarxd-dev:v1.0.23",
    ]


def fresh_without_images(tmp_path: Path) -> Sandbox:
    usual = {"uname": f"0 {KERNEL}\n", "dkms status": "0 x: installed\n", "docker logs": READY}
    token = {"curl -fsS --max-time": '0 {"access_token": "t"}', "docker image": "1 ", "gpg": KEYS}
    return Docker(tmp_path, RECORDED, usual | token)


def test_plugin_settings_are_added_to_fabric_env(tmp_path: Path) -> None:
    made, settings = node(tmp_path, RUNNING), tmp_path / "etc" / "trainyard" / "fabric.env"
    assert made.run("45-transport", **TCPXO_NODE).output == []
    once = settings.read_text()
    assert once.splitlines() == [
        "NCCL_SOCKET_IFNAME==eth0",
        "NCCL_ALGO=Ring,Tree",
        "NCCL_FASTRAK_NUM_FLOWS=2",
        "NCCL_ODD='it'\\''s; b'",
        f"NCCL_TUNER_CONFIG_PATH={tmp_path}/var/lib/tcpxo/lib64/tuner.textproto",
    ]
    made.run("45-transport", **TCPXO_NODE)
    assert settings.read_text() == once
    read = subprocess.run(
        ["bash", "-c", 'source "$1"; echo "$NCCL_ALGO $NCCL_ODD"', "-", str(settings)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert read.stdout == "Ring,Tree it's; b\n"


@pytest.mark.parametrize(
    ("fabric", "file"),
    [
        ("gpudirect-tcpxo", "var/lib/tcpxo/lib64/nccl-env-profile.sh"),
        ("gpudirect-gib", "usr/local/gib/scripts/set_nccl_env.sh"),
    ],
)
def test_plugin_without_settings_fails_the_stage(tmp_path: Path, fabric: str, file: str) -> None:
    made = node(tmp_path, RUNNING)
    (tmp_path / file).unlink()
    ran = made.run("45-transport", FABRIC=fabric, GPUS="1")
    assert ran.code == 1
    assert re.match(rf"fail the plugin has no \S*/{re.escape(file)}", ran.output[-1])


def test_gib_stage_installs_packages_and_settings(tmp_path: Path) -> None:
    """GoogleCloudPlatform/cluster-toolkit at 104708037, a3ultra-slurm-blueprint.yaml."""
    ran = node(tmp_path).run("45-transport", FABRIC="gpudirect-gib")
    assert ran.code == 0, (ran.errors, ran.output)
    assert (tmp_path / "etc/trainyard/fabric.env").read_text().splitlines() == [
        "NCCL_SOCKET_IFNAME==eth0",
        "NCCL_IB_TC=52",
        "NCCL_NET=gIB",
    ]
    installs = [line for line in ran.commands if " install " in line]
    assert installs[-1].endswith("install ibverbs-utils libnccl2=2.27.5-1+cuda12.9 nccl-gib=1.1.0*")
    assert "apt-mark hold nccl-gib" in ran.commands
    lists = (tmp_path / "etc/apt/sources.list.d").glob("*.list")
    assert all("signed-by=" in path.read_text() for path in lists)


@pytest.mark.parametrize(("fabric", "key"), [("gpudirect-gib", CUDA_KEY), ("gpudirect-tcpxo", REGISTRY_KEY)])
def test_key_of_another_publisher_fails_the_stage(tmp_path: Path, fabric: str, key: str) -> None:
    ran = node(tmp_path, {"gpg": f"0 pub:-:\nfpr:::::::::{'0' * 40}:\n"}).run("45-transport", FABRIC=fabric, GPUS="1")
    assert ran.code == 1
    assert f"does not have the fingerprint {key}" in ran.output[-1]
    assert not [line for line in ran.commands if line.startswith("apt-get") and "nccl" in line]


@pytest.mark.parametrize("fabric", ["gpudirect-gib", "gpudirect-tcpxo"])
def test_unreachable_archive_fails_the_stage(tmp_path: Path, fabric: str) -> None:
    assert "does not respond" in node(tmp_path, {"curl": "7 "}).run("45-transport", FABRIC=fabric, GPUS="1").failure()
