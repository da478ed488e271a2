"""Existing hosts: start policies, /etc/hosts and cloud-init errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import Sandbox

APT = ("apt-get", "systemctl")
BUILT = {"ROLE": "worker", "GPU_DEVICE": "/dev/nvidia", "SCHEDULER": "none", "OS": "debian-12"}
POLICY = "usr/sbin/policy-rc.d"


def packages(root: Path, answers: dict[str, str], policy: str | None) -> tuple[int, str | None]:
    """Run 20-apt. Return the exit code and the content of policy-rc.d afterwards."""
    (root / "usr/sbin").mkdir(parents=True, exist_ok=True)
    (root / "run/trainyard").mkdir(parents=True, exist_ok=True)
    file = root / POLICY
    if policy is not None:
        file.write_text(policy)
    ran = Sandbox(root, APT, answers).run("20-apt", **BUILT)
    return ran.code, file.read_text() if file.exists() else None


@pytest.mark.parametrize("policy", [None, "#!/bin/sh\nexit 0\n"])
@pytest.mark.parametrize("fails", [False, True])
def test_existing_policy_rc_d_is_restored(tmp_path: Path, policy: str | None, fails: bool) -> None:
    answers = {"apt-get -q -y": "1 "} if fails else {}
    code, left = packages(tmp_path, answers, policy)
    assert (bool(code), left) == (fails, policy)


def test_policy_rc_d_of_a_killed_stage_is_removed(tmp_path: Path) -> None:
    code, left = packages(tmp_path, {}, "#!/bin/sh\n# trainyard\nexit 101\n")
    assert (code, left) == (0, None)


def names(root: Path, managed: str, finished: str) -> int:
    """Run 60-munge on a host with cloud-init. Return the exit code."""
    status = f'{{"v1": {{"init": {{"finished": {finished}}}}}}}'
    files = {"hosts": "", "known_hosts": "", "complete": "", "run/cloud-init/status.json": status}
    files |= {"etc/cloud/cloud.cfg.d/01.cfg": managed, "etc/hosts": "127.0.0.1 localhost\n", "run/trainyard/x": ""}
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
def test_etc_hosts_is_written_after_cloud_init(tmp_path: Path, managed: str, finished: str, code: int) -> None:
    assert names(tmp_path, managed, finished) == code


@pytest.mark.parametrize(("existing", "code"), [("", 1), ("1", 0)])
def test_cloud_init_errors_are_ignored_on_existing_hosts(tmp_path: Path, existing: str, code: int) -> None:
    folder = tmp_path / "run/cloud-init"
    folder.mkdir(parents=True)
    (folder / ".instance-id").touch()
    (folder / "result.json").write_text('{"v1": {"errors": ["of the owner"]}}')
    (tmp_path / "shared").mkdir()
    env = {"ROLE": "head", "SCHEDULER": "none", "NODE": "a", "TEST_LEDGER": existing}
    assert Sandbox(tmp_path, (), {}).run("90-health", **env).code == code
