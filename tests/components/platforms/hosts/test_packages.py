"""The packages in the ledger, with the real apt-get and dpkg, a dpkg database and an archive of small packages."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import bash, function
from tests.components.platforms.recording import ROOT

NODE = ROOT / "components" / "platforms" / "hosts" / "node"
TOOLS = ("apt-get", "dpkg", "dpkg-deb", "dpkg-query", "dpkg-scanpackages")
USABLE = all(map(shutil.which, TOOLS)) and os.geteuid() == 0
"""Whether this user can run dpkg, which requires root."""

pytestmark = [pytest.mark.engine, pytest.mark.skipif(not USABLE, reason="needs root and the real apt-get and dpkg")]

ADD_USER = "#!/bin/sh\ngrep -q '^munge:' $DPKG_ROOT/etc/passwd || echo 'munge:x:998:998::/:' >>$DPKG_ROOT/etc/passwd\n"


def add_package(archive: Path, name: str, *fields: str, post_install: str = "", file: str = "") -> None:
    made = archive.parent / "made" / name
    (made / "DEBIAN").mkdir(parents=True)
    head = [f"Package: {name}", "Version: 1", "Architecture: all", "Maintainer: t <t@t>", "Description: t"]
    (made / "DEBIAN" / "control").write_text("\n".join([*head, *fields, ""]))
    if post_install:
        (made / "DEBIAN" / "postinst").write_text(post_install)
        (made / "DEBIAN" / "postinst").chmod(0o755)
    content = made / (file or f"usr/share/{name}")
    content.parent.mkdir(parents=True)
    content.write_text(name)
    if content.parts[-2] == "etc":
        (made / "DEBIAN" / "conffiles").write_text(f"/etc/{content.name}\n")
    subprocess.run(["dpkg-deb", "-Zgzip", "-b", made, archive], check=True, capture_output=True)
    listed = subprocess.run(["dpkg-scanpackages", "."], cwd=archive, check=True, capture_output=True, text=True)
    (archive / "Packages").write_text(listed.stdout)


class Machine:
    """A machine. `root` is its root folder, and `ledger` is the folder that `remember` uses."""

    def __init__(self, folder: Path) -> None:
        self.root, self.ledger, self.archive = folder / "root", folder / "ledger", folder / "archive"
        for path in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/apt/lists/partial", "etc/apt", "tmp",
                     "var/cache/apt/archives/partial", "var/log/apt"):  # fmt: skip
            (self.root / path).mkdir(parents=True)
        (self.root / "var/lib/dpkg/status").touch()
        self.ledger.mkdir()
        self.archive.mkdir()
        self.accounts = self.root / "etc/passwd"
        self.accounts.write_text("root:x:0:0::/:\nowner:x:1001:1001::/:\n")
        (self.root / "etc/group").write_text("root:x:0:\n")
        program = self.ledger / "remember"
        program.write_text((NODE / "remember").read_text().replace('"/etc/$kind"', f'"{self.root}/etc/$kind"'))
        program.chmod(0o755)
        # apt.conf is written by the function in `lease`.
        bash(f"ledger={self.ledger}\n{function(NODE / 'lease', 'watch_apt')}\nwatch_apt")
        (folder / "sources.list").write_text(f"deb [trusted=yes] file:{self.archive} ./\n")

    def apt(self, *words: str, ours: bool) -> subprocess.CompletedProcess[str]:
        """Run apt-get. With `ours`, apt-get uses the apt configuration of the bring-up."""
        state = self.root / "var/lib/dpkg/status"
        options = [
            f"Dir={self.root}", f"Dir::State::status={state}", "Dir::Etc::sourceparts=-", "Dir::Etc::parts=-",
            f"Dir::Etc::sourcelist={self.root.parent}/sources.list", f"DPkg::Options::=--root={self.root}",
            "DPkg::Options::=--force-script-chrootless", "APT::Sandbox::User=root",
            "Dir::Bin::Methods=/usr/lib/apt/methods",
        ]  # fmt: skip
        environment = {**os.environ, "DPKG_ADMINDIR": str(self.root / "var/lib/dpkg"), "LC_ALL": "C.UTF-8"}
        if ours:
            environment["APT_CONFIG"] = str(self.ledger / "apt.conf")
        argv = ["apt-get", "-q", "-y", *(word for option in options for word in ("-o", option)), *words]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)

    def notes(self) -> set[str]:
        """Return the ledger's entries as "NAME STATE"."""
        file = self.ledger / "notes"
        return {line.replace("\t", " ") for line in file.read_text().splitlines()} if file.exists() else set()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    add_package(made.archive, "slurmd", "Depends: munge")
    add_package(made.archive, "munge", post_install=ADD_USER)
    add_package(made.archive, "broken", "Pre-Depends: slurmd", file="usr/share/munge")
    add_package(made.archive, "chrony", "Conflicts: ntp")
    add_package(made.archive, "conf", file="etc/conf")
    for name in ("tar", "vim", "ntp"):
        add_package(made.archive, name)
    assert made.apt("update", ours=True).returncode == 0
    return made


def install(machine: Machine, *names: str, ours: bool = True, code: int = 0) -> None:
    done = machine.apt("install", *names, ours=ours)
    assert done.returncode == code, done.stderr


OURS = {"package:slurmd absent", "package:munge absent", "user:munge absent"}


def test_only_packages_and_users_of_the_bring_up_are_recorded(machine: Machine) -> None:
    install(machine, "tar", ours=False)
    install(machine, "slurmd", "tar")
    assert machine.notes() == OURS
    assert sorted(path.name for path in machine.ledger.iterdir()) == ["apt.conf", "notes", "remember"]
    install(machine, "vim", ours=False)
    machine.accounts.write_text(machine.accounts.read_text() + "redis:x:997:997::/:\n")
    install(machine, "slurmd")
    assert machine.notes() == OURS


def test_packages_after_a_failed_stage_are_not_recorded(machine: Machine) -> None:
    install(machine, "slurmd", "broken", code=100)
    assert machine.notes() == OURS
    install(machine, "tar", ours=False)
    machine.accounts.write_text(machine.accounts.read_text() + "redis:x:997:997::/:\n")
    install(machine, "slurmd")
    assert machine.notes() == OURS


def test_a_killed_installation_is_recorded(machine: Machine) -> None:
    # State after a power failure: the state recorded before the installation, and an incomplete dpkg log.
    (machine.ledger / "packages").touch()
    (machine.ledger / "accounts").write_text("user:root\n")
    (machine.ledger / "dpkg-log").write_text("processing: install: munge\nstatus: munge: half-installed\n")
    install(machine, "tar", ours=False)
    machine.accounts.write_text(machine.accounts.read_text() + "redis:x:997:997::/:\n")
    install(machine, "vim")
    assert machine.notes() == {"package:munge absent", "package:vim absent"}


def test_users_added_during_an_installation_are_not_recorded(machine: Machine) -> None:
    slow = ADD_USER + "echo 'carol:x:1002:1002::/:' >>$DPKG_ROOT/etc/passwd\n"
    add_package(machine.archive, "slow", post_install=slow)
    machine.apt("update", ours=True)
    install(machine, "slow")
    assert machine.notes() == {"package:slow absent", "user:munge absent"}


def test_a_replaced_package_is_recorded(machine: Machine) -> None:
    install(machine, "ntp", ours=False)
    install(machine, "chrony")
    assert machine.notes() == {"package:chrony absent", "package:ntp removed"}


def test_earlier_configuration_of_a_package_is_recorded(machine: Machine) -> None:
    install(machine, "conf", ours=False)
    assert machine.apt("remove", "conf", ours=False).returncode == 0
    install(machine, "conf")
    assert machine.notes() == {"package:conf config"}


def test_apt_reads_the_other_archives_after_a_failure(machine: Machine) -> None:
    sources = machine.root.parent / "sources.list"
    sources.write_text(f"deb [trusted=yes] file:{machine.root}/missing ./\n{sources.read_text()}")
    ran = machine.apt("update", ours=False)
    assert ran.returncode == 100
    assert re.search(r"^Err:\d+ file:\S+/missing \./ ", ran.stdout, re.M)
    assert "Inst slurmd" in machine.apt("-s", "install", "slurmd", ours=False).stdout


def test_apt_itself_does_not_wait_for_the_lock_of_the_lists(machine: Machine) -> None:
    # apt_update in stage.sh detects the lock by the path in this message.
    with (machine.root / "var/lib/apt/lists/lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        refused = machine.apt("-o", "DPkg::Lock::Timeout=600", "update", ours=False)
    assert refused.returncode == 100
    assert "/lists/lock" in refused.stderr


LOG = """processing: install: libx:amd64
status: libx:amd64: unpacked
processing: upgrade: tar
status: tar: unpacked
processing: install: bad
status: bad: half-installed
status: /x.deb : error : trying to overwrite '/x'
status: bad: not-installed
"""


def test_interrupted_transactions_are_recorded_first(machine: Machine) -> None:
    (machine.ledger / "packages").write_text("tar installed\n")
    (machine.ledger / "dpkg-log").write_text(LOG)
    subprocess.run([machine.ledger / "remember", "--interrupted-packages"], check=True)
    assert machine.notes() == {"package:libx absent"}
    assert not (machine.ledger / "dpkg-log").exists()
