"""Tests for the ledger of an existing host: what `remember` records, and what `give-back` restores."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_init.stage_sandbox import bash, function
from tests.cloud_init.test_stages_system import TORN
from tests.components.platforms.recording import ROOT

NODE = ROOT / "components" / "platforms" / "hosts" / "node"
HOSTS = "127.0.0.1 localhost\n127.0.1.1 mine\n\n192.0.2.1 theirs\n"


def load(name: str) -> Any:
    loader = SourceFileLoader(name, str(NODE / name))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


GIVE_BACK = load("give-back")


class Machine:
    """A folder that represents a machine, with a ledger."""

    def __init__(self, folder: Path) -> None:
        self.root, self.ledger = folder / "root", folder / "ledger"
        self.root.mkdir()
        self.ledger.mkdir()
        (self.ledger / "keep-files").write_text("no\n")
        (self.ledger / "notes").touch()
        shutil.copy(NODE / "remember", self.ledger)

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    def remember(self, *arguments: str) -> None:
        """Run the ledger's program `remember` with options and with paths relative to the machine's folder."""
        words = [word if word.startswith("--") else f"{self.root}/{word}" for word in arguments]
        subprocess.run([self.ledger / "remember", *words], check=True)

    def give_back(self) -> list[str]:
        """Restore the files. Returns the kept folders."""
        ledger = GIVE_BACK.Ledger(self.ledger)
        kept = [path.relative_to(self.root).as_posix() for path in GIVE_BACK.restore_files(ledger)]
        for path, _ in ledger.paths("folder"):
            GIVE_BACK.remove_empty(path)
        return kept

    def files(self) -> dict[str, tuple[str, int]]:
        return {
            path.relative_to(self.root).as_posix(): (
                path.read_text() if path.is_file() else "",
                path.stat().st_mode & 0o7777,
            )
            for path in self.root.rglob("*")
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with configuration files written by its owner."""
    made = Machine(tmp_path)
    made.write("etc/hosts", HOSTS)
    made.write("etc/munge/munge.key", "theirs", 0o400)
    made.write("etc/default/slurmd", "SLURMD_OPTIONS=''\n", 0o600)
    return made


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


@pytest.mark.parametrize("torn", TORN)
def test_a_missing_block_marker_is_an_error(torn: str, machine: Machine) -> None:
    machine.remember("--block", "etc/hosts")
    machine.write("etc/hosts", torn)
    with pytest.raises(GIVE_BACK.StillInUse, match="must enclose the cluster's lines"):
        GIVE_BACK.check_blocks(GIVE_BACK.Ledger(machine.ledger))
    with pytest.raises(GIVE_BACK.StillInUse, match="remove these lines and both markers"):
        machine.give_back()
    assert (machine.root / "etc/hosts").read_text() == torn


def test_files_of_users_and_of_the_head_are_kept(machine: Machine) -> None:
    existing = machine.write("shared/old", "old")
    machine.remember("--data", "shared")
    machine.remember("--mount", "mounted")
    on_mount = machine.write("mounted/of-the-head", "text")
    assert machine.give_back() == []
    assert existing.exists()
    assert on_mount.exists()
    # With keep_files, the files in a new folder are kept, too.
    (machine.ledger / "keep-files").write_text("yes\n")
    machine.remember("--data", "new", "home/trainer")
    checkpoint = machine.write("new/checkpoint", "weights")
    assert machine.give_back() == ["new"]
    assert checkpoint.read_text() == "weights"


def test_files_below_a_mount_are_not_removed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.remember("etc/mounted")
    file = machine.write("etc/mounted/theirs", "of another machine")
    monkeypatch.setattr(GIVE_BACK, "mounted", lambda path, kind="": path == file.parent and not kind)
    with pytest.raises(GIVE_BACK.StillInUse, match="something is mounted under"):
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


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The commands that give-back runs. The commands are recorded but not executed."""
    commands: list[tuple[str, ...]] = []

    def run(*command: str, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(GIVE_BACK, "run", run)
    return commands


@pytest.mark.parametrize("existed", [True, False])
def test_folders_are_unmounted_and_existing_ones_are_kept(
    machine: Machine, ran: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    folder = machine.root / "shared"
    if existed:
        folder.mkdir()
    machine.remember("--mount", "shared")
    folder.mkdir(exist_ok=True)
    unmount = ("umount", "-f", "-l", str(folder))
    monkeypatch.setattr(GIVE_BACK, "mounted", lambda path, kind="": path == folder and unmount not in ran and not kind)
    GIVE_BACK.stop(GIVE_BACK.Ledger(machine.ledger))
    assert unmount in ran
    machine.give_back()
    assert folder.exists() == existed


def test_jobs_end_before_mounts_are_stopped_and_access_rules_removed(
    machine: Machine, ran: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.remember("--data", "/shared", "/home/trainer")
    monkeypatch.setattr(GIVE_BACK, "mounted", lambda path, kind="": False)
    GIVE_BACK.stop(GIVE_BACK.Ledger(machine.ledger))
    stopped = {word for command in ran if command[:2] == ("systemctl", "stop") for word in command}
    assert {"shared.mount", "home-trainer.mount"} <= stopped
    order = [
        ("pkill", "-KILL", "-u", "trainer"),
        ("systemctl", "stop", "shared.automount", "shared.mount"),
        ("systemctl", "stop", "trainyard-metadata.service", "trainyard-ports.service"),
    ]
    assert sorted(order, key=ran.index) == order


def test_folders_of_a_server_that_does_not_answer_are_detached_first(
    machine: Machine, ran: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.remember("--mount", "/shared")
    detach = ("umount", "-f", "-l", "/shared")
    monkeypatch.setattr(GIVE_BACK, "mounted", lambda path, kind="": kind == "nfs" and str(path) == "/shared")
    GIVE_BACK.stop(GIVE_BACK.Ledger(machine.ledger))
    assert ran.index(detach) < ran.index(("systemctl", "stop", "shared.automount", "shared.mount"))


class Apt:
    """A fake of give-back's `run` function. `removed`: all packages that apt would remove."""

    def __init__(self, installed: set[str], removed: set[str]) -> None:
        self.installed, self.removed = installed, removed
        self.ran: list[tuple[str, ...]] = []

    def __call__(self, *command: str, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        self.ran.append(command)
        output = ""
        if command[0] == "dpkg-query":
            output = "installed" if command[-1] in self.installed else ""
        elif command[:2] == ("apt-get", "-s"):
            output = "".join(f"Remv {name} [1.0]\n" for name in sorted(self.removed))
        return subprocess.CompletedProcess(command, 0, output, "")

    def changes(self) -> list[str]:
        return [" ".join(command[3:]) for command in self.ran if command[:2] == ("apt-get", "-q")]


INSTALLED = "package:pdsh\tabsent\npackage:munge\tabsent\npackage:ntp\tremoved\npackage:gone\tabsent\n"
CONFIGURED = "package:pdsh\tabsent\npackage:munge\tconfig\n"


PACKAGES: list[tuple[str, set[str], list[str], list[str]]] = [
    (INSTALLED, {"pdsh", "munge"}, [], ["purge munge pdsh", "--no-install-recommends install ntp"]),
    # Packages with an earlier configuration are not purged, and packages that others need are kept.
    (CONFIGURED, {"pdsh", "munge"}, [], ["remove munge", "purge pdsh"]),
    (INSTALLED, {"pdsh", "munge", "their-slurm"}, ["munge", "pdsh"], []),
]
"""Notes, the packages that apt would remove, those that stay, and the changes."""


@pytest.mark.parametrize("case", PACKAGES)
def test_packages_are_removed_and_reinstalled(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, case: tuple[str, set[str], list[str], list[str]]
) -> None:
    notes, removed, stay, changes = case
    (machine.ledger / "notes").write_text(notes)
    apt = Apt({"pdsh", "munge", "vim"}, removed)
    monkeypatch.setattr(GIVE_BACK, "run", apt)
    assert GIVE_BACK.restore_packages(GIVE_BACK.Ledger(machine.ledger)) == stay
    assert apt.changes() == changes


UNITS = {
    ("slurm", "head"): {"munge", "slurmctld", "slurmdbd", "mariadb", "nfs-server"},
    ("slurm", "worker"): {"munge", "slurmd"},
    ("none", "head"): {"nfs-server"},
    ("none", "worker"): set(),
}


@pytest.mark.parametrize(("scheduler", "role"), UNITS)
def test_only_services_of_the_bring_up_are_recorded(tmp_path: Path, scheduler: str, role: str) -> None:
    note_units = function(NODE / "lease", "note_units")
    fake = tmp_path / "remember"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    noted = bash(f"ledger={tmp_path} PLAN_SCHEDULER={scheduler} PLAN_ROLE={role}\n{note_units}\nnote_units")
    services = {"munge", "slurmctld", "slurmdbd", "slurmd", "mariadb", "nfs-server"}
    assert {line.removesuffix(".service") for line in noted.splitlines()} & services == UNITS[scheduler, role]


def test_exports_are_removed_from_a_running_server(machine: Machine, ran: list[tuple[str, ...]]) -> None:
    machine.write("etc/exports.d/trainyard.exports", "/home/trainer 10.0.0.0/24(rw,sync)\n/shared 10.0.0.0/24(rw)\n")
    GIVE_BACK.unexport(GIVE_BACK.Ledger(machine.ledger, machine.root))
    assert ran == [("exportfs", "-u", "10.0.0.0/24:/home/trainer"), ("exportfs", "-u", "10.0.0.0/24:/shared")]
