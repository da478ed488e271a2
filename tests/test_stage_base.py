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
