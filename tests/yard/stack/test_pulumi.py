"""The backend, the stack and the locks that yard uses are those of `pulumi` in the same shell."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.yard.checkout_root import use_root
from tests.yard.conftest import FakeStack
from trainyard import checkout
from trainyard.errors import StackError
from yard.commands.options import OutputsOption, StackOption
from yard.stack import pulumi
from yard.stack.load import load_stack
from yard.stack.pulumi import backend_folder, backend_url, clear_stale, is_chosen, selected_stack, state_file

VARIABLES = ("PULUMI_BACKEND_URL", "PULUMI_HOME", "PULUMI_STACK", "PULUMI_ACCESS_TOKEN", "PULUMI_CREDENTIALS_PATH")
PROJECT = "name: trainyard\nruntime: {name: python}\nstackConfigDir: stacks\n"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of a shell in a checkout, with an empty Pulumi home."""
    use_root(tmp_path / "checkout", monkeypatch)
    checkout.ROOT.mkdir()
    (checkout.ROOT / "Pulumi.yaml").write_text(PROJECT)
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return {**kept, "PULUMI_HOME": str(tmp_path / "home"), "PWD": str(checkout.ROOT)}


def log_in(shell: dict[str, str], url: str) -> None:
    home = Path(shell["PULUMI_HOME"])
    home.mkdir(exist_ok=True)
    (home / "credentials.json").write_text(json.dumps({"current": url}))


def add_backend_to_project(url: str) -> None:
    (checkout.ROOT / "Pulumi.yaml").write_text(f"{PROJECT}backend:\n  url: {url}\n")


def test_no_backend_is_in_use_before_a_login(shell: dict[str, str]) -> None:
    assert backend_url(shell) == ""
    assert not is_chosen(shell)


def test_a_variable_precedes_the_project_and_the_login(shell: dict[str, str]) -> None:
    log_in(shell, "azblob://login")
    assert backend_url(shell) == "azblob://login"
    add_backend_to_project("gs://project")
    assert backend_url(shell) == "gs://project"
    assert backend_url({**shell, "PULUMI_BACKEND_URL": "s3://variable"}) == "s3://variable"


def test_an_access_token_selects_pulumi_cloud(shell: dict[str, str]) -> None:
    assert backend_url({**shell, "PULUMI_ACCESS_TOKEN": "pul-x"}) == "https://api.pulumi.com"


def test_the_private_backend_is_not_the_users_choice(shell: dict[str, str]) -> None:
    private = f"file://{checkout.ROOT}/.trainyard/state"
    for url in (private, f"{private}?metadata=skip"):
        assert not is_chosen({**shell, "PULUMI_BACKEND_URL": url})


@pytest.mark.parametrize(
    ("url", "folder"),
    [
        ("file:///srv/state", "/srv/state"),
        ("file:///srv/state?no_tmp_dir=true", "/srv/state"),
        ("file://~", "/home/me"),
        ("file://~/states", "/home/me/states"),
        ("s3://bucket", None),
    ],
)
def test_folder_of_a_file_backend(
    url: str, folder: str | None, shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulumi, "_user_home", lambda: Path("/home/me"))
    assert backend_folder({**shell, "PULUMI_BACKEND_URL": url}) == (Path(folder) if folder else None)


@pytest.mark.parametrize("broken", ["[]", "{", '{"current": 5}'])
def test_damaged_credentials_are_no_error(broken: str, shell: dict[str, str]) -> None:
    log_in(shell, "")
    (Path(shell["PULUMI_HOME"]) / "credentials.json").write_text(broken)
    assert backend_url(shell) in {"", "5"}


ENV_SH = """export PULUMI_BACKEND_URL="file://{root}/.trainyard/state?metadata=skip"
export PULUMI_CONFIG_PASSPHRASE_FILE=/private ADDED=1
"""


@pytest.fixture
def set_up(shell: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A checkout after `make setup`, in a shell without env.sh."""
    for name in (*VARIABLES, "PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PULUMI_HOME", shell["PULUMI_HOME"])
    (checkout.ROOT / ".trainyard").mkdir()
    (checkout.ROOT / ".trainyard" / "env.sh").write_text(ENV_SH.format(root=checkout.ROOT))
    return shell


def test_yard_uses_the_private_backend_without_a_login(set_up: dict[str, str]) -> None:
    private = {
        "PULUMI_BACKEND_URL": f"file://{checkout.ROOT}/.trainyard/state?metadata=skip",
        "PULUMI_CONFIG_PASSPHRASE_FILE": "/private",
    }
    assert private.items() <= pulumi.environment().items()


def test_yard_uses_the_backend_of_a_login(set_up: dict[str, str]) -> None:
    log_in(set_up, "s3://team")
    found = pulumi.environment()
    assert backend_url(found) == "s3://team"
    assert "PULUMI_CONFIG_PASSPHRASE_FILE" not in found
    assert found["ADDED"] == "1"


def test_yard_uses_the_backend_of_a_variable(set_up: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    team = {"PULUMI_BACKEND_URL": "gs://team", "PULUMI_CONFIG_PASSPHRASE": "team"}
    for name, value in team.items():
        monkeypatch.setenv(name, value)
    assert team.items() <= pulumi.environment().items()


def test_cached_outputs_belong_to_one_backend(stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://one")
    load_stack("local")
    load_stack("local")
    assert len(stack.pulumi.calls) == 1
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://two")
    load_stack("local")
    assert len(stack.pulumi.calls) == 2


app = typer.Typer()


@app.command()
def show(stack: StackOption = "local", outputs: OutputsOption = None) -> None:
    typer.echo(f"{stack} {outputs}")


@pytest.fixture
def selected(shell: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell in which pulumi has selected the stack `big`."""
    monkeypatch.setenv("PULUMI_STACK", "organization/trainyard/big")
    monkeypatch.delenv("TRAINYARD_STACK", raising=False)
    monkeypatch.delenv("TRAINYARD_OUTPUTS", raising=False)


@pytest.mark.usefixtures("selected")
def test_an_option_and_a_variable_precede_the_selected_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CliRunner().invoke(app).stdout == "big None\n"
    monkeypatch.setenv("TRAINYARD_STACK", "mine")
    assert CliRunner().invoke(app).stdout == "mine None\n"
    assert CliRunner().invoke(app, ["--stack", "local"]).stdout == "local None\n"


@pytest.mark.usefixtures("selected")
def test_the_stack_is_local_if_none_is_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PULUMI_STACK")
    assert CliRunner().invoke(app).stdout == "local None\n"


@pytest.mark.usefixtures("selected")
def test_the_option_for_a_stack_overrides_an_outputs_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_OUTPUTS", "file.json")
    assert CliRunner().invoke(app).stdout == "big file.json\n"
    assert CliRunner().invoke(app, ["--stack", "x"]).stdout == "x None\n"
    assert CliRunner().invoke(app, ["--stack", "x", "--outputs", "f"]).stdout == "x f\n"


def pulumi_cli(shell: dict[str, str], *words: str) -> None:
    subprocess.run(["pulumi", *words, "--non-interactive"], env=shell, cwd=shell["PWD"], check=True, timeout=60)


@pytest.fixture
def logged_in(shell: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """A shell after `pulumi login` at a file backend, without a variable for the backend."""
    (tmp_path / "states").mkdir()
    variables = {**shell, "PULUMI_CONFIG_PASSPHRASE": "x", "PULUMI_SKIP_UPDATE_CHECK": "true"}
    pulumi_cli(variables, "login", f"file://{tmp_path}/states")
    return variables


@pytest.mark.engine
def test_the_stack_that_pulumi_selects_is_found(logged_in: dict[str, str], tmp_path: Path) -> None:
    pulumi_cli(logged_in, "stack", "init", "one")
    assert selected_stack(logged_in) == "one"
    pulumi_cli(logged_in, "stack", "init", "two")
    pulumi_cli(logged_in, "stack", "select", "one")
    assert selected_stack(logged_in) == "one"
    assert backend_url(logged_in) == f"file://{tmp_path}/states"
    for name in ("one", "organization/trainyard/two"):
        state = state_file(logged_in, name)
        assert state is not None
        assert state.is_file()


@pytest.mark.engine
def test_a_stack_selected_through_a_symbolic_link_is_found(logged_in: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(checkout.ROOT)
    shell = {**logged_in, "PWD": str(tmp_path / "link")}
    pulumi_cli(shell, "stack", "init", "linked")
    assert selected_stack(shell) == "linked"


@pytest.mark.engine
def test_pulumi_also_prefers_the_backend_of_the_project(logged_in: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    add_backend_to_project(f"file://{tmp_path}/other")
    pulumi_cli(logged_in, "stack", "init", "three")
    state = state_file(logged_in, "three")
    assert state == tmp_path / "other" / ".pulumi" / "stacks" / "trainyard" / "three.json"
    assert state.is_file()


def put_lock(backend: Path, pid: int, host: str | None = None) -> Path:
    """Write a lock file as the Pulumi CLI does."""
    lock = backend / ".pulumi" / "locks" / "organization" / "trainyard" / "local" / "0a1b.json"
    lock.parent.mkdir(parents=True)
    holder = {
        "pid": pid,
        "username": "u",
        "hostname": host or socket.gethostname(),
        "timestamp": "2026-01-02T03:04:05Z",
    }
    lock.write_text(json.dumps(holder))
    return lock


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_lock_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    pid = dead_pid()
    lock = put_lock(tmp_path, pid)
    assert clear_stale(tmp_path, "local") == [pid]
    assert not lock.exists()


def test_lock_is_removed_if_its_pid_is_another_program(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        lock = put_lock(tmp_path, process.pid)
        assert clear_stale(tmp_path, "local") == [process.pid]
        process.kill()
    assert not lock.exists()


def test_lock_of_a_live_pulumi_is_kept(tmp_path: Path) -> None:
    program = tmp_path / "pulumi"
    shutil.copy("/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        lock = put_lock(tmp_path, process.pid)
        with pytest.raises(StackError, match=rf"in use: pulumi process {process.pid} .*Fix: "):
            clear_stale(tmp_path, "local")
        process.kill()
    assert lock.exists()


def test_lock_of_another_machine_is_kept(tmp_path: Path) -> None:
    lock = put_lock(tmp_path, dead_pid(), host="elsewhere")
    with pytest.raises(StackError, match=r"on elsewhere since .*Fix: "):
        clear_stale(tmp_path, "local")
    assert lock.exists()


def test_unreadable_lock_is_reported(tmp_path: Path) -> None:
    lock = put_lock(tmp_path, 1)
    lock.write_text("{")
    with pytest.raises(StackError, match=str(lock)):
        clear_stale(tmp_path, "local")


def test_missing_backend_folder_has_no_locks(tmp_path: Path) -> None:
    assert clear_stale(tmp_path / "absent", "local") == []
