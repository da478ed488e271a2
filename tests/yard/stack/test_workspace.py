"""Simulated clouds are separate from the real backend; the copy of the stack file that Pulumi uses."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

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


COMMITTED = "# why two\nconfig:\n  trainyard:cluster: {name: yard}\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty checkout with one stack, `local`."""
    monkeypatch.setattr("trainyard.checkout.ROOT", tmp_path)
    (tmp_path / "Pulumi.yaml").touch()
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.local.yaml").write_text(COMMITTED)
    return tmp_path


def put_salt(copy: Path, salt: str) -> None:
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(f"encryptionsalt: {salt}\n")


def test_copy_keeps_the_salt_and_the_text(checkout: Path) -> None:
    put_salt(workspace.copy_of("local"), "v1:abc=:v1:def==")
    copy = workspace.refresh_copy("local")
    assert copy.read_text().startswith(COMMITTED)
    assert yaml.safe_load(copy.read_text())["encryptionsalt"] == "v1:abc=:v1:def=="
    assert (checkout / "stacks" / "Pulumi.local.yaml").read_text() == COMMITTED


def test_copy_follows_the_committed_file(checkout: Path) -> None:
    put_salt(workspace.copy_of("local"), "v1:abc")
    workspace.refresh_copy("local")
    (checkout / "stacks" / "Pulumi.local.yaml").write_text("config:\n  trainyard:cluster: {name: other}\n")
    document = yaml.safe_load(workspace.refresh_copy("local").read_text())
    assert document == {"config": {"trainyard:cluster": {"name": "other"}}, "encryptionsalt": "v1:abc"}


def test_salt_of_the_committed_file_has_precedence(checkout: Path) -> None:
    """`pulumi config set --secret` encrypts with the salt from the committed file, if the file contains one."""
    put_salt(workspace.copy_of("local"), "v1:old")
    (checkout / "stacks" / "Pulumi.local.yaml").write_text(COMMITTED + "encryptionsalt: v1:own\n")
    text = workspace.refresh_copy("local").read_text()
    assert yaml.safe_load(text)["encryptionsalt"] == "v1:own"
    assert text.count("encryptionsalt") == 1


def test_simulated_backend_ignores_secrets_of_the_committed_file(checkout: Path) -> None:
    """The user's passphrase encrypts these secrets. `pulumi stack init` adds the salt to the committed file."""
    put_salt(workspace.copy_of("local", checkout / "offline"), "v1:offline")
    config = "  gcp:credentials:\n    secure: v1:abc\n  gcp:project: mine\n"
    added = "secretsprovider: passphrase\nencryptionsalt: v1:own\n"
    (checkout / "stacks" / "Pulumi.local.yaml").write_text(COMMITTED + config + added)
    copy = workspace.refresh_copy("local", checkout / "offline", with_secrets=False)
    assert yaml.safe_load(copy.read_text()) == {
        "config": {"trainyard:cluster": {"name": "yard"}, "gcp:project": "mine"},
        "encryptionsalt": "v1:offline",
    }


@pytest.mark.parametrize("content", [b"\xff\xfe\x00garbage", None], ids=["not UTF-8", "a folder"])
def test_unreadable_file_is_reported(checkout: Path, content: bytes | None) -> None:
    file = checkout / "stacks" / "Pulumi.local.yaml"
    if content is not None:
        file.write_bytes(content)
    else:
        file.unlink()
        file.mkdir()
    with pytest.raises(StackError, match=r"stacks.* cannot be read: .* Fix: write it as UTF-8 text"):
        workspace.refresh_copy("local")


def test_too_deep_nesting_is_reported_by_pulumi(checkout: Path) -> None:
    (checkout / "stacks" / "Pulumi.local.yaml").write_text("config: " + "[" * 3000 + "]" * 3000)
    assert workspace.refresh_copy("local").exists()


def test_invalid_yaml_is_reported_by_pulumi(checkout: Path) -> None:
    (checkout / "stacks" / "Pulumi.local.yaml").write_text("config: [")
    assert workspace.refresh_copy("local").read_text() == "config: [\n"


def test_error_for_an_unknown_stack_lists_the_known_stacks(checkout: Path) -> None:
    (checkout / "stacks" / "Pulumi.azure-h100.yaml").write_text("config: {}\n")
    with pytest.raises(StackError, match=r"no stack 'loca'.*one of azure-h100, local"):
        workspace.refresh_copy("loca")
