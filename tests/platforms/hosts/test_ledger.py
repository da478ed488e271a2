"""The ledger of a borrowed machine, on a folder in its place: what `remember` notes, `give-back` restores."""

from __future__ import annotations

import shutil
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from tests.platforms.recording import ROOT

NODE = ROOT / "components" / "platforms" / "hosts" / "node"
HOSTS = "127.0.0.1 localhost\n127.0.1.1 mine\n\n192.0.2.1 theirs\n"


def load() -> Any:
    """Return the program `give-back` as a module."""
    loader = SourceFileLoader("give_back", str(NODE / "give-back"))
    spec = spec_from_loader("give_back", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


GIVE_BACK = load()


class Machine:
    """A machine that is a folder, with a ledger of its own."""

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
        """Note paths of the machine; options pass as they are."""
        words = [word if word.startswith("--") else f"{self.root}/{word}" for word in arguments]
        subprocess.run([self.ledger / "remember", *words], check=True)

    def give_back(self) -> list[str]:
        """Restore the files. Returns what stays."""
        ledger = GIVE_BACK.Ledger(self.ledger)
        kept = [path.relative_to(self.root).as_posix() for path in GIVE_BACK.restore_files(ledger)]
        for path, _ in ledger.paths("folder"):
            GIVE_BACK.remove_empty(path)
        return kept

    def files(self) -> dict[str, tuple[str, int]]:
        """Everything that is there, folders included."""
        return {
            path.relative_to(self.root).as_posix(): (
                path.read_text() if path.is_file() else "",
                path.stat().st_mode & 0o7777,
            )
            for path in self.root.rglob("*")
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.write("etc/hosts", HOSTS)
    made.write("etc/munge/munge.key", "theirs", 0o400)
    made.write("etc/default/slurmd", "SLURMD_OPTIONS=''\n", 0o600)
    return made


def test_everything_is_as_it_was(machine: Machine) -> None:
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


def test_a_daemon_begins_with_nothing_and_its_owner_finds_everything_again(machine: Machine) -> None:
    machine.write("var/lib/slurm/clustername", "theirs")
    before = machine.files()
    machine.remember("--aside", "var/lib/slurm", "var/spool/slurmd")
    assert list((machine.root / "var/lib/slurm").iterdir()) == []
    machine.write("var/lib/slurm/clustername", "ours")
    machine.write("var/spool/slurmd/cred", "ours")
    machine.remember("--aside", "var/lib/slurm", "var/spool/slurmd")
    machine.give_back()
    assert machine.files() == before


def test_the_first_answer_stays(machine: Machine) -> None:
    machine.remember("etc/default/slurmd", "etc/new")
    machine.write("etc/default/slurmd", "ours\n")
    machine.write("etc/new", "ours\n")
    machine.remember("etc/default/slurmd", "etc/new")
    machine.give_back()
    assert (machine.root / "etc/default/slurmd").read_text() == "SLURMD_OPTIONS=''\n"
    assert not (machine.root / "etc/new").exists()


def test_what_others_wrote_meanwhile_stays(machine: Machine) -> None:
    machine.remember("--block", "etc/hosts")
    machine.remember("etc/own.d/ours.conf")
    machine.write("etc/hosts", f"{HOSTS}# trainyard\n10.0.0.4 a\n# end of trainyard\n192.0.2.9 later\n")
    machine.write("etc/own.d/ours.conf", "ours\n")
    machine.write("etc/own.d/theirs.conf", "theirs\n")
    machine.give_back()
    assert (machine.root / "etc/hosts").read_text() == f"{HOSTS}192.0.2.9 later\n"
    assert [path.name for path in (machine.root / "etc/own.d").iterdir()] == ["theirs.conf"]


def test_peoples_files_stay_where_the_stack_file_keeps_them(machine: Machine) -> None:
    (machine.ledger / "keep-files").write_text("yes\n")
    machine.remember("--data", "shared", "home/trainer")
    machine.write("shared/checkpoint", "weights")
    assert machine.give_back() == ["shared"]
    assert (machine.root / "shared/checkpoint").read_text() == "weights"


def test_a_folder_that_was_there_is_neither_data_nor_ours(machine: Machine) -> None:
    machine.write("shared/old", "old")
    machine.remember("--data", "shared")
    machine.give_back()
    assert (machine.root / "shared/old").exists()


def test_nothing_is_removed_under_a_mount(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.remember("etc/mounted")
    file = machine.write("etc/mounted/theirs", "of another machine")
    monkeypatch.setattr(GIVE_BACK, "mounted", lambda path: path == file.parent)
    with pytest.raises(GIVE_BACK.StillInUse, match="something is mounted under"):
        machine.give_back()
    assert file.exists()


def test_a_mount_that_still_holds_files_is_never_emptied(machine: Machine) -> None:
    machine.remember("--mount", "shared")
    file = machine.write("shared/of-the-head", "text")
    machine.give_back()
    assert file.exists()


@pytest.mark.parametrize("there", [True, False])
def test_what_is_mounted_goes_and_a_folder_that_was_there_stays(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    place = machine.root / "shared"
    if there:
        place.mkdir()
    machine.remember("--mount", "shared")
    place.mkdir(exist_ok=True)
    mounts, ran = [place], []

    def run(*command: str, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        if command[0] == "umount":
            mounts.clear()
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(GIVE_BACK, "run", run)
    monkeypatch.setattr(GIVE_BACK, "mounted", lambda path: path in mounts)
    GIVE_BACK.stop(GIVE_BACK.Ledger(machine.ledger))
    assert ("umount", "-f", "-l", str(place)) in ran
    machine.give_back()
    assert place.exists() == there


class Apt:
    """Stands where give-back runs commands: packages that are there, and what a purge would take."""

    def __init__(self, there: set[str], takes: set[str]) -> None:
        self.there, self.takes = there, takes
        self.ran: list[tuple[str, ...]] = []

    def __call__(self, *command: str, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        self.ran.append(command)
        said = ""
        if command[0] == "dpkg-query":
            said = "installed" if command[-1] in self.there else ""
        elif command[:2] == ("apt-get", "-s"):
            said = "".join(f"Remv {name} [1.0]\n" for name in sorted(self.takes))
        return subprocess.CompletedProcess(command, 0, said, "")

    def changes(self) -> list[str]:
        """The commands that change packages."""
        return [" ".join(command[3:]) for command in self.ran if command[:2] == ("apt-get", "-q")]


def packages(machine: Machine, monkeypatch: pytest.MonkeyPatch, takes: set[str]) -> tuple[list[str], list[str]]:
    """Give packages back: pdsh and munge came, ntp was driven out. Returns what stays, and what was changed."""
    notes = "package:pdsh\tabsent\npackage:munge\tabsent\npackage:ntp\tremoved\npackage:gone\tabsent\n"
    (machine.ledger / "notes").write_text(notes)
    apt = Apt({"pdsh", "munge", "vim"}, takes)
    monkeypatch.setattr(GIVE_BACK, "run", apt)
    return GIVE_BACK.restore_packages(GIVE_BACK.Ledger(machine.ledger)), apt.changes()


def test_packages_that_came_go_and_those_driven_out_return(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    stay, changes = packages(machine, monkeypatch, {"pdsh", "munge"})
    assert stay == []
    assert changes == ["purge munge pdsh", "--no-install-recommends install ntp"]


def test_a_package_whose_configuration_was_there_is_not_purged(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.ledger / "notes").write_text("package:pdsh\tabsent\npackage:munge\tconfig\n")
    apt = Apt({"pdsh", "munge"}, {"pdsh", "munge"})
    monkeypatch.setattr(GIVE_BACK, "run", apt)
    assert GIVE_BACK.restore_packages(GIVE_BACK.Ledger(machine.ledger)) == []
    assert apt.changes() == ["remove munge", "purge pdsh"]


def test_packages_that_others_need_now_stay(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_only_services_that_the_bring_up_starts_are_stopped(tmp_path: Path, scheduler: str, role: str) -> None:
    text = (NODE / "lease").read_text()
    function = text[text.index("note_units() {") : text.index("\n}\n", text.index("note_units() {")) + 3]
    fake = tmp_path / "remember"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    given = f"ledger={tmp_path} BORROW_SCHEDULER={scheduler} BORROW_ROLE={role}\n"
    noted = subprocess.run(["bash", "-euc", f"{given}{function}note_units"], check=True, capture_output=True, text=True)
    services = {"munge", "slurmctld", "slurmdbd", "slurmd", "mariadb", "nfs-server"}
    assert {line.removesuffix(".service") for line in noted.stdout.splitlines()} & services == UNITS[scheduler, role]


def test_exports_are_withdrawn_from_a_server_that_goes_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.write("etc/exports.d/trainyard.exports", "/home/trainer 10.0.0.0/24(rw,sync)\n/shared 10.0.0.0/24(rw)\n")
    ran = []
    monkeypatch.setattr(GIVE_BACK, "run", lambda *command, timeout=0: ran.append(command))
    GIVE_BACK.unexport(GIVE_BACK.Ledger(machine.ledger, machine.root))
    assert ran == [("exportfs", "-u", "10.0.0.0/24:/home/trainer"), ("exportfs", "-u", "10.0.0.0/24:/shared")]
