"""Root writes nothing below a user's home, where the user may have put links to files of root's.

Runs the functions of the scripts as root, with the user `daemon` and a home in a folder of its own.
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

ROOT = Path(__file__).parents[1]
STORAGE = ROOT / "cloud-init/files/usr/local/lib/trainyard/stages/50-storage"
LEASE = ROOT / "components/platforms/hosts/node/lease"
USER = "daemon"
"""A user of every Debian, with a group of the same name."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


def function(file: Path, name: str) -> str:
    found = re.search(rf"(?ms)^{name}\(\) {{.*?^}}", file.read_text())
    assert found, f"{file.name} has no function {name}"
    return found[0]


@pytest.fixture
def home() -> Iterator[Path]:
    # Not below pytest's folder, which other users cannot enter.
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


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_home_gets_its_keys(script: str, home: Path) -> None:
    for _ in range(2):
        done = run(script, home)
        assert done.returncode == 0, done.stderr
    keys = home / ".ssh" / "authorized_keys"
    assert keys.stat().st_uid == pwd.getpwnam(USER).pw_uid
    assert keys.stat().st_mode & 0o777 == 0o600
    lines = keys.read_text().splitlines()
    assert len(lines) == len(set(lines)) == (1 if script == "50-storage" else 2)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_linked_ssh_folder_is_not_given_away(script: str, home: Path, tmp_path: Path) -> None:
    target = tmp_path / "of-root"
    target.mkdir(mode=0o755)
    (home / ".ssh").symlink_to(target)
    assert run(script, home).returncode != 0
    assert (target.stat().st_uid, target.stat().st_mode & 0o777) == (0, 0o755)
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_linked_key_file_is_not_changed(script: str, home: Path, tmp_path: Path) -> None:
    target = tmp_path / "shadow"
    target.write_text("of root\n")
    target.chmod(0o644)
    (home / ".ssh").mkdir()
    os.chown(home / ".ssh", pwd.getpwnam(USER).pw_uid, -1)
    (home / ".ssh" / "authorized_keys").symlink_to(target)
    assert run(script, home).returncode != 0
    assert target.read_text() == "of root\n"
    assert target.stat().st_uid == 0
