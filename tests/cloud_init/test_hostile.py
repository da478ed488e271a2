"""Root never writes in a folder that belongs to a user or to a daemon, because they may have created links there.

On the head, slurmctld reads messages from all workers, so these tests assume that an attacker controls the daemons.
Some tests run functions from the scripts as root, with a temporary folder that belongs to the user `daemon`.
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

from tests.cloud_init.stage_sandbox import STAGES, Sandbox, function

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
    ("44-containers", '$disk/user-$uid"/{cache,data,temp}'),
    ("60-munge", "/etc/munge/munge.key"),
    ("70-slurm", "/etc/slurm/slurmdbd.conf"),
    ("70-slurm", "$folder"),  # /var/lib/slurm/slurmctld
}
"""Files and folders that a script gives to a daemon or to the job user. Root owns the parent folder of each."""
_GIVES = re.compile(r"(?:-o (?:slurm|munge|mysql|trainer)\b.*|put_\w+ (\S+) .*\b(?:slurm|munge|mysql):.*)$", re.M)
_OF_USER = re.compile(r"(?:/home|/shared|/dev/shm|/mnt/localssd/jobs|\$HOME|~)/[\w*.$\"{]")
"""A path in a folder in which the job user may write."""
_WRITES = re.compile(r"[^2&]>|\b(?:rm|mv|cp|ln|install|mkdir|touch|tee|ch(?:own|mod)|put_\w+|write_text)\b|sed -i")
_AS_USER = re.compile(r"(?m)^ *(?:as_\w+|setpriv --re).* bash -euc '[^']*'(?= - )|^.*\bas_trainer mkdir .*$")
"""Commands that a script runs as the user."""
VICTIM_MODE = 0o700
LEASE = HOST_PROGRAMS / "lease"
OLD_LINE = "ssh-ed25519 AAAAadmin+/= admin@yard\n"
"""Older versions, which had one key for all users, wrote this line for the job user."""
USER = "daemon"
"""This user and a group of the same name exist on every Debian system."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
needs_ssh_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


def give(path: Path) -> None:
    os.chown(path, pwd.getpwnam(USER).pw_uid, pwd.getpwnam(USER).pw_gid)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can enter, unlike pytest's temporary folder."""
    made = Path(subprocess.check_output(["mktemp", "-d", "/tmp/host-XXXXXX"], text=True).strip())  # noqa: S108
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


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


def test_only_the_user_writes_in_folders_of_the_user() -> None:
    found = [
        (file.name, line.strip())
        for file in scripts()
        if file.suffix != ".md"
        for line in _AS_USER.sub("", file.read_text()).splitlines()
        if _OF_USER.search(line) and _WRITES.search(line) and not line.lstrip().startswith("#")
    ]
    # An image's builder has no job user yet.
    assert [name for name, _ in found] == ["bake"]
    assert found[0][1].startswith("rm -rf /etc/ssh/ssh_host_*")


def test_daemons_own_only_paths_in_folders_of_root() -> None:
    given = {
        (file.name, found[1] or found[0].split()[-1].strip('"'))
        for file in scripts()
        for found in _GIVES.finditer(file.read_text())
    }
    assert given == GIVEN


def test_key_is_written_in_a_folder_of_root(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, ("install", "systemctl", "munge", "unmunge"))
    sandbox.write({name: name for name in ("complete", "hosts", "known_hosts", "munge.key", "etc/hosts")})
    sandbox.programs["put_secret"] = f'echo "put_secret $1" >>{tmp_path}/.log'
    ran = sandbox.run("60-munge", ROLE="worker", TEST_HANDOVER=str(tmp_path)).passed()
    assert ran.commands[0] == "install -d -m 0750 -o root -g munge /etc/munge"
    assert ran.commands[1].endswith("/etc/munge/munge.key")


@pytest.fixture
def host(folder: Path) -> Path:
    """A folder in which `lib` belongs to the daemon's user, as after the installation of the packages."""
    (folder / "lib").mkdir()
    give(folder / "lib")
    (folder / "victim").mkdir(mode=VICTIM_MODE)
    return folder


def own_state(host: Path) -> subprocess.CompletedProcess[str]:
    """Run the function from 70-slurm, with the user `daemon` as slurm."""
    text = function(STAGES / "70-slurm", "own_state").replace("/var/lib/slurm", f"{host}/lib")
    text = text.replace("-o slurm -g slurm", "-o daemon -g daemon")
    script = f"remember() {{ :; }}\n{text}\nown_state"
    return subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=False)


def check_victim(host: Path) -> None:
    victim = (host / "victim").stat()
    assert (victim.st_uid, victim.st_gid, victim.st_mode & 0o7777) == (0, 0, VICTIM_MODE)


@needs_root
def test_state_replaced_by_a_link_changes_no_folder_of_root(host: Path) -> None:
    state = host / "lib/slurmctld"
    state.symlink_to(host / "victim")
    for _ in range(2):
        assert own_state(host).returncode == 0
        check_victim(host)
        assert not state.is_symlink()
        assert (state.owner(), state.stat().st_mode & 0o7777, (host / "lib").owner()) == ("daemon", 0o700, "root")


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


@pytest.fixture
def home(folder: Path) -> Path:
    give(folder)
    return folder


LIFE = (
    f"source {STAGES.parent}/life.sh\nTRAINYARD_CLUSTER=yard\n"
    f'as_trainer() {{ as_user {USER} {USER} "$HOME_OF_USER" "$@"; }}\n'
)
SCRIPTS = {
    "rank_key": f'{LIFE}rank_key {USER} {USER} "$HOME_OF_USER"\n',
    "60-munge": f"{LIFE}{function(STAGES / '60-munge', 'remove_admin_key')}\nremove_admin_key\n",
    "66-people": f'{LIFE}{function(STAGES / "66-people", "make_home")}\nmake_home {USER} {USER} "$HOME_OF_USER"\n',
    "lease": (
        f"{function(LEASE, 'may_log_in')}\n"
        f'may_log_in {USER} "$HOME_OF_USER" "ssh-ed25519 AAAA one\nssh-ed25519 BBBB two"\n'
    ),
}


def run(script: str, home: Path, programs: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME_OF_USER": str(home)}
    command = ["bash", "-euc", SCRIPTS[script]]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)


@needs_root
@pytest.mark.parametrize(
    ("script", "name"),
    [
        pytest.param("rank_key", ".ssh/authorized_keys", marks=needs_ssh_keygen),
        ("60-munge", ".ssh/authorized_keys"),
        ("66-people", ".bashrc"),
    ],
)
def test_a_pipe_in_a_home_does_not_block_root(script: str, name: str, home: Path, tmp_path: Path) -> None:
    (home / ".ssh").mkdir()
    os.mkfifo(home / name)
    for path in (home / ".ssh", home / name):
        give(path)
    # The limit is one second instead of 150.
    limit = tmp_path / "timeout"
    limit.write_text('#!/bin/bash\nexec /usr/bin/timeout --kill-after=1 1 "${@:3}"\n')
    limit.chmod(0o755)
    assert run(script, home, str(tmp_path)).returncode == 124


@needs_root
@pytest.mark.parametrize("script", [pytest.param("rank_key", marks=needs_ssh_keygen), "lease"])
def test_keys_are_written_to_the_home_of_the_user(script: str, home: Path) -> None:
    for _ in range(2):
        done = run(script, home)
        assert done.returncode == 0, done.stderr
    keys = home / ".ssh" / "authorized_keys"
    assert keys.stat().st_uid == pwd.getpwnam(USER).pw_uid
    assert keys.stat().st_mode & 0o777 == 0o600
    lines = keys.read_text().splitlines()
    assert len(lines) == len(set(lines)) == (1 if script == "rank_key" else 2)


@needs_root
@needs_ssh_keygen
def test_an_empty_key_of_an_interrupted_head_is_replaced(home: Path) -> None:
    assert run("rank_key", home).returncode == 0
    key = home / ".ssh" / "id_ed25519"
    key.write_text("")
    assert run("rank_key", home).returncode == 0
    public = subprocess.run(["ssh-keygen", "-y", "-f", key], capture_output=True, text=True, check=True).stdout.split()
    assert public[1] in (home / ".ssh" / "authorized_keys").read_text()
    assert public[1] in key.with_suffix(".pub").read_text()


@needs_root
def test_lease_replaces_the_keys_of_an_earlier_lease(home: Path) -> None:
    run("lease", home)
    keys = home / ".ssh" / "authorized_keys"
    keys.write_text("ssh-ed25519 CCCC rotated\n")
    assert run("lease", home).returncode == 0
    assert keys.read_text() == "ssh-ed25519 AAAA one\nssh-ed25519 BBBB two\n"


@needs_root
def test_the_admin_key_of_older_versions_is_removed(home: Path) -> None:
    keys = home / ".ssh" / "authorized_keys"
    keys.parent.mkdir()
    give(keys.parent)
    own = 'ssh-ed25519 BBBB me@laptop\nfrom="10.0.0.1" ssh-ed25519 AAAA admin@yard\nssh-ed25519 CC trainer@yard\n'
    keys.write_text(OLD_LINE + own)
    give(keys)
    for _ in range(2):
        assert run("60-munge", home).returncode == 0
        assert keys.read_text() == own
    assert (keys.stat().st_uid, keys.stat().st_mode & 0o777) == (pwd.getpwnam(USER).pw_uid, 0o600)
    keys.write_text(OLD_LINE)
    assert run("60-munge", home).returncode == 0
    assert keys.read_text() == ""


@needs_root
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("linked", [".ssh", ".ssh/authorized_keys"])
def test_target_of_a_link_in_a_home_is_unchanged(script: str, linked: str, home: Path, tmp_path: Path) -> None:
    target = tmp_path / "of-root"
    target.mkdir(mode=0o755)
    (target / "authorized_keys").write_text(OLD_LINE)
    if linked == ".ssh":
        (home / ".ssh").symlink_to(target)
    else:
        (home / ".ssh").mkdir()
        give(home / ".ssh")
        (home / ".ssh" / "authorized_keys").symlink_to(target / "authorized_keys")
    run(script, home)
    [file] = target.iterdir()
    assert (file.name, file.read_text(), file.stat().st_uid) == ("authorized_keys", OLD_LINE, 0)
    assert (target.stat().st_uid, target.stat().st_mode & 0o777) == (0, 0o755)


REMOVED = 1_000_000 + os.getpid()
"""A uid that no other test uses, because all its processes are killed."""
"""A uid without an account."""


def removal(name: str) -> str:
    return f"people_gid=2001\npause() {{ sleep 0.1; }}\n{function(STAGES / '66-people', name)}\n{name} {REMOVED}\n"


@needs_root
def test_all_processes_of_a_removed_person_end() -> None:
    forks = "trap '' TERM; while :; do (sleep 0.01; sleep 60) & sleep 0.01; done"
    forker = subprocess.Popen(["bash", "-c", forks], user=REMOVED, group=2001, extra_groups=[])
    other = subprocess.Popen(["sleep", "60"])
    try:
        time.sleep(0.5)
        subprocess.run(["bash", "-euc", removal("end_processes")], check=True, timeout=30)
        assert forker.wait(5) == -9
        assert other.poll() is None
        left = subprocess.run(["ps", "-o", "stat=", "-u", str(REMOVED)], capture_output=True, text=True, check=False)
        # In a container, the first process can be slow to collect the ended processes.
        assert {state[0] for state in left.stdout.split()} <= {"Z"}
    finally:
        forker.kill()
        other.kill()
        other.wait()


@needs_root
def test_programs_of_a_removed_person_lose_their_rights(folder: Path) -> None:
    programs = {"own": (REMOVED, 0o6755), "accomplice/own": (REMOVED, 0o4755), "root": (0, 0o4755)}
    (folder / "accomplice").mkdir(mode=0o700)
    give(folder / "accomplice")
    for name, (uid, mode) in programs.items():
        (folder / name).write_text("")
        os.chown(folder / name, uid, 2001)
        (folder / name).chmod(mode)
    (folder / "link").symlink_to(folder / "root")
    os.lchown(folder / "link", REMOVED, 2001)
    script = removal("strip_programs").replace(
        "in /tmp /var/tmp /dev/shm /run/lock /var/crash /mnt/localssd;", f"in {folder};"
    )
    assert str(folder) in script
    subprocess.run(["bash", "-euc", script], check=True, timeout=30)
    modes = {name: (folder / name).stat().st_mode & 0o7777 for name in programs}
    assert modes == {"own": 0o755, "accomplice/own": 0o755, "root": 0o4755}


def test_a_line_of_a_worker_has_a_limit(tmp_path: Path) -> None:
    handout = STAGES.parent / "handout"
    script = f"""
        longest=65536 nodes={tmp_path}
        write_status() {{ printf '%s\\n' "$2" >"$nodes/$1.json"; echo ${{#2}}; }}
        {function(handout, "follow_worker")}
        session() {{ head -c 200000 /dev/zero | tr '\\0' x; echo
          echo '{{"state": "ready"}}'; }}
        follow_worker a 10.0.0.5
    """
    done = subprocess.run(["bash", "-uc", script], capture_output=True, text=True, check=False, timeout=20)
    assert [int(length) for length in done.stdout.split()] == [65536, 65536, 65536, 3392, 18], done.stderr
