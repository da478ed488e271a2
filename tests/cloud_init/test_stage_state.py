"""The stage that stores Slurm's state on the head's data disk, run in a sandbox that records commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import Ran, Sandbox

HEAD = {"ROLE": "head", "SCHEDULER": "slurm", "SHARED_DISK": "/dev/disk/by-id/x"}
COMMANDS = (
    "systemctl",
    "blockdev",
    "mkfs.ext4",
    "mount",
    "modprobe",
    "mountpoint",
    "chown",
    "chmod",
    "install",
    "stat",
)
STATE = ("var/lib/slurm/slurmctld", "var/lib/mysql", "etc/trainyard/slurmdbd.password")


def state(root: Path, **env: str) -> Ran:
    """Run the stage. `install` is recorded but not run, so this function creates the folders."""
    for folder in ("srv/trainyard/state", "var/lib/slurm", "var/lib/trainyard", "etc/trainyard"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    answers = {"mountpoint": "1 ", "blockdev": f"0 {1 << 28}", "stat": "0 slurm"}
    return Sandbox(root, COMMANDS, answers).run("52-state", **env)


def fill(root: Path, text: str) -> None:
    for folder in STATE[:2]:
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "file").write_text(text)
    (root / STATE[2]).parent.mkdir(parents=True, exist_ok=True)
    (root / STATE[2]).write_text(text)


def read(root: Path) -> list[str]:
    return [(root / path / "file" if (root / path).is_dir() else root / path).read_text() for path in STATE]


@pytest.mark.parametrize("env", [{"ROLE": "worker"}, {"SCHEDULER": "none"}, {"SHARED_DISK": ""}])
def test_stage_does_nothing_on_other_nodes(tmp_path: Path, env: dict[str, str]) -> None:
    assert state(tmp_path, **{**HEAD, **env}).commands == []


def test_only_root_can_read_the_state_image(tmp_path: Path) -> None:
    fill(tmp_path, "old\n")
    ran = state(tmp_path, **HEAD)
    assert ran.code == 0, ran.errors
    image = tmp_path / "srv/trainyard/state.img"
    assert (image.stat().st_mode & 0o777, image.stat().st_size) == (0o600, 1 << 24)
    assert "mount -o loop,nosuid,nodev,noexec,noatime /srv/trainyard/state.img /srv/trainyard/state" in ran.commands


def test_services_are_stopped_before_the_state_is_moved(tmp_path: Path) -> None:
    fill(tmp_path, "old\n")
    ran = state(tmp_path, **HEAD)
    assert ran.code == 0, ran.errors
    assert ran.commands.index("systemctl stop slurmctld.service slurmdbd.service mariadb.service") > 0
    assert read(tmp_path) == ["old\n"] * 3
    assert all((tmp_path / path).is_symlink() for path in STATE)
    assert len([path for path in tmp_path.rglob("*.before-*") if path.parent.name != "x"]) == 3


def test_new_head_uses_the_state_of_the_previous_head(tmp_path: Path) -> None:
    fill(tmp_path, "old\n")
    assert state(tmp_path, **HEAD).code == 0
    for path in STATE:
        (tmp_path / path).unlink()
    fill(tmp_path / "fresh", "package\n")
    for path in STATE[:2]:
        (tmp_path / "fresh" / path).rename(tmp_path / path)
    assert state(tmp_path, **HEAD).code == 0
    assert read(tmp_path) == ["old\n"] * 3


def test_second_run_stops_no_services(tmp_path: Path) -> None:
    fill(tmp_path, "old\n")
    assert state(tmp_path, **HEAD).code == 0
    again = state(tmp_path, **HEAD)
    assert not [line for line in again.commands if line.startswith(("systemctl", "mkfs"))]


def test_state_that_is_a_foreign_link_is_replaced(tmp_path: Path) -> None:
    """Before the parent folder belonged to root, slurm could write such a link."""
    fill(tmp_path, "old\n")
    (tmp_path / "of-root").mkdir()
    (tmp_path / STATE[0] / "file").unlink()
    (tmp_path / STATE[0]).rmdir()
    (tmp_path / STATE[0]).symlink_to(tmp_path / "of-root")
    ran = state(tmp_path, **HEAD)
    assert ran.code == 0, ran.errors
    assert "install -d -m 0700 -o slurm -g slurm /srv/trainyard/state/slurmctld" in ran.commands
    assert (tmp_path / STATE[0]).readlink() == tmp_path / "srv/trainyard/state/slurmctld"
