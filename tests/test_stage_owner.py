"""What the stages leave to the owner of an existing host: start policies, /etc/hosts, cloud-init's errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stage_sandbox import Sandbox

APT = ("apt-get", "systemctl")
BUILT = {"ROLE": "worker", "GPU_DEVICE": "/dev/nvidia", "SCHEDULER": "none", "OS": "debian-12"}
POLICY = "usr/sbin/policy-rc.d"


def packages(root: Path, answers: dict[str, str], policy: str | None) -> tuple[int, str | None]:
    """Run the stage of packages. Returns its exit code, and what is in policy-rc.d afterwards."""
    (root / "usr/sbin").mkdir(parents=True, exist_ok=True)
    (root / "run/trainyard").mkdir(parents=True, exist_ok=True)
    file = root / POLICY
    if policy is not None:
        file.write_text(policy)
    ran = Sandbox(root, APT, answers).run("20-apt", **BUILT)
    return ran.code, file.read_text() if file.exists() else None


@pytest.mark.parametrize("policy", [None, "#!/bin/sh\nexit 0\n"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_start_policy_of_the_owner_returns(tmp_path: Path, policy: str | None, fails: bool) -> None:
    answers = {"apt-get -q -y": "1 "} if fails else {}
    code, left = packages(tmp_path, answers, policy)
    assert (bool(code), left) == (fails, policy)


def test_a_policy_that_a_killed_stage_left_is_not_taken_for_the_owners(tmp_path: Path) -> None:
    code, left = packages(tmp_path, {}, "#!/bin/sh\n# trainyard\nexit 101\n")
    assert (code, left) == (0, None)


def names(root: Path, managed: str, finished: str) -> int:
    """Run the stage of names on a host with a cloud-init. Returns its exit code."""
    status = f'{{"v1": {{"init": {{"finished": {finished}}}}}}}'
    files = {"hosts": "", "known_hosts": "", "complete": "", "run/cloud-init/status.json": status}
    files |= {"etc/cloud/cloud.cfg.d/01.cfg": managed, "etc/hosts": "127.0.0.1 localhost\n"}
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    env = {"SCHEDULER": "none", "ROLE": "worker", "TEST_HANDOVER": str(root)}
    return Sandbox(root, (), {}).run("60-munge", **env).code


@pytest.mark.parametrize(
    ("managed", "finished", "code"),
    [
        ("manage_etc_hosts: true\n", "null", 1),
        ("manage_etc_hosts: localhost\n", "null", 1),
        ("manage_etc_hosts: true\n", "1795246299.7", 0),
        ("manage_etc_hosts: false\n", "null", 0),
        ("", "null", 0),
    ],
)
def test_names_are_written_after_those_of_cloud_init(tmp_path: Path, managed: str, finished: str, code: int) -> None:
    assert names(tmp_path, managed, finished) == code


@pytest.mark.parametrize(("borrowed", "code"), [("", 1), ("1", 0)])
def test_errors_of_the_owners_cloud_init_block_no_host(tmp_path: Path, borrowed: str, code: int) -> None:
    folder = tmp_path / "run/cloud-init"
    folder.mkdir(parents=True)
    (folder / ".instance-id").touch()
    (folder / "result.json").write_text('{"v1": {"errors": ["of the owner"]}}')
    (tmp_path / "shared").mkdir()
    env = {"ROLE": "head", "SCHEDULER": "none", "NODE": "a", "TEST_BORROWED": borrowed}
    assert Sandbox(tmp_path, (), {}).run("90-health", **env).code == code
