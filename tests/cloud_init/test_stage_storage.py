"""The stage for shared storage, in a sandbox with recorded commands."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import STAGES, Sandbox

STORAGE = (
    *("systemctl", "exportfs", "mount", "mkfs.ext4", "resize2fs", "blkid", "blockdev", "dd", "systemd-escape"),
    *("ssh-keygen", "chown", "stat", "fallocate", "mountpoint"),
)
UNITS = {
    "systemd-escape --path --suffix=mount /home": "0 home.mount",
    "systemd-escape --path --suffix=mount /shared": "0 shared.mount",
    "systemd-escape --path --suffix=mount /srv/raid": "0 srv-raid-trainyard.mount",
    "systemd-escape --path --suffix=mount /srv": "0 srv-trainyard.mount",
    "stat -c %F %U %A /shared/jobs": "0 directory trainer drwxr-xr-x",
}
ON_DISK = {
    "ROLE": "head",
    "NETWORK": "10.77.0.0/20",
    "CLUSTER": "c",
    "SHARED_DISK": "/dev/disk/by-id/x",
    "SHARED_SOURCE": "",
    "SHARED_NFS": "4.2",
}


def storage(tmp_path: Path, blkid: str, answer: str = "new", **more: str) -> Sandbox:
    if answer:
        (tmp_path / "var/lib/trainyard").mkdir(parents=True)
        (tmp_path / "var/lib/trainyard/data-disk").write_text(f"{answer}\n")
    home = tmp_path / "home" / "trainer"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_ed25519").write_text("made before\n")
    (tmp_path / "shared" / "jobs").mkdir(parents=True)
    (tmp_path / "shared").chmod(0o1777)
    return Sandbox(tmp_path, STORAGE, {**UNITS, "blockdev": "0 1099511627776", "blkid": blkid, **more})


def unit(tmp_path: Path, name: str) -> str:
    return (tmp_path / "etc" / "systemd" / "system" / name).read_text().replace(str(tmp_path), "")


def test_empty_new_disk_is_formatted_and_receives_the_files(tmp_path: Path) -> None:
    ran = storage(tmp_path, "2 ").run("50-storage", **ON_DISK)
    assert ran.code == 0, ran.errors
    assert [line for line in ran.commands if line.startswith("mkfs")] == [
        "mkfs.ext4 -q -m 0 -L trainyard /dev/disk/by-id/x"
    ]
    held = tmp_path / "srv" / "trainyard"
    assert (held / "home" / "trainer" / ".ssh" / "id_ed25519").read_text() == "made before\n"
    assert (held / "shared").stat().st_mode & 0o7777 == 0o1777
    assert "What=/srv/trainyard/home\nWhere=/home\nType=none\nOptions=bind,nosuid,nodev\n" in unit(
        tmp_path, "home.mount"
    )
    assert not (tmp_path / "var/lib/trainyard/data-disk").exists(), "the permission must be valid only once"
    assert "systemctl start home.mount" in ran.commands
    assert "systemctl start nfs-server.service" in ran.commands


def test_disk_with_files_is_not_formatted(tmp_path: Path) -> None:
    old = tmp_path / "srv" / "trainyard" / "home"
    old.mkdir(parents=True)
    (old / "theirs").write_text("of the old head\n")
    (tmp_path / "srv" / "trainyard" / "shared").mkdir()
    ran = storage(tmp_path, "0 TYPE=ext4").run("50-storage", **ON_DISK)
    assert ran.code == 0, ran.errors
    assert not [line for line in ran.commands if line.startswith("mkfs")]
    assert sorted(path.name for path in old.iterdir()) == ["theirs"]


def test_permission_does_not_outlive_a_disk_with_files(tmp_path: Path) -> None:
    for folder in ("home", "shared"):
        (tmp_path / "srv/trainyard" / folder).mkdir(parents=True)
    ran = storage(tmp_path, "0 TYPE=ext4", "new").run("50-storage", **ON_DISK)
    assert ran.code == 0, ran.errors
    assert not (tmp_path / "var/lib/trainyard/data-disk").exists()


def test_disk_that_is_empty_only_once_is_not_formatted(tmp_path: Path) -> None:
    for folder in ("home", "shared"):
        (tmp_path / "srv/trainyard" / folder).mkdir(parents=True)
    sandbox = storage(tmp_path, "2 ")
    sandbox.programs["blkid"] = f"[[ -e {tmp_path}/asked ]] || {{ touch {tmp_path}/asked; exit 2; }}"
    ran = sandbox.run("50-storage", **ON_DISK)
    assert ran.code == 0, ran.errors
    assert not [line for line in ran.commands if line.startswith("mkfs")]


def test_disk_that_blkid_cannot_identify_is_not_formatted(tmp_path: Path) -> None:
    ran = storage(tmp_path, "4 ").run("50-storage", **ON_DISK)
    assert ran.code == 1
    assert not [line for line in ran.commands if line.startswith("mkfs")]
    assert "fail blkid cannot identify the content of the disk" in ran.output[-1]


@pytest.mark.parametrize("end", ["dd if=/dev/disk/by-id/x of=/dev/null bs=1M count=1 s", "dd"])
def test_disk_with_read_errors_is_not_formatted(tmp_path: Path, end: str) -> None:
    # blkid exits with 2 if every read from an ext4 disk fails. `end` is the dd command that fails: the read of the last
    # MiB, or every read.
    ran = storage(tmp_path, "2 ", **{end: "1 Input/output error"}).run("50-storage", **ON_DISK)
    assert ran.code == 1
    assert "cannot be read, so it is not formatted" in ran.output[-1]
    assert not [line for line in ran.commands if line.startswith("mkfs")]


@pytest.mark.parametrize(("answer", "text"), [("known", "only a new disk is formatted"), ("", "would wait for")])
def test_empty_disk_that_is_not_new_is_not_formatted(tmp_path: Path, answer: str, text: str) -> None:
    ran = storage(tmp_path, "2 ", answer).run("50-storage", **ON_DISK)
    assert ran.code == 1
    assert text in ran.output[-1]
    assert not [line for line in ran.commands if line.startswith("mkfs")]


def test_file_system_grows_with_its_disk(tmp_path: Path) -> None:
    (tmp_path / "srv/trainyard/home").mkdir(parents=True)
    (tmp_path / "srv/trainyard/shared").mkdir()
    ran = storage(tmp_path, "0 TYPE=ext4").run("50-storage", **ON_DISK)
    start, grow = (ran.commands.index(f"{line}") for line in (
        "systemctl start srv-trainyard.mount", "resize2fs /dev/disk/by-id/x"
    ))  # fmt: skip
    assert start < grow


HOSTS = {
    "head with a disk": ON_DISK,
    "head of the owner": {**ON_DISK, "SHARED_DISK": "", "TEST_LEDGER": "1"},
    "worker": {**ON_DISK, "ROLE": "worker", "SHARED_DISK": "", "HEAD_IP": "10.0.0.4"},
    "storage service": {**ON_DISK, "SHARED_DISK": "", "SHARED_SOURCE": "10.9.8.2:/vol"},
}


@pytest.mark.parametrize("host", HOSTS)
def test_all_mounts_have_nosuid_and_nodev(tmp_path: Path, host: str) -> None:
    for folder in ("home", "shared"):
        (tmp_path / "srv/trainyard" / folder).mkdir(parents=True)
    ran = storage(tmp_path, "0 ").run("50-storage", **HOSTS[host])
    assert ran.code == 0, ran.errors
    units = [file.read_text() for file in (tmp_path / "etc/systemd/system").glob("*.mount")]
    options = [line for text in units for line in text.splitlines() if line.startswith("Options=")]
    assert len(options) == len(units) >= 2
    assert all(line.endswith(",nosuid,nodev") for line in options), options


def test_bind_mount_can_have_its_own_flags() -> None:
    # mount(8) needs two system calls for this. The stage uses such mounts for /home and /shared of the head.
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    script = """
      mount -t tmpfs none /mnt && mkdir /mnt/a /mnt/b
      mount --bind -o nosuid,nodev /mnt/a /mnt/a
      mount --bind /mnt/b /mnt/b && mount -o remount,bind,nosuid,nodev /mnt/b
      grep -c '/mnt/[ab] rw,nosuid,nodev' /proc/self/mountinfo
      grep -c '/ /mnt rw,relatime' /proc/self/mountinfo"""
    done = subprocess.run(["unshare", "-m", "bash", "-ec", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["2", "1"]), done.stderr


def test_worker_mounts_an_external_server_without_changes(tmp_path: Path) -> None:
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


def test_existing_host_mounts_only_the_job_users_home(tmp_path: Path) -> None:
    env = {**ON_DISK, "ROLE": "worker", "SHARED_DISK": "", "HEAD_IP": "10.0.0.4", "TEST_LEDGER": "1"}
    ran = storage(tmp_path, "0 ").run("50-storage", **env)
    assert ran.code == 0, ran.errors
    # The unit names contain the mount point, which is below the sandbox folder.
    units = sorted((tmp_path / "etc" / "systemd" / "system").glob("*.mount"))
    assert [file.name.endswith(("home-trainer.mount", "shared.mount")) for file in units] == [True, True]
    assert f"What=10.0.0.4:{tmp_path}/home/trainer\n" in units[0].read_text()
    [started] = [line for line in ran.commands if line.startswith("systemctl start")]
    assert re.fullmatch(r"systemctl start \S*home-trainer\.automount \S*shared\.automount", started)


@pytest.mark.parametrize(("was", "kept"), [("yes", True), ("no", False)])
def test_active_nfs_server_keeps_its_settings(tmp_path: Path, was: str, kept: bool) -> None:
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    (ledger / "notes").write_text(f"unit:nfs-server.service\tenabled={was} active={was}\n")
    env = {**ON_DISK, "SHARED_DISK": "", "TEST_LEDGER": str(ledger)}
    ran = storage(tmp_path, "0 ").run("50-storage", **env)
    assert ran.code == 0, ran.errors
    assert (tmp_path / "etc/nfs.conf.d/trainyard.conf").exists() != kept


def test_configured_folder_is_mounted_at_shared(tmp_path: Path) -> None:
    folder = tmp_path / "srv" / "raid" / "trainyard"
    folder.mkdir(parents=True)
    env = {**ON_DISK, "SHARED_DISK": "", "SHARED_FOLDER": str(folder), "TEST_LEDGER": str(tmp_path)}
    ran = storage(tmp_path, "0 ").run("50-storage", **env)
    assert ran.code == 0, ran.errors
    assert "What=/srv/raid/trainyard\nWhere=/shared\nType=none\nOptions=bind,nosuid,nodev\n" in unit(
        tmp_path, "shared.mount"
    )
    # The flags must also apply to files that are opened under the folder's own path.
    options = "What=/srv/raid/trainyard\nWhere=/srv/raid/trainyard\nType=none\nOptions=bind,nosuid,nodev\n"
    assert options in unit(tmp_path, "srv-raid-trainyard.mount")
    starts = [line for line in ran.commands if line.startswith("systemctl start") and line.endswith(".mount")]
    assert starts[:2] == ["systemctl start srv-raid-trainyard.mount", "systemctl start shared.mount"]
    assert ran.commands.index("systemctl start shared.mount") < ran.commands.index("systemctl start nfs-server.service")


def test_local_folders_are_mounted_at_boot(tmp_path: Path) -> None:
    env = {**ON_DISK, "SHARED_DISK": "", "TEST_LEDGER": str(tmp_path)}
    ran = storage(tmp_path, "0 ").run("50-storage", **env)
    assert ran.code == 0, ran.errors
    wants = tmp_path / "etc/systemd/system/local-fs.target.wants"
    assert sorted(link.name for link in wants.iterdir()) == ["home.mount", "shared.mount"]
    # A dependency on the network would be a cycle, because the network is configured after the local file systems.
    assert not [link.name for link in wants.iterdir() if "network" in link.read_text()]


def test_root_changes_no_owner_in_the_shared_folder() -> None:
    # A user can replace a folder in /shared with a link while root changes the owner of the folder.
    assert "-o trainer" not in (STAGES / "50-storage").read_text()


def test_missing_shared_folder_is_not_created(tmp_path: Path) -> None:
    env = {**ON_DISK, "SHARED_DISK": "", "SHARED_FOLDER": f"{tmp_path}/srv/gone", "TEST_LEDGER": str(tmp_path)}
    ran = storage(tmp_path, "0 ").run("50-storage", **env)
    assert ran.code == 1
    assert not (tmp_path / "srv/gone").exists()


def test_mounted_folder_is_not_mounted_again(tmp_path: Path) -> None:
    folder = tmp_path / "srv" / "raid" / "trainyard"
    folder.mkdir(parents=True)
    (tmp_path / "home/trainer/.ssh").mkdir(parents=True)
    (tmp_path / "home/trainer/.ssh/id_ed25519").write_text("made before\n")
    (tmp_path / "shared/jobs").mkdir(parents=True)
    env = {**ON_DISK, "SHARED_DISK": "", "SHARED_FOLDER": str(folder), "TEST_LEDGER": str(tmp_path)}
    mounts = tmp_path / "proc" / "mounts"
    mounts.parent.mkdir()
    mounts.write_text(f"/dev/sda1 {tmp_path}/shared ext4 rw,nosuid,nodev 0 0\n")
    ran = Sandbox(tmp_path, STORAGE, UNITS).run("50-storage", **env)
    assert ran.code == 0, ran.errors
    starts = [line for line in ran.commands if line.startswith("systemctl start")]
    assert "systemctl start shared.mount" not in starts
    assert "systemctl start srv-raid-trainyard.mount" in starts


@pytest.mark.parametrize(
    "found",
    ["directory ann drwxr-xr-x", "symbolic link trainer lrwxrwxrwx", "directory trainer drwxrwxr-x",
     "directory trainer drwxr-xrwx", "directory root drwxr-xr-x"],
)  # fmt: skip
def test_jobs_folder_of_another_user_is_refused(tmp_path: Path, found: str) -> None:
    sandbox = storage(tmp_path, "2 ")
    sandbox.answers["stat -c %F %U %A /shared/jobs"] = f"0 {found}"
    ran = sandbox.run("50-storage", **ON_DISK)
    assert ran.code == 1
    assert f"but it is: {found}. Fix: sudo mv" in ran.output[-1]
