"""The stages that find the shared files and the host list, each in a folder of its own with recorded commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.stage_sandbox import Sandbox

STORAGE = ("systemctl", "exportfs", "mkfs.ext4", "blkid", "blockdev", "dd", "systemd-escape", "ssh-keygen", "chown")
UNITS = {
    "systemctl is-active": "3 ",
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


def storage(tmp_path: Path, blkid: str, **more: str) -> Sandbox:
    home = tmp_path / "home" / "trainer"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("made before\n")
    (tmp_path / "shared" / "jobs").mkdir(parents=True)
    (tmp_path / "shared").chmod(0o1777)
    return Sandbox(tmp_path, STORAGE, {**UNITS, "blockdev": "0 1099511627776", "blkid": blkid, **more})


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
    assert "fail blkid cannot judge the disk" in ran.said[-1]


@pytest.mark.parametrize("end", ["dd if=/dev/disk/by-id/x of=/dev/null bs=1M count=1 s", "dd"])
def test_a_disk_with_read_errors_is_never_formatted(tmp_path: Path, end: str) -> None:
    # blkid exits with 2 for an ext4 whose every read fails. `end`: the last MiB, then both.
    ran = storage(tmp_path, "2 ", **{end: "1 Input/output error"}).run("50-storage", **ON_DISK)
    assert ran.code == 1
    assert "cannot be read: it is not formatted" in ran.said[-1]
    assert not [line for line in ran.commands if line.startswith("mkfs")]


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


@pytest.mark.parametrize(("was", "kept"), [("yes", True), ("no", False)])
def test_an_nfs_server_that_was_running_keeps_its_settings(tmp_path: Path, was: str, kept: bool) -> None:
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    (ledger / "notes").write_text(f"unit:nfs-server.service\tenabled={was} active={was}\n")
    env = {**ON_DISK, "SHARED_DISK": "", "TEST_BORROWED": str(ledger)}
    ran = storage(tmp_path, "0 ").run("50-storage", **env)
    assert ran.code == 0, ran.errors
    assert (tmp_path / "etc/nfs.conf.d/trainyard.conf").exists() != kept


def test_a_folder_of_another_disk_becomes_shared(tmp_path: Path) -> None:
    folder = tmp_path / "srv" / "raid" / "trainyard"
    folder.mkdir(parents=True)
    env = {**ON_DISK, "SHARED_DISK": "", "SHARED_FOLDER": str(folder), "TEST_BORROWED": str(tmp_path)}
    ran = storage(tmp_path, "0 ").run("50-storage", **env)
    assert ran.code == 0, ran.errors
    assert "What=/srv/raid/trainyard\nWhere=/shared\nType=none\nOptions=bind\n" in unit(tmp_path, "shared.mount")
    assert ran.commands.index("systemctl start shared.mount") < ran.commands.index("systemctl start nfs-server.service")


def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    env = {**ON_DISK, "SHARED_DISK": "", "SHARED_FOLDER": f"{tmp_path}/srv/gone", "TEST_BORROWED": str(tmp_path)}
    ran = storage(tmp_path, "0 ").run("50-storage", **env)
    assert ran.code == 1
    assert not (tmp_path / "srv/gone").exists()


def test_a_folder_that_is_mounted_is_not_mounted_again(tmp_path: Path) -> None:
    folder = tmp_path / "srv" / "raid" / "trainyard"
    folder.mkdir(parents=True)
    (tmp_path / "home/trainer/.ssh").mkdir(parents=True)
    (tmp_path / "home/trainer/.ssh/id_ed25519").touch()
    (tmp_path / "shared/jobs").mkdir(parents=True)
    env = {**ON_DISK, "SHARED_DISK": "", "SHARED_FOLDER": str(folder), "TEST_BORROWED": str(tmp_path)}
    ran = Sandbox(tmp_path, STORAGE, {**UNITS, "systemctl is-active": "0 "}).run("50-storage", **env)
    assert ran.code == 0, ran.errors
    assert "systemctl start shared.mount" not in ran.commands
