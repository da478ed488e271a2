"""Local disks as scratch space: which disks are selected and when they are formatted. mdadm is a fake."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import Ran, Sandbox

RECORDED = (
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
    label: str = "2 "
    mounted: bool = False
    existing: bool = False

    def run(self) -> Ran:
        """Run the stage."""
        links, targets = self.root / "dev/disk/by-id", self.root / "targets"
        for folder in (links, targets):
            folder.mkdir(parents=True)
        for index in range(self.google):
            (targets / f"nvme{index}n1").touch()
            for name in (f"google-local-nvme-ssd-{index}", f"google-local-nvme-ssd-{index}-part1", f"google-d-{index}"):
                (links / name).symlink_to(targets / f"nvme{index}n1")
        for index, model in enumerate(self.nvme):
            device = self.root / f"sys/block/nvme{index}n1/device"
            device.mkdir(parents=True)
            (device / "model").write_text(f"{model}\n")
        answers = {
            "mdadm --assemble": "0 " if self.array == "mdadm --assemble" else "1 no recogniseable superblock",
            "mountpoint": "0 " if self.mounted else "1 ",
            "blockdev": "0 3840755982336",
            "blkid -p -s LABEL": self.label,
            "blkid": self.blkid,
        }
        node = Sandbox(self.root, RECORDED, answers)
        lsblk = self.root / ".bin" / "lsblk"
        lsblk.parent.mkdir(exist_ok=True)
        lsblk.write_text(
            f"#!/bin/bash\nprintf '%s\\n' \"lsblk $*\" >>{self.root}/.log\necho /dev/sda disk\n"
            f"if grep -q '^{self.array}' {self.root}/.log; then echo '/dev/md127 raid0'; fi\n"
        )
        lsblk.chmod(0o755)
        return node.run("43-scratch", **({"TEST_LEDGER": "yes"} if self.existing else {}))


def named(ran: Ran, *programs: str) -> list[str]:
    return [line for line in ran.commands if line.split()[0] in programs]


@pytest.mark.parametrize(
    ("nvme", "disks"),
    [
        ((REMOTE, DIRECT, DIRECT), "/dev/nvme1n1 /dev/nvme2n1"),
        ((DIRECT_V2, REMOTE, DIRECT_V2, REMOTE), "/dev/nvme0n1 /dev/nvme2n1"),
    ],
)
def test_azure_local_disks_become_one_array(tmp_path: Path, nvme: tuple[str, ...], disks: str) -> None:
    ran = Node(tmp_path, nvme=nvme).run()
    assert ran.code == 0, ran.errors
    [created] = [line for line in ran.commands if line.startswith("mdadm --create")]
    assert created.endswith(f"--raid-devices=2 {disks}")
    assert named(ran, "mkfs.ext4", "mount") == [
        "mkfs.ext4 -q -m 0 -E nodiscard -L trainyard-ssd /dev/md127",
        "mount -o nodev,nosuid,noatime /dev/md127 /mnt/localssd",
    ]
    assert "install -d -m 1777 /mnt/localssd/jobs" in ran.commands


def test_google_local_ssds_become_one_array(tmp_path: Path) -> None:
    ran = Node(tmp_path, google=4).run()
    assert ran.code == 0, ran.errors
    [created] = [line for line in ran.commands if line.startswith("mdadm --create")]
    assert created.endswith("--raid-devices=4 " + " ".join(f"/targets/nvme{index}n1" for index in range(4)))


def test_single_disk_becomes_an_array(tmp_path: Path) -> None:
    ran = Node(tmp_path, nvme=(DIRECT,)).run()
    assert ran.code == 0, ran.errors
    assert "--force --raid-devices=1 /dev/nvme0n1" in "".join(named(ran, "mdadm"))


@pytest.mark.parametrize("array", ["lsblk", "mdadm --assemble"])
def test_existing_array_is_mounted_without_formatting(tmp_path: Path, array: str) -> None:
    ran = Node(tmp_path, nvme=(DIRECT, DIRECT), array=array, blkid="0 linux_raid_member", label="0 trainyard-ssd").run()
    assert ran.code == 0, ran.errors
    assert named(ran, "mkfs.ext4") == []
    assert not [line for line in ran.commands if line.startswith("mdadm --create")]
    assert named(ran, "mount") == ["mount -o nodev,nosuid,noatime /dev/md127 /mnt/localssd"]


@pytest.mark.parametrize(
    ("blkid", "message"),
    [
        ("0 TYPE=ext4", "fail local disk /dev/nvme0n1 holds data"),
        ("4 ", "fail blkid cannot identify the content of the disk /dev/nvme0n1 (exit 4)"),
        ("8 ambivalent", "fail blkid cannot identify the content of the disk /dev/nvme0n1 (exit 8)"),
    ],
)
def test_disk_with_data_is_not_formatted(tmp_path: Path, blkid: str, message: str) -> None:
    ran = Node(tmp_path, nvme=(DIRECT, DIRECT), blkid=blkid).run()
    assert ran.code == 1
    assert message in ran.output[-1]
    assert named(ran, "mkfs.ext4", "mount") == []
    assert not [line for line in ran.commands if line.startswith("mdadm --create")]


def test_array_with_other_data_is_not_formatted(tmp_path: Path) -> None:
    ran = Node(tmp_path, nvme=(DIRECT, DIRECT), array="lsblk", blkid="0 TYPE=xfs", label="0 theirs").run()
    assert ran.code == 1
    assert "fail /dev/md127 holds data" in ran.output[-1]
    assert named(ran, "mkfs.ext4", "mount") == []


@pytest.mark.parametrize(
    "node",
    [
        {"nvme": (REMOTE, "nvme_card-pd", "SAMSUNG MZ7L33T8")},
        {"nvme": (DIRECT, DIRECT), "existing": True},
        {"nvme": (DIRECT, DIRECT), "mounted": True},
        {},
    ],
)
def test_stage_does_nothing_without_new_local_disks(tmp_path: Path, node: dict[str, object]) -> None:
    ran = Node(tmp_path, **node).run()  # type: ignore[arg-type]
    assert ran.code == 0, ran.errors
    assert named(ran, "mdadm", "mkfs.ext4", "mount", "apt-get", "blkid") == []
