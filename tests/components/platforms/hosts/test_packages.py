"""Tests for packages in the ledger: only packages from the bring-up's apt transactions are recorded."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.components.platforms.hosts.apt import ADD_USER, USABLE, Machine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not USABLE, reason="needs root and the real apt-get and dpkg"),
]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.package("slurmd", "Depends: munge")
    made.package("munge", post_install=ADD_USER)
    made.package("tar")
    made.package("vim")
    made.package("broken", "Pre-Depends: slurmd", file="usr/share/munge")
    made.package("chrony", "Conflicts: ntp")
    made.package("ntp")
    made.package("conf", file="etc/conf")
    assert made.apt("update", ours=True).returncode == 0
    return made


def install(machine: Machine, *names: str, ours: bool = True, code: int = 0) -> None:
    done = machine.apt("install", *names, ours=ours)
    assert done.returncode == code, done.stderr


OURS = {"package:slurmd absent", "package:munge absent", "user:munge absent"}


def test_installed_packages_and_users_are_recorded(machine: Machine) -> None:
    install(machine, "slurmd")
    assert machine.notes() == OURS
    assert sorted(path.name for path in machine.ledger.iterdir()) == ["apt.conf", "notes", "remember"]


def test_packages_and_users_of_the_owner_are_not_recorded(machine: Machine) -> None:
    install(machine, "tar", ours=False)
    install(machine, "slurmd", "tar")
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
    machine.package("slow", post_install=slow)
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
