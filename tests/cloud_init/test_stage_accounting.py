"""The accounting stage: MariaDB runs only on heads of Slurm clusters."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.node.files import shipped_files
from tests.cloud_init.stage_sandbox import Ran, Sandbox

DROP_IN = "etc/systemd/system/mariadb.service.d/trainyard.conf"


def accounting(root: Path, needs_reload: str = "no", **env: str) -> Ran:
    (root / "etc/trainyard").mkdir(parents=True)
    answers = {"systemctl show -p NeedDaemonReload": f"0 {needs_reload}"}
    return Sandbox(root, ("systemctl", "mariadb"), answers).run("55-accounting", **env)


def test_mariadb_socket_folder_is_configured_before_the_start(tmp_path: Path) -> None:
    accounting(tmp_path, ROLE="head").passed()
    lines = (tmp_path / DROP_IN).read_text().splitlines()
    # The drop-in removes the MariaDB 10.6 hook that creates /run/mysqld, so the drop-in must create the folder.
    assert "ExecStartPre=" in lines
    assert {"RuntimeDirectory=mysqld", "RuntimeDirectoryMode=0755"} <= set(lines)


@pytest.mark.parametrize(("needs_reload", "reloads"), [("yes", 1), ("no", 0)])
def test_systemd_reloads_only_a_loaded_changed_unit(tmp_path: Path, needs_reload: str, reloads: int) -> None:
    ran = accounting(tmp_path, needs_reload, ROLE="head")
    commands = [command for command in ran.commands if "show" not in command]
    expected = ["systemctl daemon-reload"] * reloads + ["systemctl start mariadb.service"]
    assert commands[: len(expected)] == expected


@pytest.mark.parametrize(("role", "scheduler"), [("worker", "slurm"), ("head", "none"), ("worker", "none")])
def test_stage_changes_no_database_of_other_hosts(tmp_path: Path, role: str, scheduler: str) -> None:
    ran = accounting(tmp_path, ROLE=role, SCHEDULER=scheduler)
    assert (ran.code, ran.commands) == (0, [])
    assert not (tmp_path / "etc/systemd").exists()


def test_shipped_files_contain_no_mariadb_settings() -> None:
    assert [file.path for file in shipped_files() if "mariadb" in file.path or "mysql" in file.path] == []
