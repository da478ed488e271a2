"""The stage 45-transport, which installs NCCL's transport on Google Cloud. It has never run on a real cloud."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from components.catalog import fabrics
from tests.cloud_init.stage_sandbox import Ran, Sandbox, bash

pytestmark = pytest.mark.engine

RECORDED = (
    *("curl", "apt-get", "apt-mark", "docker", "modprobe", "mount", "mv", "chmod", "systemctl"),
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


STAGE = "45-transport"
RUNNING = {"docker inspect": f"0 true {TCPXO}/tcpgpudmarxd-dev:v1.0.23\n"}


class Docker(Sandbox):
    """A node with a fake docker, which reports the receive daemon as running once the daemon has been started."""

    def _stub(self, file: Path, log: Path) -> None:
        super()._stub(file, log)
        if file.name == "docker":
            image = f"$(grep -o 'us-docker[^ ]*tcpgpudmarxd-dev:[^ ]*' {log} | tail -n 1)"
            state = f'if [[ $1 == inspect ]]; then grep -q "^docker run --detach" {log} || exit 1\n'
            state += f'echo "true {image}"; exit 0; fi\n'
            head, mark, rest = file.read_text().partition("[[ $line != *-stdin* ]]")
            file.write_text(head + state + mark + rest)


def node(root: Path, answers: dict[str, str] | None = None, kind: type[Sandbox] = Sandbox) -> Sandbox:
    """Return a node with the devices and files for all fabrics: an aperture card, plugin folders and settings."""
    usual = {
        "curl -fsS --max-time": '0 {"access_token": "t"}',
        "gpg": KEYS,
        "uname": f"0 {KERNEL}\n",
        "dkms status": f"0 dmabuf-import-helper/1.1, {KERNEL}, x86_64: installed\n",
        "docker inspect": "1 ",
        "docker logs": READY,
    }
    made = kind(root, RECORDED, usual | (answers or {}))
    made.write(
        {
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
    )
    (root / "usr" / "src").mkdir(parents=True)
    return made


def fresh(root: Path, answers: dict[str, str] | None = None) -> Sandbox:
    """Return a node whose receive daemon has not been started."""
    return node(root, answers, Docker)


def daemon(ran: Ran, name: str = "receive-datapath-manager") -> str:
    return next(line for line in ran.calls("docker run") if f"--name={name} " in line)


def test_missing_fast_socket_is_only_a_warning(tmp_path: Path) -> None:
    """google/nccl-fastsocket at b3ff1c6f, BUILD: the package contains /usr/lib/libnccl-net.so."""
    folder = fabrics()["gvnic"].library_path or ""
    assert fabrics()["gvnic"].mounts == (f"{folder.removesuffix('/lib64')}:ro",)
    made = node(tmp_path, {"curl": "7 "})
    text = "Fast Socket is not installed; NCCL uses plain TCP streams"
    assert made.run(STAGE, FABRIC="gvnic").passed().output == [f"log WARNING: {text}"]
    assert not list((tmp_path / "etc").glob("**/*.list"))
    assert made.read(f"{folder[1:]}/not-installed") == f"{text}\n"
    made.write({"usr/lib/libnccl-net.so": "plugin"})
    made.answers["curl"] = "0 "
    assert made.run(STAGE, FABRIC="gvnic").passed().output == []
    assert [path.name for path in (tmp_path / folder[1:]).iterdir()] == ["libnccl-net.so"]


@pytest.mark.parametrize("fabric", ["gpudirect-tcpx", "gpudirect-tcpxo", "gpudirect-gib"])
def test_the_loader_finds_the_plugin_without_yard(tmp_path: Path, fabric: str) -> None:
    ran = fresh(tmp_path).run(STAGE, FABRIC=fabric, GPUS="1").passed()
    path = fabrics()[fabric].library_path
    assert (tmp_path / "etc/ld.so.conf.d/trainyard-nccl.conf").read_text() == f"{tmp_path}{path}\n"
    assert "ldconfig " in ran.commands


def test_each_gpu_needs_an_aperture_device(tmp_path: Path) -> None:
    message = fresh(tmp_path).run(STAGE, FABRIC="gpudirect-tcpxo", GPUS="8").failure()
    assert message.startswith("fail this node has 1 aperture devices for 8 GPUs")


@pytest.mark.parametrize(
    ("fabric", "image", "arguments"),
    [
        ("gpudirect-tcpxo", f"{TCPXO}/tcpgpudmarxd-dev:v1.0.23", "--num_hops=2 --num_nics=8 --uid= --alsologtostderr"),
        ("gpudirect-tcpx", f"{TCPX}/tcpgpudmarxd-dev:v2.0.12", "--gpu_shmem_type fd --uds_path /run/tcpx"),
    ],
)
def test_receive_daemon_has_no_restart_policy(tmp_path: Path, fabric: str, image: str, arguments: str) -> None:
    """With a restart policy, docker would start the daemon at boot, before the module is loaded."""
    command = daemon(fresh(tmp_path).run(STAGE, FABRIC=fabric, GPUS="1").passed())
    assert f" {image} " in command
    assert command.endswith(arguments)
    assert "--restart" not in command
    # Unlike --mount, --volume would create a folder if the device is missing.
    assert "--volume /dev/" not in command


def test_tcpxo_loads_its_module_and_mounts_the_aperture_devices(tmp_path: Path) -> None:
    ran = fresh(tmp_path).run(STAGE, **TCPXO_NODE).passed()
    assert "modprobe import-helper" in ran.commands
    assert ran.calls("mount --bind /sys/bus/pci/devices/0000:06:00.0 ", "docker logs")
    assert not (tmp_path / "run" / "trainyard" / "docker").exists()
    assert (tmp_path / "etc/modules-load.d/trainyard-import-helper.conf").read_text() == "import-helper\n"


@pytest.mark.parametrize(
    ("fabric", "log", "words"),
    [
        ("gpudirect-tcpxo", "still mapping", "has not initialized its buffers after 120 s: still mapping"),
        ("gpudirect-tcpxo", "no GPU found", "has ended.*: no GPU found"),
        ("gpudirect-tcpx", "no GPU found", "has ended.*: no GPU found"),
    ],
)
def test_log_of_an_unready_daemon_is_reported(tmp_path: Path, fabric: str, log: str, words: str) -> None:
    runs = log == "still mapping"
    made = node(tmp_path, {"docker logs": f"0 {log}"}, Docker if runs else Sandbox)
    ran = made.run(STAGE, FABRIC=fabric, GPUS="1")
    assert re.match(f"fail receive-datapath-manager {words}", ran.failure())
    assert ("docker stop receive-datapath-manager" in ran.commands) or not runs


def test_running_daemon_is_not_restarted(tmp_path: Path) -> None:
    ran = node(tmp_path, RUNNING).run(STAGE, **TCPXO_NODE).passed()
    assert {line.split()[1] for line in ran.calls("docker")} == {"image", "inspect"}
    assert [line.split()[1] for line in ran.calls("dkms")] == ["status"], "the installed module is not built again"


def test_new_plugin_replaces_the_files_of_the_old_one(tmp_path: Path) -> None:
    made = fresh(tmp_path)
    made.write({"var/lib/tcpxo/.trainyard-plugin": "older\n"})
    ran = made.run(STAGE, **TCPXO_NODE)
    # The docker command is recorded but not run, so no plugin is installed.
    assert "put no NCCL plugin into" in ran.failure()
    assert daemon(ran, "nccl-installer").endswith("nccl-plugin-gpudirecttcpx-dev:v1.0.17 install --install-nccl")


@pytest.mark.parametrize(("answer", "pulls"), [("0 ", False), ("1 ", True)])
def test_only_missing_images_are_pulled(tmp_path: Path, answer: str, pulls: bool) -> None:
    ran = fresh(tmp_path, {"docker image": answer}).run(STAGE, **TCPXO_NODE).passed()
    assert [line.split("/")[-1] for line in ran.calls("docker pull")] == ["tcpgpudmarxd-dev:v1.0.23"] * pulls
    assert bool(ran.calls("docker login")) is pulls


def test_plugin_settings_are_added_to_fabric_env(tmp_path: Path) -> None:
    made, settings = node(tmp_path, RUNNING), tmp_path / "etc" / "trainyard" / "fabric.env"
    assert made.run(STAGE, **TCPXO_NODE).output == []
    once = settings.read_text()
    assert once.splitlines() == [
        "NCCL_SOCKET_IFNAME==eth0",
        "NCCL_ALGO=Ring,Tree",
        "NCCL_FASTRAK_NUM_FLOWS=2",
        "NCCL_ODD='it'\\''s; b'",
        f"NCCL_TUNER_CONFIG_PATH={tmp_path}/var/lib/tcpxo/lib64/tuner.textproto",
    ]
    made.run(STAGE, **TCPXO_NODE)
    assert settings.read_text() == once
    assert bash('source "$1"; echo "$NCCL_ALGO $NCCL_ODD"', str(settings)) == "Ring,Tree it's; b\n"


PROFILES = {
    "gpudirect-tcpxo": "var/lib/tcpxo/lib64/nccl-env-profile.sh",
    "gpudirect-gib": "usr/local/gib/scripts/set_nccl_env.sh",
}


@pytest.mark.parametrize("fabric", PROFILES)
def test_plugin_without_settings_fails_the_stage(tmp_path: Path, fabric: str) -> None:
    made = node(tmp_path, RUNNING)
    (tmp_path / PROFILES[fabric]).unlink()
    message = made.run(STAGE, FABRIC=fabric, GPUS="1").failure()
    assert re.match(rf"fail the plugin has no \S*/{re.escape(PROFILES[fabric])}", message)


def test_gib_stage_installs_and_holds_its_packages(tmp_path: Path) -> None:
    ran = node(tmp_path).run(STAGE, FABRIC="gpudirect-gib").passed()
    settings = (tmp_path / "etc/trainyard/fabric.env").read_text()
    assert settings == "NCCL_SOCKET_IFNAME==eth0\nNCCL_IB_TC=52\nNCCL_NET=gIB\n"
    assert ran.calls("apt-get -q -y")[-1].endswith(" libnccl2=2.27.5-1+cuda12.9 nccl-gib=1.1.0*")
    assert "apt-mark hold nccl-gib" in ran.commands


@pytest.mark.parametrize(("fabric", "key"), [("gpudirect-gib", CUDA_KEY), ("gpudirect-tcpxo", REGISTRY_KEY)])
def test_archive_must_respond_with_the_key_of_its_publisher(tmp_path: Path, fabric: str, key: str) -> None:
    missing = {"dkms status": "0 "}
    keys = {"gpg": f"0 pub:-:\nfpr:::::::::{'0' * 40}:\n"}
    ran = node(tmp_path / "key", missing | keys).run(STAGE, FABRIC=fabric, GPUS="1")
    assert f"does not have the fingerprint {key}" in ran.failure()
    assert not [line for line in ran.calls("apt-get") if "nccl" in line]
    ran = node(tmp_path / "unreachable", missing | {"curl": "7 "}).run(STAGE, FABRIC=fabric, GPUS="1")
    assert "does not respond" in ran.failure()


def build(root: Path, kernel: str, answers: dict[str, str] | None = None) -> tuple[Ran, str]:
    """Run the stage on a node without the module. Return the stage's result and the source that dkms builds."""
    made = fresh(root, {"dkms status": "0 ", "uname": f"0 {kernel}\n"} | (answers or {}))
    made.recorded = tuple(name for name in RECORDED if name not in {"mv", "dpkg-deb", "apt-get"})
    source = "usr/src/dmabuf-import-helper-1.1/import-helper.c"
    made.programs["dpkg-deb"] = f"mkdir -p $(dirname {source})\nprintf '{SOURCE}' >{source}"
    log = f'echo "apt-get $*" >>{root}/.log'
    made.programs["apt-get"] = f"{log}\n[[ $* != *download* ]] || touch helper.deb"
    keys = ("artifact-registry", "gpudirect-tcpxo-apt")
    made.write({f"usr/share/keyrings/trainyard-{name}.asc": "" for name in keys})
    return made.run(STAGE, **TCPXO_NODE), made.read(source) or ""


@pytest.mark.parametrize(
    ("kernel", "line"),
    [
        (KERNEL, 'MODULE_IMPORT_NS("DMA_BUF");'),
        ("6.13.0-1-gcp", 'MODULE_IMPORT_NS("DMA_BUF");'),
        ("6.8.0-1035-gcp", "MODULE_IMPORT_NS(DMA_BUF);"),
    ],
)
def test_the_import_helper_is_patched_for_newer_kernels(tmp_path: Path, kernel: str, line: str) -> None:
    """GoogleCloudPlatform/cluster-toolkit at 104708037, a3mega-slurm-blueprint.yaml, install_dmabuf.yml."""
    ran, source = build(tmp_path, kernel)
    ran.passed()
    assert line in source
    module = "-m dmabuf-import-helper -v 1.1"
    steps = [text for text in ran.commands if text.startswith("dkms") and "status" not in text]
    assert steps == [f"dkms remove {module} --all", *(f"dkms {step} {module}" for step in ("add", "build", "install"))]
    assert any(line.endswith(f"install dkms linux-headers-{kernel}") for line in ran.commands)
    assert not any("install dmabuf-import-helper" in line for line in ran.commands)


def test_failed_module_build_fails_the_stage(tmp_path: Path) -> None:
    ran, _ = build(tmp_path, KERNEL, {"dkms build": "1 "})
    assert ran.failure().startswith(f"fail dmabuf-import-helper 1.1 does not build for {KERNEL}: ")
    assert "modprobe import-helper" not in ran.commands


INSTALLED = {
    "gvnic": "apt-get -q -y --no-install-recommends install google-fast-socket",
    "gpudirect-tcpx": f"{TCPX}/nccl-plugin-gpudirecttcpx-dev:v3.1.9-2.19.4-12.0 install",
    "gpudirect-tcpxo": f"{TCPXO}/nccl-plugin-gpudirecttcpx-dev:v1.0.17 install --install-nccl",
    "gpudirect-gib": "install ibverbs-utils libnccl2=2.27.5-1+cuda12.9 nccl-gib=1.1.0*",
}
"""For each fabric, the end of the command that installs its plugin."""


@pytest.mark.parametrize("fabric", INSTALLED)
def test_a_builder_installs_without_configuring(tmp_path: Path, fabric: str) -> None:
    made = node(tmp_path)
    made.recorded = tuple(name for name in RECORDED if name != "docker")
    library = tmp_path / "var" / "lib" / fabric.removeprefix("gpudirect-") / "lib64"
    made.programs["docker"] = (
        f'echo "docker $*" >>{tmp_path}/.log; [[ "$1 $2" != "image inspect" ]] || exit 1\n'
        "[[ $1 != login ]] || cat >/dev/null\n"
        f"[[ $1 != run ]] || install -D /dev/null {library}/libnccl-net.so"
    )
    made.write({"usr/lib/libnccl-net.so": "plugin"})
    # Stage 32-environment does not run on a builder, whose machine has no cards.
    for path in ("etc/trainyard/fabric.env", *map(str, tmp_path.glob("var/lib/*/.trainyard-plugin"))):
        (tmp_path / path).unlink()
    shutil.rmtree(tmp_path / "sys")
    ran = made.run(STAGE, FABRIC=fabric, GPUS="8", BAKING="1").passed()
    assert [line for line in ran.commands if line.endswith(INSTALLED[fabric])]
    assert not ran.calls("modprobe", "mount", "ldconfig", "docker run --detach")
    assert not [*tmp_path.glob("etc/ld.so.conf.d/*"), *tmp_path.glob("etc/modules-load.d/*")]
    # The image contains the plugin's files, without the container image and the token for the registry.
    images = [line.split()[1] for line in ran.calls("docker pull", "docker run", "docker image rm")]
    assert images == (["pull", "run", "image"] if "us-docker" in INSTALLED[fabric] else [])
    assert bool(images) is ("systemctl start docker.service" in ran.commands)
    assert not (tmp_path / "run" / "trainyard" / "docker").exists()


@pytest.mark.parametrize("fabric", INSTALLED)
def test_nodes_of_a_baked_image_read_no_archive(tmp_path: Path, fabric: str) -> None:
    made = fresh(tmp_path, {"curl": "7 ", "dpkg-query": "0 installed"})
    made.write({"usr/lib/libnccl-net.so": "plugin"})
    ran = made.run(STAGE, FABRIC=fabric, GPUS="1").passed()
    assert not ran.calls("curl", "apt-get", "docker pull", "docker run --rm")
