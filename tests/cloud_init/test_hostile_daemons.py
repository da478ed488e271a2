"""Root never writes in a folder that belongs to the user of a daemon, because this user may have created links there.

On the head, slurmctld reads messages from all workers, so these tests assume that an attacker controls the daemons.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import STAGES, Sandbox
from tests.cloud_init.test_hostile_homes import function

FILES = Path(__file__).parents[2] / "cloud-init"
HOST_PROGRAMS = Path(__file__).parents[2] / "components/platforms/hosts/node"
OF_DAEMONS = (
    *("/var/lib/slurm/slurmctld", "/var/lib/mysql", "/var/lib/munge", "/srv/trainyard/state/slurmctld"),
    *("/srv/trainyard/state/mysql", "/run/munge", "/run/mysqld", "/run/slurmctld", "/run/slurmdbd"),
    *("/var/log/slurm", "/var/log/munge", "/var/log/mysql", "$state/slurmctld", "$state/mysql"),
)
"""Folders that belong to slurm, munge or mysql on a head."""
GIVEN = {
    ("52-state", "$state/slurmctld"),  # the state's file system belongs to root
    ("60-munge", "/etc/munge/munge.key"),
    ("70-slurm", "/etc/slurm/slurmdbd.conf"),
    ("70-slurm", "$folder"),  # /var/lib/slurm/slurmctld
}
"""Files and folders that a script gives to a daemon, by script. The parent folder of each belongs to root."""
_GIVES = re.compile(r"(?:-o (?:slurm|munge|mysql)\b.*|put_\w+ (\S+) .*\b(?:slurm|munge|mysql):.*)$", re.M)
VICTIM_MODE = 0o700


def scripts() -> Iterator[Path]:
    for folder in (FILES, HOST_PROGRAMS):
        yield from (file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def test_no_script_names_a_path_in_a_folder_of_a_daemon() -> None:
    inside = re.compile(rf"(?:{'|'.join(map(re.escape, OF_DAEMONS))})/[\w*.$]")
    found = [
        (file.name, line.strip())
        for file in scripts()
        for line in file.read_text().splitlines()
        if inside.search(line) and not line.lstrip().startswith("#")
    ]
    # This line only connects to munged.
    assert found == [("system.py", 'client.connect(str(node.path("/run/munge/munge.socket.2")))')]


def test_daemons_own_only_paths_in_folders_of_root() -> None:
    given = {
        (file.name, found[1] or found[0].split()[-1].strip('"'))
        for file in scripts()
        for found in _GIVES.finditer(file.read_text())
    }
    assert given == GIVEN


def test_key_is_written_in_a_folder_of_root(tmp_path: Path) -> None:
    for name in ("complete", "hosts", "known_hosts", "munge.key", "etc/hosts"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "run/trainyard").mkdir(parents=True)
    sandbox = Sandbox(tmp_path, ("install", "systemctl", "munge", "unmunge"), {})
    sandbox.programs["put_secret"] = f'echo "put_secret $1" >>{tmp_path}/.log'
    ran = sandbox.run("60-munge", ROLE="worker", TEST_HANDOVER=str(tmp_path))
    assert ran.code == 0, ran.errors
    assert ran.commands[0] == "install -d -m 0750 -o root -g munge /etc/munge"
    assert ran.commands[1].endswith("/etc/munge/munge.key")


@pytest.fixture
def host() -> Iterator[Path]:
    """A folder in which `lib` belongs to the daemon's user, as after the installation of the packages."""
    # Other users cannot enter pytest's temporary folder.
    made = subprocess.run(["mktemp", "-d", "/tmp/host-XXXXXX"], capture_output=True, text=True, check=True)  # noqa: S108
    folder = Path(made.stdout.strip())
    folder.chmod(0o755)
    (folder / "lib").mkdir()
    os.chown(folder / "lib", pwd.getpwnam("daemon").pw_uid, pwd.getpwnam("daemon").pw_gid)
    (folder / "victim").mkdir(mode=VICTIM_MODE)
    yield folder
    shutil.rmtree(folder)


def own_state(host: Path) -> subprocess.CompletedProcess[str]:
    """Run the function from 70-slurm, with the user `daemon` as slurm."""
    text = function(STAGES / "70-slurm", "own_state").replace("/var/lib/slurm", f"{host}/lib")
    text = text.replace("-o slurm -g slurm", "-o daemon -g daemon")
    script = f"remember() {{ :; }}\n{text}\nown_state"
    return subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=False)


def check_victim(host: Path) -> None:
    victim = (host / "victim").stat()
    assert (victim.st_uid, victim.st_gid, victim.st_mode & 0o7777) == (0, 0, VICTIM_MODE)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@needs_root
def test_state_replaced_by_a_link_changes_no_folder_of_root(host: Path) -> None:
    (host / "lib/slurmctld").symlink_to(host / "victim")
    assert own_state(host).returncode == 0
    check_victim(host)
    state = host / "lib/slurmctld"
    assert not state.is_symlink()
    assert (state.owner(), state.stat().st_mode & 0o7777, (host / "lib").owner()) == ("daemon", 0o700, "root")
    assert own_state(host).returncode == 0


@needs_root
def test_state_replaced_during_the_stage_changes_no_folder_of_root(host: Path) -> None:
    state = host / "lib/slurmctld"
    swap = f"while :; do rm -rf {state}; ln -s {host}/victim {state}; rm -f {state}; done 2>/dev/null"
    attacker = subprocess.Popen(["bash", "-c", swap], user="daemon", group="daemon", extra_groups=[])
    try:
        time.sleep(0.1)
        for _ in range(40):
            own_state(host)
            check_victim(host)
    finally:
        attacker.kill()
        attacker.wait()
    assert not state.is_symlink()
