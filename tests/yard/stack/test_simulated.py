"""The offline environment: separate plugins, backend and state, without real machines."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.yard.checkout_root import use_root
from trainyard.errors import StackError
from yard.stack import workspace


def test_offline_environment_hides_the_real_backend(tmp_path: Path) -> None:
    online = {
        "PULUMI_BACKEND_URL": "s3://team",
        "PULUMI_HOME": "/home/me/.pulumi",
        "PULUMI_CONFIG_PASSPHRASE_FILE": "/home/me/passphrase",
        "PATH": "/bin",
    }
    found = workspace.simulated_environment(online, tmp_path)
    assert found["PULUMI_BACKEND_URL"] == f"file://{tmp_path}/state?metadata=skip"
    assert found["PULUMI_HOME"].startswith(str(tmp_path))
    assert "PULUMI_CONFIG_PASSPHRASE_FILE" not in found
    assert found["PATH"] == f"{ROOT / 'offline' / 'programs'}:/bin"
    assert found["TRAINYARD_OFFLINE_COMMANDS"] == "record"


def test_plugins_have_the_versions_of_the_sdks(tmp_path: Path) -> None:
    for _ in range(2):
        workspace.simulated_environment({"PATH": "/bin"}, tmp_path)
    for plugin, package in workspace.PLUGINS.items():
        folder = tmp_path / "pulumi-home" / "plugins" / f"resource-{plugin}-v{version(package)}"
        program = folder / f"pulumi-resource-{plugin}"
        assert program.resolve().is_file()
        assert program.stat().st_mode & 0o111


def test_engine_cannot_create_its_log_folder(tmp_path: Path) -> None:
    logs = tmp_path / "pulumi-home" / "logs"
    logs.mkdir(parents=True)
    (logs / "of-an-earlier-run.log").touch()
    for _ in range(2):
        workspace.simulated_environment({"PATH": "/bin"}, tmp_path)
        assert logs.is_file()


@pytest.mark.parametrize(("provider", "allowed"), [("azure", True), ("gcp", True), ("local", False), ("hosts", False)])
def test_platforms_with_real_machines_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, allowed: bool
) -> None:
    use_root(tmp_path, monkeypatch)
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.x.yaml").write_text(
        f"config: {{trainyard:cluster: {{platform: {{provider: {provider}}}}}}}\n"
    )
    if allowed:
        workspace.refuse_real_machines("x")
        return
    with pytest.raises(StackError, match=f"platform '{provider}' uses real machines. Fix: omit --offline"):
        workspace.refuse_real_machines("x")


def test_an_invalid_platform_section_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_root(tmp_path, monkeypatch)
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.x.yaml").write_text("config: {trainyard:cluster: {platform: azure}}\n")
    workspace.refuse_real_machines("x")  # the Pulumi program reports the problem
