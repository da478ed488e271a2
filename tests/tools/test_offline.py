"""The offline environment: its own plugins, backend and state, and no real machine."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from tools import offline, stackfile
from tools.environment import ToolError


def test_nothing_of_the_real_backend_is_left(tmp_path: Path) -> None:
    online = {
        "PULUMI_BACKEND_URL": "s3://team",
        "PULUMI_HOME": "/home/me/.pulumi",
        "PULUMI_CONFIG_PASSPHRASE_FILE": "/home/me/passphrase",
        "PATH": "/bin",
    }
    found = offline.environment(online, tmp_path)
    assert found["PULUMI_BACKEND_URL"] == f"file://{tmp_path}/state"
    assert found["PULUMI_HOME"].startswith(str(tmp_path))
    assert "PULUMI_CONFIG_PASSPHRASE_FILE" not in found
    assert found["PATH"] == "/bin"
    assert found["TRAINYARD_OFFLINE_COMMANDS"] == "record"


def test_plugins_are_installed_as_the_versions_that_the_sdks_ask_for(tmp_path: Path) -> None:
    offline.environment({}, tmp_path)
    offline.environment({}, tmp_path)
    for plugin, package in offline.PLUGINS.items():
        folder = tmp_path / "pulumi-home" / "plugins" / f"resource-{plugin}-v{version(package)}"
        program = folder / f"pulumi-resource-{plugin}"
        assert program.resolve().is_file()
        assert program.stat().st_mode & 0o111


def test_the_engine_finds_no_place_for_a_log(tmp_path: Path) -> None:
    logs = tmp_path / "pulumi-home" / "logs"
    logs.mkdir(parents=True)
    (logs / "of-an-earlier-run.log").touch()
    for _ in range(2):
        offline.environment({}, tmp_path)
        assert logs.is_file()


@pytest.mark.parametrize(
    ("provider", "simulated"), [("azure", True), ("gcp", True), ("local", False), ("hosts", False)]
)
def test_real_machines_are_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, simulated: bool
) -> None:
    monkeypatch.setattr(stackfile, "ROOT", tmp_path)
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.x.yaml").write_text(
        f"config: {{trainyard:cluster: {{platform: {{provider: {provider}}}}}}}\n"
    )
    if simulated:
        offline.refuse_real_machines("x")
        return
    with pytest.raises(ToolError, match=f"platform '{provider}' makes real machines. Fix: leave --offline out"):
        offline.refuse_real_machines("x")
