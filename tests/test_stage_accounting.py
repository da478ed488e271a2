"""The accounting stage: MariaDB on the heads of Slurm clusters, and on no other host."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.install import shipped_files
from tests.stage_sandbox import Ran, Sandbox

DROP_IN = "etc/systemd/system/mariadb.service.d/trainyard.conf"


def accounting(root: Path, **env: str) -> Ran:
    (root / "etc/trainyard").mkdir(parents=True)
    return Sandbox(root, ("systemctl", "mariadb"), {}).run("55-accounting", **env)


def test_mariadb_gets_the_folder_of_its_socket_before_it_starts(tmp_path: Path) -> None:
    ran = accounting(tmp_path, ROLE="head")
    assert ran.code == 0, ran.errors
    lines = (tmp_path / DROP_IN).read_text().splitlines()
    # The first hook of 10.6 creates /run/mysqld, so a drop-in without hooks must create it otherwise.
    assert "ExecStartPre=" in lines
    assert {"RuntimeDirectory=mysqld", "RuntimeDirectoryMode=0755"} <= set(lines)
    assert ran.commands[:2] == ["systemctl daemon-reload", "systemctl start mariadb.service"]


@pytest.mark.parametrize(("role", "scheduler"), [("worker", "slurm"), ("head", "none"), ("worker", "none")])
def test_a_database_of_the_owner_is_left_alone(tmp_path: Path, role: str, scheduler: str) -> None:
    ran = accounting(tmp_path, ROLE=role, SCHEDULER=scheduler)
    assert (ran.code, ran.commands) == (0, [])
    assert not (tmp_path / "etc/systemd").exists()


def test_no_node_is_given_settings_of_mariadb() -> None:
    assert [file.path for file in shipped_files() if "mariadb" in file.path or "mysql" in file.path] == []
