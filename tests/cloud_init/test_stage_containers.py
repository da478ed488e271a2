"""The stages that prepare containers, with recorded commands. These stages have never run on a real cloud."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import Ran, Sandbox

RECORDED = (
    *("curl", "apt-get", "dpkg-query", "gpg", "mv", "systemctl", "id", "usermod", "gpasswd", "mountpoint"),
    *("apparmor_parser", "docker", "nvidia-container-runtime-hook", "enroot-nsenter"),
)
KEY = {"gpg": "0 pub:-:\nfpr:::::::::C95B321B61E88C1809C4F759DDCAE044F796ECB0:\n"}
PLAIN = {"id": "0 trainer\n", "mountpoint": "1 ", **KEY}
RULE = "proc/sys/kernel/apparmor_restrict_unprivileged_userns"


GROUP = {"ROLE": "worker", "GROUP": "gpu", "GPUS": "8", "GPU_DEVICE": "/dev/nvidia"}
NODE = {**GROUP, "FABRIC": "gvnic", "CONTAINERS": "docker"}
INSTALL = "apt-get -q -y --no-install-recommends install"


def run(tmp_path: Path, answers: dict[str, str] | None = None, without: tuple[str, ...] = (), **env: str) -> Ran:
    # With enroot, the stage creates folders that belong to the job user, who does not exist on this computer.
    folders = ("install", "ln") if env.get("CONTAINERS") == "enroot" else ()
    recorded = tuple(name for name in (*RECORDED, *folders) if name not in without)
    return Sandbox(tmp_path, recorded, PLAIN | (answers or {})).run("44-containers", **NODE | env)


def test_docker_stage_installs_toolkit_and_adds_group_member(tmp_path: Path) -> None:
    ran = run(tmp_path).passed()
    [install] = [line for line in ran.commands if line.startswith(INSTALL)]
    assert install.count("=1.17.8-1") == 4
    assert "signed-by=" in (tmp_path / "etc/apt/sources.list.d/trainyard-container-toolkit.list").read_text()
    pin = (tmp_path / "etc/apt/preferences.d/trainyard-container-toolkit").read_text()
    assert "Pin: version 1.17.7-1\nPin-Priority: -1\n" in pin
    assert {"usermod --append --groups docker trainer", "systemctl restart docker.service"} <= set(ran.commands)


def use_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Hide the programs of this machine except these, for example an installed docker."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in names:
        (tools / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(tools))


@pytest.mark.parametrize("packages", [("docker.io",), ("docker.io", "docker-cli")])
def test_client_in_its_own_package_is_installed(
    packages: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last package adds the program docker."""
    use_programs(tmp_path, monkeypatch, *(path.name for path in Path("/usr/bin").iterdir() if path.name != "docker"))
    client = tmp_path / ".bin" / "docker"
    install = f"[[ $* != *' {packages[-1]}' ]] || install -m 0755 /dev/null {client}"
    sandbox = Sandbox(tmp_path, tuple(name for name in RECORDED if name != "docker"), PLAIN)
    sandbox.programs["apt-get"] = f'printf "%s\\n" "$*" >>{tmp_path}/installed\n{install}'
    sandbox.run("44-containers", **NODE | {"GPU_DEVICE": "/dev/fakegpu", "FABRIC": "ethernet"}).passed()
    lines = (tmp_path / "installed").read_text().splitlines()
    assert [line.split()[-1] for line in lines if " install " in line] == list(packages)


def test_installed_toolkit_keeps_its_version(tmp_path: Path) -> None:
    ran = run(tmp_path, {"dpkg-query": "0 installed", "id": "0 trainer docker\n"}).passed()
    assert not ran.calls("apt-get", "curl", "usermod")


OTHER_KEY = f"pub:-:\nfpr:::::::::{'0' * 40}:\n"


@pytest.mark.parametrize("keys", [f"0 {OTHER_KEY}", KEY["gpg"] + OTHER_KEY], ids=["another key", "a second key"])
def test_archive_key_file_with_another_key_is_rejected(tmp_path: Path, keys: str) -> None:
    ran = run(tmp_path, {"gpg": keys})
    assert "no package of that archive is installed" in ran.failure()
    assert ran.calls("apt-get") == []


def test_job_user_joins_docker_group_only_if_requested(tmp_path: Path) -> None:
    """Members of the group docker are root on the node."""
    ran = run(tmp_path, CONTAINERS="none", FABRIC="gpudirect-tcpxo").passed()
    assert any("nvidia-container-toolkit=" in line for line in ran.commands)
    assert not ran.calls("usermod")
    ran = run(tmp_path, {"id": "0 trainer docker\n"}, CONTAINERS="none").passed()
    assert ran.commands == ["id -nG trainer", "gpasswd --delete trainer docker"]


def test_node_without_containers_is_unchanged(tmp_path: Path) -> None:
    assert run(tmp_path, CONTAINERS="none").commands == ["id -nG trainer"]
    assert run(tmp_path, ROLE="head", GROUP="").commands == []


def test_docker_without_the_toolkit_fails_the_stage(tmp_path: Path) -> None:
    message = run(tmp_path, without=("nvidia-container-runtime-hook",)).failure()
    assert message.startswith("fail docker finds no GPU here")


RUNTIMES = {"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}


@pytest.mark.parametrize(("given", "cdi"), [({}, {}), (RUNTIMES | {"features": {"cdi": True}}, {"cdi": True})])
def test_docker_uses_the_local_disks_and_keeps_settings(
    tmp_path: Path, given: dict[str, object], cdi: dict[str, bool]
) -> None:
    (tmp_path / "mnt" / "localssd").mkdir(parents=True)
    file = tmp_path / "etc/docker/daemon.json"
    if given:
        Sandbox(tmp_path).write({"etc/docker/daemon.json": json.dumps(given)})
    run(tmp_path, {"mountpoint": "0 "}).passed()
    features = {"containerd-snapshotter": False, **cdi}
    root = f"{tmp_path}/mnt/localssd/docker"
    assert json.loads(file.read_text()) == {**given, "data-root": root, "features": features}
    assert Path(root).stat().st_mode & 0o777 == 0o710


def test_installation_is_retried_after_an_update_of_the_lists(tmp_path: Path) -> None:
    # The first attempt wrote the archive's source file, but the update of the package lists failed.
    failing = {f"{INSTALL} nvidia": "1 E: Unable to locate package"}
    assert run(tmp_path, failing).code != 0
    lines = [line.split(" nvidia")[0] for line in run(tmp_path, failing).calls("apt-get")]
    assert lines[-3:] == [INSTALL, "apt-get -q update", INSTALL]
    assert "systemctl restart docker.service" in run(tmp_path).commands, "docker is restarted after the installation"


def test_fake_gpus_need_no_toolkit(tmp_path: Path) -> None:
    ran = run(tmp_path, {"dpkg-query": "1 "}, GPUS="2", GPU_DEVICE="/dev/fakegpu").passed()
    assert not [line for line in ran.commands if "nvidia" in line]


@pytest.mark.parametrize(
    ("runtime", "commands"),
    [
        ("docker", ["systemctl start docker.service", "id -nG trainer", "usermod --append --groups docker trainer"]),
        ("enroot", ["id -nG trainer"]),
    ],
)
def test_runtime_of_an_existing_host_is_unchanged(tmp_path: Path, runtime: str, commands: list[str]) -> None:
    ran = run(tmp_path, TEST_LEDGER="yes", FABRIC="ethernet", CONTAINERS=runtime).passed()
    assert ran.commands == commands
    assert not (tmp_path / "etc").exists()


@pytest.mark.parametrize(("runtime", "program"), [("docker", "docker"), ("enroot", "enroot-nsenter")])
def test_existing_host_without_the_runtime_is_an_error(
    runtime: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_programs(tmp_path, monkeypatch, "bash", "cat", "grep")
    ran = run(tmp_path, without=(program,), TEST_LEDGER="yes", FABRIC="ethernet", CONTAINERS=runtime)
    assert ran.failure().startswith(f"fail this host has no {runtime}: install it, or remove ")


@pytest.mark.parametrize(("rule", "loads"), [("1\n", True), ("0\n", False), (None, False)])
def test_enroot_profile_is_loaded_if_ubuntu_restricts_namespaces(tmp_path: Path, rule: str | None, loads: bool) -> None:
    """Source: NVIDIA/enroot at 375e05de, conf/apparmor.profile. The rule stays enabled for all other programs."""
    Sandbox(tmp_path).write({RULE: rule} if rule is not None else {})
    ran = run(tmp_path, CONTAINERS="enroot").passed()
    profile = tmp_path / "etc" / "apparmor.d" / "trainyard-enroot"
    assert profile.exists() is loads
    loading = ["apparmor_parser --replace /etc/apparmor.d/trainyard-enroot"] if loads else []
    assert ran.calls("apparmor_parser") == loading
    if loads:
        text = profile.read_text()
        assert f"\n{tmp_path}/.bin/enroot-nsenter flags=(unconfined) {{\n  allow userns create,\n}}\n" in text
        assert (tmp_path / RULE).read_text() == "1\n"


@pytest.mark.parametrize(("mounted", "disk"), [("0 ", "/mnt/localssd/enroot"), ("1 ", "/var/lib/enroot")])
def test_enroot_uses_the_local_disks_and_private_folders(tmp_path: Path, mounted: str, disk: str) -> None:
    Sandbox(tmp_path).write({"usr/share/enroot/hooks.d/50-slurm-pmi.sh": ""})
    ran = run(tmp_path, {"id": "0 1001\n", "mountpoint": mounted}, CONTAINERS="enroot").passed()
    own = f"{disk}/user-1001"
    assert f"install -d -m 0755 /run/enroot {disk} {own}" in ran.commands
    private = f"/run/enroot/user-1001 {own}/cache {own}/data {own}/temp"
    assert f"install -d -m 0700 -o trainer -g trainer {private}" in ran.commands
    settings = (tmp_path / "etc/enroot/enroot.conf.d/trainyard.conf").read_text().replace(str(tmp_path), "")
    folders = {"RUNTIME": "/run/enroot/user-$(id -u)"}
    folders |= {name: f"{disk}/user-$(id -u)/{name.lower()}" for name in ("CACHE", "DATA", "TEMP")}
    assert settings == "".join(f"ENROOT_{name}_PATH {path}\n" for name, path in folders.items())
    assert "ln -s /usr/share/enroot/hooks.d/50-slurm-pmi.sh /etc/enroot/hooks.d/" in ran.commands


ENROOT = "https://github.com/NVIDIA/enroot/releases/download"


def without_enroot(tmp_path: Path, sums: str = "true", architecture: str = "amd64", **env: str) -> Ran:
    """Run the stage on a node without enroot, which the fake apt-get installs. `sums` is the fake program sha256sum."""
    recorded = tuple(name for name in (*RECORDED, "install", "ln") if name != "enroot-nsenter")
    sandbox = Sandbox(tmp_path, recorded, PLAIN)
    nsenter = tmp_path / ".bin" / "enroot-nsenter"
    sandbox.programs["apt-get"] = (
        f'printf "apt-get %s\\n" "$*" >>{tmp_path}/fetched\n[[ $* != *enroot+caps* ]] || '
        f"{{ printf '#!/bin/sh\\n' >{nsenter}; chmod 755 {nsenter}; }}"
    )
    sandbox.programs["curl"] = f'printf "%s\\n" "${{@: -1}}" >>{tmp_path}/fetched'
    sandbox.programs["sha256sum"] = f"cat >>{tmp_path}/sums; {sums}"
    sandbox.programs["dpkg"] = f"echo {architecture}"
    own = {"GPU_DEVICE": "/dev/fakegpu", "FABRIC": "ethernet", "CONTAINERS": "enroot"}
    return sandbox.run("44-containers", **NODE | own | env)


@pytest.mark.parametrize(
    ("env", "releases"),
    [({}, ENROOT), ({"BAKING": "1"}, ENROOT), ({"MIRRORS": f"s#{ENROOT}#http://m/enroot#"}, "http://m/enroot")],
)
def test_locked_enroot_is_installed(tmp_path: Path, env: dict[str, str], releases: str) -> None:
    without_enroot(tmp_path, **env).passed()
    files = f"{tmp_path}/run/trainyard/enroot.deb {tmp_path}/run/trainyard/enroot+caps.deb"
    assert (tmp_path / "fetched").read_text().splitlines() == [
        f"{INSTALL} squashfuse fuse-overlayfs",
        f"{releases}/v3.5.0/enroot_3.5.0-1_amd64.deb",
        f"{releases}/v3.5.0/enroot+caps_3.5.0-1_amd64.deb",
        f"{INSTALL} {files}",
    ]
    hashes = [line.split()[0] for line in (tmp_path / "sums").read_text().splitlines()]
    assert [(len(value), value[:4]) for value in hashes] == [(64, "28c3"), (64, "6a70")]


@pytest.mark.parametrize(
    ("sums", "architecture", "words"), [("false", "amd64", ": it is not installed"), ("true", "arm64", "are for amd64")]
)
def test_enroot_with_another_hash_or_architecture_fails(
    tmp_path: Path, sums: str, architecture: str, words: str
) -> None:
    assert words in without_enroot(tmp_path, sums, architecture).failure()
    assert "enroot.deb" not in (Sandbox(tmp_path).read("fetched") or "")


def test_a_builder_installs_docker_without_starting_it(tmp_path: Path) -> None:
    ran = run(tmp_path, BAKING="1").passed()
    assert any(line.startswith("apt-get -q -y") and "nvidia-container-toolkit=" in line for line in ran.commands)
    assert "systemctl disable --quiet docker.service docker.socket" in ran.commands
    assert not ran.calls("usermod", "systemctl start", "systemctl restart")


REFUSED = "srun: plugin_load_from_file: Incompatible Slurm plugin /usr/lib/spank_pyxis.so version (24.05.0)"
"""First line of srun of Slurm 24.11.5 with a pyxis that was compiled for 24.05. Its exit code is 1."""


def start_slurm(root: Path, srun: str, **env: str) -> Ran:
    """Run stage 70-slurm with a fake srun. The file `read` contains the plugstack.conf that srun has read."""
    sandbox = Sandbox(root, ("systemctl",))
    sandbox.programs["scontrol"] = "echo slurm-wlm 24.11.5"
    sandbox.programs["srun"] = (
        f"cat ${{SLURM_CONF%/*}}/plugstack.conf >{root}/read; [[ -s $SLURM_CONF ]] || exit 1\n{srun}"
    )
    names = {"NODE": "box-gpu-0", "HEAD_IP": "10.0.0.2", "CONTAINERS": "enroot"}
    return sandbox.run("70-slurm", **{**GROUP, **names, **env})


@pytest.mark.parametrize("path", ["usr/share/pyxis/pyxis.conf", "usr/local/share/pyxis/pyxis.conf"])
def test_slurmd_starts_if_srun_loads_pyxis(tmp_path: Path, path: str) -> None:
    Sandbox(tmp_path).write({path: "required spank_pyxis.so\n"})
    ran = start_slurm(tmp_path, "echo '      --container-image=IMAGE'").passed()
    assert (tmp_path / "read").read_text() == f"include {tmp_path}/{path}\n"
    assert ran.calls("systemctl")


@pytest.mark.parametrize("role", ["head", "worker"])
def test_pyxis_for_another_slurm_is_named(tmp_path: Path, role: str) -> None:
    Sandbox(tmp_path).write({"usr/share/pyxis/pyxis.conf": "required spank_pyxis.so\n"})
    ran = start_slurm(tmp_path, f"echo '{REFUSED}' >&2; exit 1", ROLE=role)
    place = f"fail {tmp_path}/usr/share/pyxis/pyxis.conf"
    assert ran.failure().startswith(f"{place}: slurm-wlm 24.11.5 cannot load this pyxis, so slurmd and srun")
    assert f"({REFUSED}). Fix: " in ran.failure()
    assert not ran.calls("systemctl")


@pytest.mark.parametrize("env", [{"CONTAINERS": "none"}, {}])
def test_nodes_without_pyxis_do_not_run_srun(tmp_path: Path, env: dict[str, str]) -> None:
    Sandbox(tmp_path).write({"usr/share/pyxis/pyxis.conf": "required spank_pyxis.so\n"} if env else {})
    assert start_slurm(tmp_path, "exit 1", **env).passed().calls("systemctl")
    assert not (tmp_path / "read").exists()


MAKEFILE = """\
install:
\techo compiled >>{root}/compiled
\tmkdir -p {root}/usr/local/share/pyxis
\techo 'required /usr/local/lib/slurm/spank_pyxis.so' >{root}/usr/local/share/pyxis/pyxis.conf
"""
PYXIS = "https://github.com/NVIDIA/pyxis/archive/refs/tags"


def compile_pyxis(root: Path, sums: str | None = "true", slurm: str = "24.11.5-4", **env: str) -> Ran:
    """Run stage 48-pyxis with a stand-in for the release, which has another hash. `sums` replaces sha256sum."""
    content = MAKEFILE.format(root=root).encode()
    entry = tarfile.TarInfo("pyxis-0.24.0/Makefile")
    entry.size = len(content)
    with tarfile.open(root / "release.tar.gz", "w:gz") as archive:
        archive.addfile(entry, io.BytesIO(content))
    sandbox = Sandbox(root, ("apt-get",))
    sandbox.programs["curl"] = f'printf "%s\\n" "${{@: -1}}" >>{root}/fetched; cat {root}/release.tar.gz'
    sandbox.programs["dpkg-query"] = f"[[ $* == *' slurm-client' ]] && printf '{slurm}'"
    if sums is not None:
        sandbox.programs["sha256sum"] = f"cat >>{root}/sums; {sums}"
    return sandbox.run("48-pyxis", **{**GROUP, "CONTAINERS": "enroot", **env})


@pytest.mark.parametrize("env", [{}, {"ROLE": "head", "GROUP": ""}, {"BAKING": "1"}])
def test_pyxis_is_compiled_once_for_each_version_of_slurm(tmp_path: Path, env: dict[str, str]) -> None:
    ran = compile_pyxis(tmp_path, MIRRORS=f"s#{PYXIS}#http://m/pyxis#", **env).passed()
    assert (tmp_path / "fetched").read_text() == "http://m/pyxis/v0.24.0.tar.gz\n"
    assert f"{INSTALL} gcc libc6-dev make libslurm-dev=24.11.5-4" in ran.commands
    assert (tmp_path / "sums").read_text().startswith("b406327c")
    assert compile_pyxis(tmp_path, **env).passed().commands == []
    assert (tmp_path / "compiled").read_text() == "compiled\n"
    compile_pyxis(tmp_path, slurm="24.11.6-1", **env).passed()
    assert (tmp_path / "compiled").read_text() == "compiled\n" * 2
    assert list((tmp_path / "run/trainyard").glob("pyxis*")) == []


def test_pyxis_with_another_hash_is_not_compiled(tmp_path: Path) -> None:
    assert "does not have the SHA-256 hash b406" in compile_pyxis(tmp_path, sums=None).failure()
    assert not (tmp_path / "compiled").exists()


@pytest.mark.parametrize("path", ["usr/share/pyxis/pyxis.conf", "usr/local/share/pyxis/pyxis.conf"])
def test_pyxis_of_the_image_is_kept(tmp_path: Path, path: str) -> None:
    Sandbox(tmp_path).write({path: "required spank_pyxis.so\n"})
    assert compile_pyxis(tmp_path).passed().commands == []
    assert not (tmp_path / "fetched").exists()


@pytest.mark.parametrize("env", [{"SCHEDULER": "none"}, {"TEST_LEDGER": "yes"}])
def test_pyxis_is_not_installed_without_slurm_or_on_existing_hosts(tmp_path: Path, env: dict[str, str]) -> None:
    assert compile_pyxis(tmp_path, **env).passed().commands == []
    assert not (tmp_path / "fetched").exists()
