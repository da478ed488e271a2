"""The stages 43-scratch, 50-storage, 52-state, 65-exports and 75-hostfile, with recorded commands. mdadm is a fake."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import Ran, Sandbox

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
NO_DISK = ON_DISK | {"SHARED_DISK": ""}
MARK = "var/lib/trainyard/data-disk"


def storage(tmp_path: Path, blkid: str = "0 ", **more: str) -> Sandbox:
    """Return a node with a disk that the provisioner has declared as new."""
    node = Sandbox(tmp_path, STORAGE, {**UNITS, "blockdev": "0 1099511627776", "blkid": blkid, **more})
    node.write({MARK: "new\n", "home/trainer/.ssh/id_ed25519": "made before\n"})
    (tmp_path / "shared" / "jobs").mkdir(parents=True)
    (tmp_path / "shared").chmod(0o1777)
    return node


def in_use(tmp_path: Path) -> Path:
    """Create the folders on the data disk of an earlier head. Return the disk's mount point."""
    for folder in ("home", "shared"):
        (tmp_path / "srv/trainyard" / folder).mkdir(parents=True)
    return tmp_path / "srv/trainyard"


def unit(tmp_path: Path, name: str) -> str:
    return (tmp_path / "etc/systemd/system" / name).read_text().replace(str(tmp_path), "")


def test_empty_new_disk_is_formatted_and_receives_the_files(tmp_path: Path) -> None:
    ran = storage(tmp_path, "2 ").run("50-storage", **ON_DISK).passed()
    assert ran.calls("mkfs") == ["mkfs.ext4 -q -m 0 -L trainyard /dev/disk/by-id/x"]
    held = tmp_path / "srv" / "trainyard"
    assert (held / "home/trainer/.ssh/id_ed25519").read_text() == "made before\n"
    assert (held / "shared").stat().st_mode & 0o7777 == 0o1777
    bound = "What=/srv/trainyard/home\nWhere=/home\nType=none\nOptions=bind,nosuid,nodev\n"
    assert bound in unit(tmp_path, "home.mount")
    assert not (tmp_path / MARK).exists(), "the permission must be valid only once"
    assert {"systemctl start home.mount", "systemctl start nfs-server.service"} <= set(ran.commands)


def test_disk_with_files_grows_and_is_not_formatted(tmp_path: Path) -> None:
    held = in_use(tmp_path)
    (held / "home/theirs").write_text("of the old head\n")
    ran = storage(tmp_path, "0 TYPE=ext4").run("50-storage", **ON_DISK).passed()
    assert ran.calls("mkfs") == []
    assert [path.name for path in (held / "home").iterdir()] == ["theirs"]
    assert not (tmp_path / MARK).exists(), "the permission must not outlive the files"
    start, grow = "systemctl start srv-trainyard.mount", "resize2fs /dev/disk/by-id/x"
    assert ran.commands.index(start) < ran.commands.index(grow)


def test_detached_disk_stops_the_server_and_hides_nothing(tmp_path: Path) -> None:
    """If the folders were exported or writable without the disk, new files would be on the root disk."""
    held = in_use(tmp_path)
    ran = storage(tmp_path, "0 TYPE=ext4").run("50-storage", **ON_DISK | {"SHARED_DISK": "/dev/disk/by-id/google-a"})
    ran.passed()
    bound = "Before=nfs-server.service\nPropagatesStopTo=nfs-server.service\n[Mount]\nWhat=/dev/disk/by-id/google-a\n"
    assert bound in unit(tmp_path, "srv-trainyard.mount")
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "shared", tmp_path / "home", held / "shared")]
    assert modes == [0o700, 0o700, 0o755]


def test_disk_that_was_attached_again_needs_a_reboot(tmp_path: Path) -> None:
    in_use(tmp_path)
    numbers = {"mountpoint -d": "0 8:32", "mountpoint -x": "0 8:48"}
    ran = storage(tmp_path, "0 TYPE=ext4", **numbers).run("50-storage", **ON_DISK)
    assert "was detached while it was in use, and attached again: run on the head: sudo reboot" in ran.failure()
    assert ran.calls("resize2fs") == []


def test_disk_that_is_empty_only_once_is_not_formatted(tmp_path: Path) -> None:
    in_use(tmp_path)
    node = storage(tmp_path, "2 ")
    node.programs["blkid"] = f"[[ -e {tmp_path}/asked ]] || {{ touch {tmp_path}/asked; exit 2; }}"
    assert node.run("50-storage", **ON_DISK).passed().calls("mkfs") == []


LAST_READ = "dd if=/dev/disk/by-id/x of=/dev/null bs=1M count=1 s"
"""The read of the last MiB. blkid exits with 2 if every read from an ext4 disk fails."""


@pytest.mark.parametrize(
    ("blkid", "mark", "failing", "words"),
    [
        ("4 ", "new", "", "fail blkid cannot identify the content of the disk"),
        ("2 ", "new", LAST_READ, "cannot be read, so it is not formatted"),
        ("2 ", "new", "dd", "cannot be read, so it is not formatted"),
        ("2 ", "known", "", "only a new disk is formatted"),
        ("2 ", "", "", "would wait for"),
    ],
)
def test_unreadable_or_known_disk_is_not_formatted(
    tmp_path: Path, blkid: str, mark: str, failing: str, words: str
) -> None:
    node = storage(tmp_path, blkid, **({failing: "1 Input/output error"} if failing else {}))
    (tmp_path / MARK).write_text(f"{mark}\n")
    if not mark:
        (tmp_path / MARK).unlink()
    ran = node.run("50-storage", **ON_DISK)
    assert words in ran.failure()
    assert ran.calls("mkfs") == []


HOSTS = {
    "head with a disk": ON_DISK,
    "head of the owner": {**NO_DISK, "TEST_LEDGER": "1"},
    "worker": {**NO_DISK, "ROLE": "worker", "HEAD_IP": "10.0.0.4"},
    "storage service": {**NO_DISK, "SHARED_SOURCE": "10.9.8.2:/vol"},
}


@pytest.mark.parametrize("host", HOSTS)
def test_all_mounts_have_nosuid_and_nodev(tmp_path: Path, host: str) -> None:
    in_use(tmp_path)
    storage(tmp_path).run("50-storage", **HOSTS[host]).passed()
    units = [file.read_text() for file in (tmp_path / "etc/systemd/system").glob("*.mount")]
    options = [line for text in units for line in text.splitlines() if line.startswith("Options=")]
    assert len(options) == len(units) >= 2
    assert all(line.endswith(",nosuid,nodev") for line in options), options


def test_worker_mounts_an_external_server_without_changes(tmp_path: Path) -> None:
    held = in_use(tmp_path)
    env = NO_DISK | {"ROLE": "worker", "SHARED_SOURCE": "10.9.8.2:/vol", "SHARED_NFS": "4.1"}
    ran = storage(tmp_path).run("50-storage", **env).passed()
    mount = unit(tmp_path, "srv-trainyard.mount")
    assert "What=10.9.8.2:/vol\nWhere=/srv/trainyard\nType=nfs\nOptions=vers=4.1,hard," in mount
    assert sorted(path.name for path in held.iterdir()) == ["home", "shared"]
    mounts = ("srv-trainyard", "home", "shared")
    assert ran.calls("systemctl start") == [f"systemctl start {name}.mount" for name in mounts]


def test_existing_host_mounts_only_the_job_users_home(tmp_path: Path) -> None:
    ran = storage(tmp_path).run("50-storage", **HOSTS["worker"], TEST_LEDGER="1").passed()
    # The unit names contain the mount point, which is below the sandbox folder.
    units = sorted((tmp_path / "etc/systemd/system").glob("*.mount"))
    assert [file.name.endswith(("home-trainer.mount", "shared.mount")) for file in units] == [True, True]
    assert f"What=10.0.0.4:{tmp_path}/home/trainer\n" in units[0].read_text()
    loading, started = ran.calls("systemctl start")
    assert loading == "systemctl start --no-block modprobe@nfsv4.service"
    assert re.fullmatch(r"systemctl start \S*home-trainer\.automount \S*shared\.automount", started)


@pytest.mark.parametrize(("was", "kept"), [("yes", True), ("no", False)])
def test_active_nfs_server_keeps_its_settings(tmp_path: Path, was: str, kept: bool) -> None:
    node = storage(tmp_path)
    node.write({"ledger/notes": f"unit:nfs-server.service\tenabled={was} active={was}\n"})
    node.run("50-storage", **NO_DISK, TEST_LEDGER=str(tmp_path / "ledger")).passed()
    assert (tmp_path / "etc/nfs.conf.d/trainyard.conf").exists() != kept


@pytest.mark.parametrize("mounted", [False, True])
def test_configured_folder_is_mounted_at_shared(tmp_path: Path, mounted: bool) -> None:
    folder = tmp_path / "srv/raid/trainyard"
    folder.mkdir(parents=True)
    node = storage(tmp_path)
    if mounted:
        node.write({"proc/mounts": f"/dev/sda1 {tmp_path}/shared ext4 rw,nosuid,nodev 0 0\n"})
    ran = node.run("50-storage", **NO_DISK, SHARED_FOLDER=str(folder), TEST_LEDGER=str(tmp_path)).passed()
    units = ["srv-raid-trainyard.mount", *(["shared.mount"] * (not mounted)), "home.mount", "nfs-server.service"]
    assert ran.calls("systemctl start") == [f"systemctl start {name}" for name in units]
    # The flags must also apply to files that are opened under the folder's own path.
    for name, where in (("shared.mount", "/shared"), ("srv-raid-trainyard.mount", "/srv/raid/trainyard")):
        options = f"What=/srv/raid/trainyard\nWhere={where}\nType=none\nOptions=bind,nosuid,nodev\n"
        assert options in unit(tmp_path, name)


def test_local_folders_are_mounted_at_boot(tmp_path: Path) -> None:
    storage(tmp_path).run("50-storage", **NO_DISK, TEST_LEDGER=str(tmp_path)).passed()
    wants = tmp_path / "etc/systemd/system/local-fs.target.wants"
    assert sorted(link.name for link in wants.iterdir()) == ["home.mount", "shared.mount"]
    # A dependency on the network would be a cycle, because the network is configured after the local file systems.
    assert not [link.name for link in wants.iterdir() if "network" in link.read_text()]


def test_missing_shared_folder_is_not_created(tmp_path: Path) -> None:
    env = {**NO_DISK, "SHARED_FOLDER": f"{tmp_path}/srv/gone", "TEST_LEDGER": str(tmp_path)}
    storage(tmp_path).run("50-storage", **env).failure()
    assert not (tmp_path / "srv/gone").exists()


@pytest.mark.parametrize(
    "found",
    ["directory ann drwxr-xr-x", "symbolic link trainer lrwxrwxrwx", "directory trainer drwxrwxr-x",
     "directory trainer drwxr-xrwx", "directory root drwxr-xr-x"],
)  # fmt: skip
def test_jobs_folder_of_another_user_is_refused(tmp_path: Path, found: str) -> None:
    node = storage(tmp_path, "2 ", **{"stat -c %F %U %A /shared/jobs": f"0 {found}"})
    assert f"but it is: {found}. Fix: sudo mv" in node.run("50-storage", **ON_DISK).failure()


NODES = "c-gpu-0 10.77.2.4 gpu 8 any\nc-gpu-1 10.77.2.5 gpu 8 any\n"


@pytest.mark.parametrize("existing", ["", "1"])
def test_exports_list_only_hosts_of_the_hand_over(tmp_path: Path, existing: str) -> None:
    node = Sandbox(tmp_path, ("exportfs",))
    for count in (2, 1, 0):
        node.write({"nodes": "".join(NODES.splitlines(keepends=True)[:count])})
        ran = node.run("65-exports", **ON_DISK, TEST_HANDOVER=str(tmp_path), TEST_LEDGER=existing).passed()
        assert ran.commands == ["exportfs -ra"]
        lines = (node.read("etc/exports.d/trainyard.exports") or "").replace(str(tmp_path), "").splitlines()
        folders = ("/home/trainer" if existing else "/home", "/shared")
        hosts = [f"{folder} 10.77.2.{host}/32" for folder in folders for host in (4, 5)[:count]]
        assert [line.partition("(")[0] for line in lines] == hosts
        # Without subtree_check, forged file handles could open other files in an existing host's file system.
        assert all((",subtree_check," in line) is bool(existing) for line in lines)


@pytest.mark.parametrize(
    ("stage", "env"),
    [
        ("33-cuda", {"GPUS": "0"}),
        ("33-cuda", {"GPU_DEVICE": "/dev/fakegpu"}),
        ("33-cuda", {"DRIVER_FROM": "none"}),
        ("35-fabric", {"RDMA": "0"}),
        ("43-scratch", {}),
        ("45-transport", {"FABRIC": "ethernet"}),
        ("52-state", {"ROLE": "worker"}),
        ("52-state", {"SCHEDULER": "none"}),
        ("52-state", {"SHARED_DISK": ""}),
        ("55-accounting", {"ROLE": "worker"}),
        ("55-accounting", {"SCHEDULER": "none"}),
        ("65-exports", {"ROLE": "worker"}),
        ("65-exports", {"SHARED_SOURCE": "10.9.8.2:/vol"}),
    ],
)
def test_stage_does_nothing_on_other_nodes(tmp_path: Path, stage: str, env: dict[str, str]) -> None:
    node = Sandbox(tmp_path, ("systemctl", "mount", "modprobe", "mknod", "install", "exportfs", "mdadm", "docker"))
    node.write({"etc/trainyard/fabric.env": "NCCL_IB_DISABLE=1\n"})
    facts = {"SCHEDULER": "slurm", "GPUS": "1", "GPU_DEVICE": "/dev/nvidia", "TEST_HANDOVER": str(tmp_path)}
    assert node.run(stage, **{**ON_DISK, **facts, **env}).passed().commands == []
    assert [path.name for path in (tmp_path / "etc").rglob("*")] == ["trainyard", "fabric.env"]


@pytest.mark.parametrize(
    ("scheduler", "was", "left"),
    [
        ("none", "copy", "a slots=8\n"),
        # With Slurm, the owner's file of an existing head is restored.
        ("slurm", "copy", "theirs\n"),
        ("slurm", "absent", None),
        ("slurm", "", "here\n"),
    ],
)
def test_only_a_head_without_scheduler_has_a_hostfile(
    tmp_path: Path, scheduler: str, was: str, left: str | None
) -> None:
    node, notes = Sandbox(tmp_path), f"{tmp_path}/job/hostfile\t{was}\n" if was else ""
    node.write({"hostfile": "a slots=8\n", "job/hostfile": "here\n"})
    node.write({"ledger/copies/job/hostfile": "theirs\n", "ledger/notes": notes})
    env = {"ROLE": "head", "TEST_LEDGER": str(tmp_path / "ledger"), "TEST_HANDOVER": str(tmp_path)}
    node.run("75-hostfile", SCHEDULER=scheduler, **env).passed()
    assert node.read("job/hostfile") == left


HEAD = {"ROLE": "head", "SCHEDULER": "slurm", "SHARED_DISK": "/dev/disk/by-id/x"}
STATE = ("var/lib/slurm/slurmctld", "var/lib/mysql")
FILES = (f"{STATE[0]}/file", f"{STATE[1]}/file")


class Head(Sandbox):
    """A head with Slurm's state. `install` is recorded but not run, so the folders exist."""

    def __init__(self, root: Path) -> None:
        recorded = ("systemctl", "blockdev", "mkfs.ext4", "mount", "modprobe", "mountpoint", "chown", "chmod", "sync")
        answers = {"mountpoint": "1 ", "blockdev": f"0 {1 << 28}", "stat": "0 slurm"}
        super().__init__(root, (*recorded, "install", "stat"), answers)
        for folder in ("srv/trainyard/state", "var/lib/trainyard/repair"):
            (root / folder).mkdir(parents=True)
        self.write(dict.fromkeys(FILES, "old\n"))

    @property
    def state(self) -> list[str | None]:
        return [self.read(path) for path in FILES]


def test_state_is_moved_once_to_an_image_of_root(tmp_path: Path) -> None:
    head = Head(tmp_path)
    ran = head.run("52-state", **HEAD).passed()
    image = tmp_path / "srv/trainyard/state.img"
    assert (image.stat().st_mode & 0o777, image.stat().st_size) == (0o600, 1 << 24)
    assert "mount -o loop,nosuid,nodev,noexec,noatime /srv/trainyard/state.img /srv/trainyard/state" in ran.commands
    assert "systemctl stop slurmctld.service slurmdbd.service mariadb.service" in ran.commands
    # After a crash, a copy with its final name is complete.
    copies = [f"/srv/trainyard/state/{name}.new" for name in ("slurmctld", "mysql", "repair")]
    assert ran.calls("sync") == [f"sync -f {copy}" for copy in copies]
    assert head.state == ["old\n"] * 2
    assert all((tmp_path / path).is_symlink() for path in STATE)
    assert len(list(tmp_path.rglob("*.before-*"))) == 2
    head.answers["mountpoint"] = "0 "
    assert head.run("52-state", **HEAD).passed().calls("systemctl", "mkfs", "mount ") == []


def test_records_of_costs_survive_a_new_head(tmp_path: Path) -> None:
    head, record = Head(tmp_path), "var/lib/trainyard/repair/machines"
    head.write({record: "1764000000 head on\n"})
    (tmp_path / "var/lib/trainyard/repair").chmod(0o755)
    mount = "mount --bind /srv/trainyard/state/repair /var/lib/trainyard/repair"
    ran = head.run("52-state", **HEAD).passed()
    stop, copied = "systemctl stop trainyard-repair.service", "sync -f /srv/trainyard/state/repair.new"
    assert [command for command in ran.commands if command in {stop, copied, mount}] == [stop, copied, mount]
    kept = tmp_path / "srv/trainyard/state/repair"
    assert (kept / "machines").read_text() == "1764000000 head on\n"
    # On a new head, the folder is empty, and the record on the disk stays the same.
    (tmp_path / record).unlink()
    assert head.run("52-state", **HEAD).passed().commands[-1] == mount
    assert (kept / "machines").read_text() == "1764000000 head on\n"


def test_new_head_uses_the_state_of_the_previous_head(tmp_path: Path) -> None:
    head = Head(tmp_path)
    head.run("52-state", **HEAD).passed()
    for path in STATE:
        (tmp_path / path).unlink()
    head.write(dict.fromkeys(FILES, "package\n"))
    head.run("52-state", **HEAD).passed()
    assert head.state == ["old\n"] * 2


def test_state_that_is_a_foreign_link_is_replaced(tmp_path: Path) -> None:
    """Before the parent folder belonged to root, slurm could write such a link."""
    head = Head(tmp_path)
    (tmp_path / "of-root").mkdir()
    (tmp_path / FILES[0]).unlink()
    (tmp_path / STATE[0]).rmdir()
    (tmp_path / STATE[0]).symlink_to(tmp_path / "of-root")
    ran = head.run("52-state", **HEAD).passed()
    assert "install -d -m 0700 -o slurm -g slurm /srv/trainyard/state/slurmctld" in ran.commands
    assert (tmp_path / STATE[0]).readlink() == tmp_path / "srv/trainyard/state/slurmctld"


SCRATCH = (
    *("mdadm", "blkid", "blockdev", "dd", "mkfs.ext4", "mount", "mountpoint", "udevadm", "apt-get", "dpkg-query"),
    "install",
)
EMPTY = "2 "
DIRECT, DIRECT_V2, REMOTE = (
    "Microsoft NVMe Direct Disk              ",
    "Microsoft NVMe Direct Disk v2           ",
    "MSFT NVMe Accelerator v1.0              ",
)


@dataclass
class Node:
    """A node with local disks. `array` is the command after which lsblk lists an array."""

    root: Path
    google: int = 0
    nvme: tuple[str, ...] = ()
    array: str = "mdadm --create"
    blkid: str = EMPTY
    label: str = EMPTY
    mounted: bool = False
    existing: bool = False

    def run(self) -> Ran:
        answers = {
            "mdadm --assemble": "0 " if self.array == "mdadm --assemble" else "1 no recogniseable superblock",
            "mountpoint": "0 " if self.mounted else "1 ",
            "blockdev": "0 3840755982336",
            "blkid -p -s LABEL": self.label,
            "blkid": self.blkid,
        }
        node = Sandbox(self.root, SCRATCH, answers)
        links, targets = self.root / "dev/disk/by-id", self.root / "targets"
        links.mkdir(parents=True)
        node.write({f"targets/nvme{index}n1": "" for index in range(self.google)})
        for index in range(self.google):
            for name in (f"google-local-nvme-ssd-{index}", f"google-local-nvme-ssd-{index}-part1", f"google-d-{index}"):
                (links / name).symlink_to(targets / f"nvme{index}n1")
        models = enumerate(self.nvme)
        node.write({f"sys/block/nvme{index}n1/device/model": f"{model}\n" for index, model in models})
        node.programs["lsblk"] = (
            f"printf '%s\\n' \"lsblk $*\" >>{self.root}/.log\necho /dev/sda disk\n"
            f"if grep -q '^{self.array}' {self.root}/.log; then echo '/dev/md127 raid0'; fi"
        )
        return node.run("43-scratch", **({"TEST_LEDGER": "yes"} if self.existing else {}))


MOUNT = "mount -o nodev,nosuid,noatime /dev/md127 /mnt/localssd"


@pytest.mark.parametrize(
    ("google", "nvme", "disks"),
    [
        (0, (REMOTE, DIRECT, DIRECT), "--raid-devices=2 /dev/nvme1n1 /dev/nvme2n1"),
        (0, (DIRECT_V2, REMOTE, DIRECT_V2, REMOTE), "--raid-devices=2 /dev/nvme0n1 /dev/nvme2n1"),
        (0, (DIRECT,), "--force --raid-devices=1 /dev/nvme0n1"),
        (2, (), "--raid-devices=2 /targets/nvme0n1 /targets/nvme1n1"),
    ],
    ids=["Azure", "Azure v2", "one disk", "Google Cloud"],
)
def test_local_disks_become_one_array(tmp_path: Path, google: int, nvme: tuple[str, ...], disks: str) -> None:
    ran = Node(tmp_path, google=google, nvme=nvme).run().passed()
    [created] = ran.calls("mdadm --create")
    assert created.endswith(disks)
    assert ran.calls("mkfs.ext4 ", "mount ") == ["mkfs.ext4 -q -m 0 -E nodiscard -L trainyard-ssd /dev/md127", MOUNT]
    assert "install -d -m 1777 /mnt/localssd/jobs" in ran.commands


@pytest.mark.parametrize("array", ["lsblk", "mdadm --assemble"])
def test_existing_array_is_mounted_without_formatting(tmp_path: Path, array: str) -> None:
    node = Node(tmp_path, nvme=(DIRECT, DIRECT), array=array, blkid="0 linux_raid_member", label="0 trainyard-ssd")
    assert node.run().passed().calls("mkfs.ext4", "mdadm --create", "mount ") == [MOUNT]


@pytest.mark.parametrize(
    ("array", "blkid", "label", "message"),
    [
        ("", "0 TYPE=ext4", EMPTY, "fail local disk /dev/nvme0n1 holds data"),
        ("", "4 ", EMPTY, "fail blkid cannot identify the content of the disk /dev/nvme0n1 (exit 4)"),
        ("", "8 ambivalent", EMPTY, "fail blkid cannot identify the content of the disk /dev/nvme0n1 (exit 8)"),
        ("lsblk", "0 TYPE=xfs", "0 theirs", "fail /dev/md127 holds data"),
    ],
)
def test_disk_with_data_is_not_formatted(tmp_path: Path, array: str, blkid: str, label: str, message: str) -> None:
    ran = Node(tmp_path, nvme=(DIRECT, DIRECT), array=array or "mdadm --create", blkid=blkid, label=label).run()
    assert message in ran.failure()
    assert ran.calls("mkfs.ext4", "mount ", "mdadm --create") == []


@pytest.mark.parametrize(
    ("nvme", "is_existing", "is_mounted"),
    [
        ((REMOTE, "nvme_card-pd", "SAMSUNG MZ7L33T8"), False, False),
        ((DIRECT, DIRECT), True, False),
        ((DIRECT, DIRECT), False, True),
    ],
)
def test_stage_does_nothing_without_new_local_disks(
    tmp_path: Path, nvme: tuple[str, ...], is_existing: bool, is_mounted: bool
) -> None:
    ran = Node(tmp_path, nvme=nvme, existing=is_existing, mounted=is_mounted).run().passed()
    assert ran.calls("mdadm", "mkfs.ext4", "mount ", "apt-get", "blkid") == []
