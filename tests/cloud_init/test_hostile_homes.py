"""Scripts never write below a user's home as root, because the user may have created links to root's files there.

The tests run functions from the scripts as root, with a temporary home for the user `daemon`.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORAGE = ROOT / "cloud-init/files/usr/local/lib/trainyard/stages/50-storage"
NAMES = ROOT / "cloud-init/files/usr/local/lib/trainyard/stages/60-munge"
LEASE = ROOT / "components/platforms/hosts/node/lease"
OLD_LINE = "ssh-ed25519 AAAAadmin+/= admin@yard\n"
"""Older versions, which had one key for all users, wrote this line for the job user."""
USER = "daemon"
"""This user and a group of the same name exist on every Debian system."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


def function(file: Path, name: str) -> str:
    found = re.search(rf"(?ms)^{name}\(\) {{.*?^}}", file.read_text())
    assert found, f"{file.name} has no function {name}"
    return found[0]


@pytest.fixture
def home() -> Iterator[Path]:
    # Other users cannot enter pytest's temporary folder.
    made = subprocess.run(["mktemp", "-d", "/tmp/home-XXXXXX"], capture_output=True, text=True, check=True)  # noqa: S108
    folder = Path(made.stdout.strip())
    os.chown(folder, pwd.getpwnam(USER).pw_uid, -1)
    yield folder
    shutil.rmtree(folder)


SCRIPTS = {
    "50-storage": (
        f'as_trainer() {{ setpriv --reuid={USER} --regid={USER} --init-groups -- env HOME="$HOME_OF_USER" "$@"; }}\n'
        f"TRAINYARD_CLUSTER=c\n{function(STORAGE, 'job_user_key')}\njob_user_key\n"
    ),
    "60-munge": (
        f'as_trainer() {{ setpriv --reuid={USER} --regid={USER} --init-groups -- env HOME="$HOME_OF_USER" "$@"; }}\n'
        f"TRAINYARD_CLUSTER=yard\n{function(NAMES, 'remove_admin_key')}\nremove_admin_key\n"
    ),
    "lease": (
        f"{function(LEASE, 'may_log_in')}\n"
        f'may_log_in {USER} "$HOME_OF_USER" "ssh-ed25519 AAAA one\nssh-ed25519 BBBB two"\n'
    ),
}


def run(script: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euc", SCRIPTS[script]],
        env={"PATH": os.environ["PATH"], "HOME_OF_USER": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("script", ["50-storage", "lease"])
def test_keys_are_written_to_the_home_of_the_user(script: str, home: Path) -> None:
    for _ in range(2):
        done = run(script, home)
        assert done.returncode == 0, done.stderr
    keys = home / ".ssh" / "authorized_keys"
    assert keys.stat().st_uid == pwd.getpwnam(USER).pw_uid
    assert keys.stat().st_mode & 0o777 == 0o600
    lines = keys.read_text().splitlines()
    assert len(lines) == len(set(lines)) == (1 if script == "50-storage" else 2)


def test_an_empty_key_of_an_interrupted_head_is_replaced(home: Path) -> None:
    assert run("50-storage", home).returncode == 0
    key = home / ".ssh" / "id_ed25519"
    key.write_text("")
    assert run("50-storage", home).returncode == 0
    public = subprocess.run(["ssh-keygen", "-y", "-f", key], capture_output=True, text=True, check=True).stdout.split()
    assert public[1] in (home / ".ssh" / "authorized_keys").read_text()
    assert public[1] in key.with_suffix(".pub").read_text()


def test_lease_replaces_the_keys_of_an_earlier_lease(home: Path) -> None:
    run("lease", home)
    keys = home / ".ssh" / "authorized_keys"
    keys.write_text("ssh-ed25519 CCCC rotated\n")
    assert run("lease", home).returncode == 0
    assert keys.read_text() == "ssh-ed25519 AAAA one\nssh-ed25519 BBBB two\n"


@pytest.mark.parametrize("script", SCRIPTS)
def test_target_of_a_linked_ssh_folder_is_unchanged(script: str, home: Path, tmp_path: Path) -> None:
    target = tmp_path / "of-root"
    target.mkdir(mode=0o755)
    (target / "authorized_keys").write_text(OLD_LINE)
    (home / ".ssh").symlink_to(target)
    run(script, home)
    assert (target.stat().st_uid, target.stat().st_mode & 0o777) == (0, 0o755)
    assert [(path.name, path.read_text()) for path in target.iterdir()] == [("authorized_keys", OLD_LINE)]


def test_the_admin_key_of_older_versions_is_removed(home: Path) -> None:
    keys = home / ".ssh" / "authorized_keys"
    keys.parent.mkdir()
    os.chown(keys.parent, pwd.getpwnam(USER).pw_uid, -1)
    own = 'ssh-ed25519 BBBB me@laptop\nfrom="10.0.0.1" ssh-ed25519 AAAA admin@yard\nssh-ed25519 CC trainer@yard\n'
    keys.write_text(OLD_LINE + own)
    os.chown(keys, pwd.getpwnam(USER).pw_uid, -1)
    for _ in range(2):
        assert run("60-munge", home).returncode == 0
        assert keys.read_text() == own
    assert (keys.stat().st_uid, keys.stat().st_mode & 0o777) == (pwd.getpwnam(USER).pw_uid, 0o600)
    keys.write_text(OLD_LINE)
    assert run("60-munge", home).returncode == 0
    assert keys.read_text() == ""


@pytest.mark.parametrize("script", SCRIPTS)
def test_target_of_a_linked_key_file_is_unchanged(script: str, home: Path, tmp_path: Path) -> None:
    target = tmp_path / "shadow"
    target.write_text("of root\n")
    target.chmod(0o644)
    (home / ".ssh").mkdir()
    os.chown(home / ".ssh", pwd.getpwnam(USER).pw_uid, -1)
    (home / ".ssh" / "authorized_keys").symlink_to(target)
    run(script, home)
    assert target.read_text() == "of root\n"
    assert target.stat().st_uid == 0
