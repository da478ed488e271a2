"""Tests for the ledger of an existing host: entries that `remember` writes, and files that `give-back` restores."""

from __future__ import annotations

import os

import pytest

from tests.components.platforms.hosts.ledger import GIVE_BACK, HOSTS, Machine


def test_all_files_are_restored(machine: Machine) -> None:
    before = machine.files()
    machine.remember("etc/default/slurmd", "etc/munge/munge.key", "etc/nfs.conf.d/deep/trainyard.conf")
    machine.remember("--block", "etc/hosts", "etc/ssh/ssh_known_hosts")
    machine.remember("--data", "shared")
    machine.remember("--mount", "home/trainer")
    machine.write("etc/default/slurmd", "ours\n")
    (machine.root / "etc/munge/munge.key").chmod(0o600)
    machine.write("etc/munge/munge.key", "ours")
    machine.write("etc/nfs.conf.d/deep/trainyard.conf", "ours\n")
    aside = HOSTS.replace("127.0.1.1", "# trainyard: 127.0.1.1")
    machine.write("etc/hosts", f"{aside}# trainyard\n10.0.0.4 a\n# end of trainyard\n")
    machine.write("etc/ssh/ssh_known_hosts", "# trainyard\na key\n# end of trainyard\n")
    machine.write("shared/jobs/1/log", "words\n")
    (machine.root / "home/trainer").mkdir(parents=True)
    assert machine.give_back() == []
    assert machine.files() == before


def test_state_of_a_daemon_is_moved_aside_and_restored(machine: Machine) -> None:
    machine.write("var/lib/slurm/clustername", "theirs")
    before = machine.files()
    machine.remember("--aside", "var/lib/slurm", "var/spool/slurmd")
    assert list((machine.root / "var/lib/slurm").iterdir()) == []
    machine.write("var/lib/slurm/clustername", "ours")
    machine.write("var/spool/slurmd/cred", "ours")
    machine.remember("--aside", "var/lib/slurm", "var/spool/slurmd")
    machine.give_back()
    assert machine.files() == before


def test_the_first_entry_of_a_file_is_restored(machine: Machine) -> None:
    machine.remember("etc/default/slurmd", "etc/new")
    machine.write("etc/default/slurmd", "ours\n")
    machine.write("etc/new", "ours\n")
    machine.remember("etc/default/slurmd", "etc/new")
    machine.give_back()
    assert (machine.root / "etc/default/slurmd").read_text() == "SLURMD_OPTIONS=''\n"
    assert not (machine.root / "etc/new").exists()


def test_later_changes_of_the_owner_are_kept(machine: Machine) -> None:
    machine.remember("--block", "etc/hosts")
    machine.remember("etc/own.d/ours.conf")
    machine.write("etc/hosts", f"{HOSTS}# trainyard\n10.0.0.4 a\n# end of trainyard\n192.0.2.9 later\n")
    machine.write("etc/own.d/ours.conf", "ours\n")
    machine.write("etc/own.d/theirs.conf", "theirs\n")
    machine.give_back()
    assert (machine.root / "etc/hosts").read_text() == f"{HOSTS}192.0.2.9 later\n"
    assert [path.name for path in (machine.root / "etc/own.d").iterdir()] == ["theirs.conf"]


@pytest.mark.parametrize(
    "torn",
    [
        f"# trainyard\n10.0.0.4 a\n{HOSTS}",
        f"{HOSTS}10.0.0.4 a\n# end of trainyard\n",
        f"# trainyard\n10.0.0.4 a\n{HOSTS}# trainyard\n10.0.0.5 b\n# end of trainyard\n",
    ],
)
def test_a_missing_block_marker_is_an_error(torn: str, machine: Machine) -> None:
    machine.remember("--block", "etc/hosts")
    machine.write("etc/hosts", torn)
    with pytest.raises(GIVE_BACK.StillInUse, match="must enclose the cluster's lines"):
        GIVE_BACK.check_blocks(GIVE_BACK.Ledger(machine.ledger))
    with pytest.raises(GIVE_BACK.StillInUse, match="remove these lines and both markers"):
        machine.give_back()
    assert (machine.root / "etc/hosts").read_text() == torn


def test_keep_files_keeps_the_files_of_users(machine: Machine) -> None:
    (machine.ledger / "keep-files").write_text("yes\n")
    machine.remember("--data", "shared", "home/trainer")
    machine.write("shared/checkpoint", "weights")
    assert machine.give_back() == ["shared"]
    assert (machine.root / "shared/checkpoint").read_text() == "weights"


def test_an_existing_data_folder_is_not_removed(machine: Machine) -> None:
    machine.write("shared/old", "old")
    machine.remember("--data", "shared")
    machine.give_back()
    assert (machine.root / "shared/old").exists()


def test_files_below_a_mount_are_not_removed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.remember("etc/mounted")
    file = machine.write("etc/mounted/theirs", "of another machine")
    monkeypatch.setattr(GIVE_BACK, "mounted", lambda path: path == file.parent)
    with pytest.raises(GIVE_BACK.StillInUse, match="something is mounted under"):
        machine.give_back()
    assert file.exists()


def test_a_mount_point_with_files_is_not_removed(machine: Machine) -> None:
    machine.remember("--mount", "shared")
    file = machine.write("shared/of-the-head", "text")
    machine.give_back()
    assert file.exists()


def test_owner_and_mode_of_a_folder_are_restored(machine: Machine) -> None:
    folder = machine.write("etc/munge/munge.key", "theirs").parent
    folder.chmod(0o700)
    before = folder.stat()
    machine.remember("--owner", "etc/munge", "etc/missing")
    folder.chmod(0o750)
    machine.remember("--owner", "etc/munge")
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
    machine.give_back()
    after = folder.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
