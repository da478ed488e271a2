"""Tests for the restoration of an existing host by `give-back`: mounts, services, packages and exports."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.components.platforms.hosts.ledger import GIVE_BACK, NODE, Machine


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
    machine: Machine, monkeypatch: pytest.MonkeyPatch, existed: bool
) -> None:
    folder = machine.root / "shared"
    if existed:
        folder.mkdir()
    machine.remember("--mount", "shared")
    folder.mkdir(exist_ok=True)
    mounts, ran = [folder], []

    def run(*command: str, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        if command[0] == "umount":
            mounts.clear()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(GIVE_BACK, "run", run)
    monkeypatch.setattr(GIVE_BACK, "mounted", lambda path: path in mounts)
    GIVE_BACK.stop(GIVE_BACK.Ledger(machine.ledger))
    assert ("umount", "-f", "-l", str(folder)) in ran
    machine.give_back()
    assert folder.exists() == existed


def test_bind_mounts_of_the_head_are_unmounted(
    machine: Machine, ran: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.remember("--data", "/shared", "/home/trainer")
    monkeypatch.setattr(GIVE_BACK, "mounted", lambda path: False)
    GIVE_BACK.stop(GIVE_BACK.Ledger(machine.ledger))
    stopped = {word for command in ran if command[:2] == ("systemctl", "stop") for word in command}
    assert {"shared.mount", "home-trainer.mount"} <= stopped


def test_access_rules_are_removed_after_the_jobs(machine: Machine, ran: list[tuple[str, ...]]) -> None:
    GIVE_BACK.stop(GIVE_BACK.Ledger(machine.ledger))
    jobs_end = ran.index(("pkill", "-KILL", "-u", "trainer"))
    assert ran.index(("systemctl", "stop", "trainyard-metadata.service", "trainyard-ports.service")) > jobs_end


class Apt:
    """A fake of give-back's `run` function. `removed`: the packages that apt would remove together with the
    cluster's packages."""

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
        """Return the commands that change packages."""
        return [" ".join(command[3:]) for command in self.ran if command[:2] == ("apt-get", "-q")]


def packages(machine: Machine, monkeypatch: pytest.MonkeyPatch, removed: set[str]) -> tuple[list[str], list[str]]:
    """Restore the packages of a host on which set-up installed pdsh and munge, and removed ntp."""
    notes = "package:pdsh\tabsent\npackage:munge\tabsent\npackage:ntp\tremoved\npackage:gone\tabsent\n"
    (machine.ledger / "notes").write_text(notes)
    apt = Apt({"pdsh", "munge", "vim"}, removed)
    monkeypatch.setattr(GIVE_BACK, "run", apt)
    return GIVE_BACK.restore_packages(GIVE_BACK.Ledger(machine.ledger)), apt.changes()


def test_packages_are_removed_and_reinstalled(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    stay, changes = packages(machine, monkeypatch, {"pdsh", "munge"})
    assert stay == []
    assert changes == ["purge munge pdsh", "--no-install-recommends install ntp"]


def test_packages_with_earlier_configuration_are_not_purged(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine.ledger / "notes").write_text("package:pdsh\tabsent\npackage:munge\tconfig\n")
    apt = Apt({"pdsh", "munge"}, {"pdsh", "munge"})
    monkeypatch.setattr(GIVE_BACK, "run", apt)
    assert GIVE_BACK.restore_packages(GIVE_BACK.Ledger(machine.ledger)) == []
    assert apt.changes() == ["remove munge", "purge pdsh"]


def test_packages_that_others_need_are_kept(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    stay, changes = packages(machine, monkeypatch, {"pdsh", "munge", "their-slurm"})
    assert stay == ["munge", "pdsh"]
    assert changes == []


UNITS = {
    ("slurm", "head"): {"munge", "slurmctld", "slurmdbd", "mariadb", "nfs-server"},
    ("slurm", "worker"): {"munge", "slurmd"},
    ("none", "head"): {"nfs-server"},
    ("none", "worker"): set(),
}


@pytest.mark.parametrize(("scheduler", "role"), UNITS)
def test_only_services_of_the_bring_up_are_recorded(tmp_path: Path, scheduler: str, role: str) -> None:
    text = (NODE / "lease").read_text()
    function = text[text.index("note_units() {") : text.index("\n}\n", text.index("note_units() {")) + 3]
    fake = tmp_path / "remember"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    given = f"ledger={tmp_path} PLAN_SCHEDULER={scheduler} PLAN_ROLE={role}\n"
    noted = subprocess.run(["bash", "-euc", f"{given}{function}note_units"], check=True, capture_output=True, text=True)
    services = {"munge", "slurmctld", "slurmdbd", "slurmd", "mariadb", "nfs-server"}
    assert {line.removesuffix(".service") for line in noted.stdout.splitlines()} & services == UNITS[scheduler, role]


def test_exports_are_removed_from_a_running_server(machine: Machine, ran: list[tuple[str, ...]]) -> None:
    machine.write("etc/exports.d/trainyard.exports", "/home/trainer 10.0.0.0/24(rw,sync)\n/shared 10.0.0.0/24(rw)\n")
    GIVE_BACK.unexport(GIVE_BACK.Ledger(machine.ledger, machine.root))
    assert ran == [("exportfs", "-u", "10.0.0.0/24:/home/trainer"), ("exportfs", "-u", "10.0.0.0/24:/shared")]
