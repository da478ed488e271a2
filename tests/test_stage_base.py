"""The stage that every later one relies on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stage_sandbox import Sandbox


def base(tmp_path: Path, domain: str) -> Path:
    """Run 10-base on a node. Returns the node's root."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hosts").write_text("127.0.0.1 localhost\n# trainyard\n# end of trainyard\n")
    ran = Sandbox(tmp_path, ("sysctl", "systemctl"), {}).run("10-base", SHARED_DOMAIN=domain)
    assert ran.code == 0, ran.errors
    return tmp_path


@pytest.mark.parametrize("domain", ["", "defaultv4iddomain.com"])
def test_user_names_are_mapped_in_the_file_servers_domain(tmp_path: Path, domain: str) -> None:
    file = base(tmp_path, domain) / "etc/idmapd.conf.d/trainyard.conf"
    assert file.exists() is bool(domain)
    if domain:
        assert file.read_text() == f"[General]\nDomain = {domain}\n"


@pytest.mark.parametrize("role", ["head", "worker"])
def test_a_time_daemon_that_already_runs_reads_its_new_lines(tmp_path: Path, role: str) -> None:
    (tmp_path / "etc/trainyard").mkdir(parents=True)
    (tmp_path / "etc/trainyard/fabric.env").write_text("NCCL_IB_DISABLE=1\n")
    node = Sandbox(tmp_path, ("ip", "systemctl"), {"ip": "0 3: eth1    inet 10.0.0.4/24 scope global"})
    ran = node.run("40-network", ROLE=role, PRIVATE_IP="10.0.0.4", NETWORK="10.0.0.0/20", HEAD_IP="10.0.0.4")
    assert ran.code == 0, ran.errors
    assert "systemctl restart --no-block chrony.service" in ran.commands
