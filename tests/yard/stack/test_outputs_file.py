"""Stack outputs from a file instead of Pulumi's backend."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.yard.conftest import FakeStack
from trainyard.errors import StackError
from trainyard.outputs import Cluster, dumped
from yard.commands.cli import app
from yard.stack.load import load_stack, save_for_jobs


@pytest.fixture
def file(stack: FakeStack, local_outputs: Cluster) -> Path:
    """A file with the outputs of a stack and the user's private key. Only its owner can read the file."""
    made = stack.root / "given.json"
    made.touch(mode=0o600)
    made.write_text(json.dumps({"cluster": dumped(local_outputs), "user_private_key": "a key"}))
    return made


def test_a_file_replaces_the_backend(stack: FakeStack, file: Path, local_outputs: Cluster) -> None:
    loaded = load_stack("local", file=file)
    assert loaded.cluster == local_outputs
    assert loaded.folder != stack.folder
    assert (loaded.folder / "id_ed25519").read_text() == "a key\n"
    assert load_stack("local", file=file) == loaded
    assert stack.pulumi.calls == []


def test_a_changed_file_is_read_again(file: Path) -> None:
    load_stack("local", file=file)
    file.write_text(file.read_text().replace("a key", "another"))
    assert (load_stack("local", file=file).folder / "id_ed25519").read_text() == "another\n"


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True)])
def test_keys_that_others_can_read_are_reported(
    file: Path, mode: int, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    file.chmod(mode)
    load_stack("local", file=file)
    assert ("chmod 600" in capsys.readouterr().err) == warned


@pytest.mark.parametrize("text", ["", "[]", '{"user_private_key": "[secret]"}'])
def test_an_unusable_file_is_refused_with_the_fix(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(StackError, match="--show-secrets"):
        load_stack("local", file=file)


def test_a_missing_file_is_refused_with_the_fix(file: Path) -> None:
    file.unlink()
    with pytest.raises(StackError, match=r"No such file.*--show-secrets"):
        load_stack("local", file=file)


def test_a_saved_file_contains_no_admin_key(stack: FakeStack, local_outputs: Cluster) -> None:
    saved = stack.root / "jobs.json"
    saved.touch(mode=0o644)
    save_for_jobs(load_stack("local"), saved)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert set(json.loads(saved.read_text())) == {"cluster", "user_private_key"}
    assert "nor this" not in saved.read_text()
    loaded = load_stack("local", file=saved)
    assert loaded.cluster == local_outputs
    assert not (loaded.folder / "id_ed25519_admin").exists()


def test_a_file_in_a_missing_folder_is_not_saved(stack: FakeStack) -> None:
    with pytest.raises(StackError, match="name a file in an existing folder"):
        save_for_jobs(load_stack("local"), stack.root / "missing" / "jobs.json")


def test_refresh_saves_the_file_for_job_users(stack: FakeStack) -> None:
    done = CliRunner().invoke(app, ["refresh", "--stack", "local", "--save", str(stack.root / "jobs.json")])
    assert done.exit_code == 0, done.output
    assert "yard nodes --outputs jobs.json" in done.output
    load_stack("local", file=stack.root / "jobs.json")
