"""The stage that prepares docker or enroot, with recorded commands. It never ran on a real cloud's machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.stage_sandbox import Ran, Sandbox

RECORDED = (
    *(
        "curl",
        "apt-get",
        "dpkg-query",
        "gpg",
        "mv",
        "systemctl",
        "id",
        "usermod",
        "gpasswd",
        "mountpoint",
        "apparmor_parser",
    ),
    *("docker", "nvidia-container-runtime-hook", "enroot-nsenter"),
)
KEY = {"gpg": "0 pub:-:\nfpr:::::::::C95B321B61E88C1809C4F759DDCAE044F796ECB0:\n"}
PLAIN = {"id": "0 trainer\n", "mountpoint": "1 ", **KEY}
RULE = "proc/sys/kernel/apparmor_restrict_unprivileged_userns"


def run(tmp_path: Path, answers: dict[str, str] | None = None, without: tuple[str, ...] = (), **env: str) -> Ran:
    recorded = tuple(name for name in RECORDED if name not in without)
    node = {
        "ROLE": "worker",
        "GROUP": "gpu",
        "GPUS": "8",
        "GPU_DEVICE": "/dev/nvidia",
        "FABRIC": "gvnic",
        "CONTAINERS": "docker",
    }
    return Sandbox(tmp_path, recorded, PLAIN | (answers or {})).run("44-containers", **node | env)


def test_docker_the_toolkit_and_the_group_are_installed(tmp_path: Path) -> None:
    ran = run(tmp_path)
    assert ran.code == 0, (ran.errors, ran.said)
    version = "1.17.8-1"
    packages = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools")
    wanted = " ".join(f"{name}={version}" for name in (*packages, "libnvidia-container1"))
    assert f"apt-get -q -y --no-install-recommends install {wanted}" in ran.commands
    source = (tmp_path / "etc/apt/sources.list.d/trainyard-container-toolkit.list").read_text()
    assert source.endswith("https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH) /\n")
    assert "signed-by=" in source
    pin = (tmp_path / "etc/apt/preferences.d/trainyard-container-toolkit").read_text()
    assert "Pin: version 1.17.7-1\nPin-Priority: -1\n" in pin
    assert "usermod --append --groups docker trainer" in ran.commands
    assert "systemctl restart docker.service" in ran.commands


def test_a_toolkit_that_is_there_keeps_its_version(tmp_path: Path) -> None:
    ran = run(tmp_path, {"dpkg-query": "0 installed", "id": "0 trainer docker\n"})
    assert ran.code == 0, (ran.errors, ran.said)
    assert not [line for line in ran.commands if line.startswith(("apt-get", "curl", "usermod"))]


def test_a_forged_key_installs_nothing(tmp_path: Path) -> None:
    ran = run(tmp_path, {"gpg": f"0 pub:-:\nfpr:::::::::{'0' * 40}:\n"})
    assert ran.code == 1
    assert "nothing of that archive is installed" in ran.said[-1]
    assert not [line for line in ran.commands if line.startswith("apt-get")]


def test_a_second_key_in_the_file_installs_nothing(tmp_path: Path) -> None:
    forged = KEY["gpg"] + f"pub:-:\nfpr:::::::::{'0' * 40}:\n"
    assert run(tmp_path, {"gpg": forged}).code == 1


def test_no_stack_lets_the_job_user_in_without_asking(tmp_path: Path) -> None:
    """Members of the group docker are root on the node."""
    ran = run(tmp_path, CONTAINERS="none", FABRIC="gpudirect-tcpxo")
    assert ran.code == 0, (ran.errors, ran.said)
    assert any("nvidia-container-toolkit=" in line for line in ran.commands)
    assert not [line for line in ran.commands if line.startswith("usermod")]


def test_a_stack_that_no_longer_names_docker_ends_the_membership(tmp_path: Path) -> None:
    ran = run(tmp_path, {"id": "0 trainer docker\n"}, CONTAINERS="none")
    assert (ran.code, ran.commands) == (0, ["id -nG trainer", "gpasswd --delete trainer docker"])


def test_a_node_that_needs_no_container_is_left_alone(tmp_path: Path) -> None:
    assert run(tmp_path, CONTAINERS="none").commands == ["id -nG trainer"]
    assert run(tmp_path, ROLE="head", GROUP="").commands == []


def test_docker_without_the_toolkit_fails_the_node(tmp_path: Path) -> None:
    ran = run(tmp_path, without=("nvidia-container-runtime-hook",))
    assert ran.code == 1
    assert ran.said[-1].startswith("fail docker finds no GPU here")


def test_docker_keeps_its_data_on_local_disks(tmp_path: Path) -> None:
    (tmp_path / "mnt" / "localssd").mkdir(parents=True)
    ran = run(tmp_path, {"mountpoint": "0 "})
    assert ran.code == 0, (ran.errors, ran.said)
    daemon = json.loads((tmp_path / "etc/docker/daemon.json").read_text())
    assert daemon == {"data-root": f"{tmp_path}/mnt/localssd/docker"}
    assert (tmp_path / "mnt/localssd/docker").stat().st_mode & 0o777 == 0o710


def test_the_images_docker_settings_stay(tmp_path: Path) -> None:
    (tmp_path / "mnt" / "localssd").mkdir(parents=True)
    runtimes = {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}
    file = tmp_path / "etc/docker/daemon.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"runtimes": runtimes}))
    assert run(tmp_path, {"mountpoint": "0 "}).code == 0
    assert json.loads(file.read_text()) == {"data-root": f"{tmp_path}/mnt/localssd/docker", "runtimes": runtimes}


def test_packages_are_found_after_a_failed_update(tmp_path: Path) -> None:
    # The list of the archive is there from the first attempt, whose update failed.
    install = "apt-get -q -y --no-install-recommends install nvidia"
    ran = run(tmp_path, {install: "1 E: Unable to locate package"})
    assert ran.code != 0
    again = run(tmp_path, {install: "1 E: Unable to locate package"})
    lines = [line.split(" nvidia")[0] for line in again.commands if line.startswith("apt-get")]
    plain = "apt-get -q -y --no-install-recommends install"
    assert lines[-3:] == [plain, "apt-get -q update", plain]


def test_a_toolkit_of_a_second_attempt_restarts_docker(tmp_path: Path) -> None:
    assert run(tmp_path, {"apt-get -q -y --no-install-recommends install nvidia": "1 "}).code != 0
    assert "systemctl restart docker.service" in run(tmp_path).commands


def test_fake_gpus_need_no_toolkit(tmp_path: Path) -> None:
    ran = run(tmp_path, {"dpkg-query": "1 "}, GPUS="2", GPU_DEVICE="/dev/fakegpu")
    assert ran.code == 0, (ran.errors, ran.said)
    assert not [line for line in ran.commands if "nvidia" in line]


def test_an_owners_docker_is_used_and_not_changed(tmp_path: Path) -> None:
    ran = run(tmp_path, TEST_BORROWED="yes", FABRIC="ethernet")
    assert ran.code == 0, (ran.errors, ran.said)
    assert [line for line in ran.commands if line.startswith("systemctl")] == ["systemctl start docker.service"]
    assert not [line for line in ran.commands if line.startswith("apt-get")]
    assert "usermod --append --groups docker trainer" in ran.commands
    assert not (tmp_path / "etc").exists()


def test_an_owner_without_docker_gets_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "cat", "grep"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    # A docker of this machine must not be found.
    monkeypatch.setenv("PATH", str(tools))
    ran = run(tmp_path, without=("docker",), TEST_BORROWED="yes", FABRIC="ethernet")
    said = "fail this host has no docker: install it, or remove `containers: docker`"
    assert (ran.code, ran.said) == (1, [said])


@pytest.mark.parametrize(("rule", "loads"), [("1\n", True), ("0\n", False), (None, False)])
def test_enroot_gets_a_profile_where_ubuntu_asks_for_one(tmp_path: Path, rule: str | None, loads: bool) -> None:
    """NVIDIA/enroot at 375e05de, conf/apparmor.profile. The rule stays on for every other program."""
    if rule is not None:
        (tmp_path / RULE).parent.mkdir(parents=True)
        (tmp_path / RULE).write_text(rule)
    ran = run(tmp_path, CONTAINERS="enroot")
    assert ran.code == 0, (ran.errors, ran.said)
    profile = tmp_path / "etc" / "apparmor.d" / "trainyard-enroot"
    assert profile.exists() is loads
    loading = ["apparmor_parser --replace /etc/apparmor.d/trainyard-enroot"] if loads else []
    assert ran.commands == ["id -nG trainer", *loading]
    if loads:
        text = profile.read_text()
        assert f"\n{tmp_path}/.bin/enroot-nsenter flags=(unconfined) {{\n  allow userns create,\n}}\n" in text
        assert (tmp_path / RULE).read_text() == "1\n"


def test_a_node_without_enroot_gets_a_reason(tmp_path: Path) -> None:
    ran = run(tmp_path, without=("enroot-nsenter",), CONTAINERS="enroot")
    assert (ran.code, ran.said) == (1, ["fail this node has no enroot: use an image that has it, or docker"])
