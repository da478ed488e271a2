"""Tests for the survey's check of cluster.storage.shared.path."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.components.platforms.hosts.test_survey import survey


@pytest.fixture
def raid(tmp_path: Path) -> Path:
    """A folder that only root can write to."""
    folder = tmp_path / "raid"
    folder.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="the folders must belong to root")
def test_a_shared_folder_that_only_root_can_replace_is_accepted(tmp_path: Path, raid: Path) -> None:
    done = survey(tmp_path / "host", {}, {}, {"SHARED_FOLDER": f"{raid}/trainyard"})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="the folders must belong to root")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("chmod 0777 raid", "is not a folder that only root can replace"),
        ("chown 1234 raid", "is not a folder that only root can replace"),
        ("mv raid disk; ln -s disk raid", "is not a folder that only root can replace"),
        ("rmdir raid", "has no folder"),
        ("chmod 1777 raid; mkdir raid/trainyard; chown 1234 raid/trainyard", "raid/trainyard of cluster.storage"),
    ],
)
def test_a_shared_folder_that_others_can_replace_is_refused(
    tmp_path: Path, raid: Path, change: str, words: str
) -> None:
    subprocess.run(["sh", "-euc", change], cwd=tmp_path, check=True)
    done = survey(tmp_path / "host", {}, {}, {"SHARED_FOLDER": f"{raid}/trainyard"})
    assert done.returncode == 1
    assert words in done.stderr


def test_a_shared_folder_on_another_server_is_refused(tmp_path: Path, raid: Path) -> None:
    answers = {"findmnt": "[[ $* == *raid* ]] && echo nfs4 || { [[ $* == *-T* ]] && echo ext4; }", "stat": "echo 0"}
    done = survey(tmp_path / "host", {}, answers, {"SHARED_FOLDER": f"{raid}/trainyard"})
    assert "is on nfs4, which the head cannot export" in done.stderr
