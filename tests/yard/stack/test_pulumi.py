"""Backends, selected stacks, locks and processes of pulumi, and the copies of stack files that it uses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from tests.conftest import ROOT
from tests.integration.project import alive
from tests.yard.conftest import use_root, wait_until
from trainyard import project
from trainyard.errors import StackError
from yard.commands.options import OutputsOption, StackOption
from yard.stack import pulumi, workspace
from yard.stack.pulumi import (
    backend_folder,
    backend_url,
    clear_stale,
    is_chosen,
    run_pulumi,
    selected_stack,
    session_members,
    state_file,
)

VARIABLES = ("PULUMI_BACKEND_URL", "PULUMI_HOME", "PULUMI_STACK", "PULUMI_ACCESS_TOKEN", "PULUMI_CREDENTIALS_PATH")
PROJECT = "name: trainyard\nruntime: {name: python}\nstackConfigDir: stacks\n"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of a shell in a checkout, with an empty Pulumi home."""
    use_root(tmp_path / "checkout", monkeypatch)
    project.ROOT.mkdir()
    (project.ROOT / "Pulumi.yaml").write_text(PROJECT)
    kept = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return {**kept, "PULUMI_HOME": str(tmp_path / "home"), "PWD": str(project.ROOT)}


def log_in(shell: dict[str, str], url: str) -> None:
    home = Path(shell["PULUMI_HOME"])
    home.mkdir(exist_ok=True)
    (home / "credentials.json").write_text(json.dumps({"current": url}))


def add_backend_to_project(url: str) -> None:
    (project.ROOT / "Pulumi.yaml").write_text(f"{PROJECT}backend:\n  url: {url}\n")


@pytest.mark.parametrize(
    ("login", "project", "variables", "url"),
    [
        ("", "", {}, ""),
        ("azblob://login", "", {}, "azblob://login"),
        ("azblob://login", "gs://project", {}, "gs://project"),
        ("azblob://login", "gs://project", {"PULUMI_BACKEND_URL": "s3://variable"}, "s3://variable"),
        ("", "", {"PULUMI_ACCESS_TOKEN": "pul-x"}, "https://api.pulumi.com"),
    ],
)
def test_a_variable_precedes_the_project_and_the_login(
    login: str, project: str, variables: dict[str, str], url: str, shell: dict[str, str]
) -> None:
    if login:
        log_in(shell, login)
    if project:
        add_backend_to_project(project)
    assert backend_url({**shell, **variables}) == url
    assert is_chosen({**shell, **variables}) is bool(url)


def test_the_private_backend_is_not_the_users_choice(shell: dict[str, str]) -> None:
    private = f"file://{project.ROOT}/.trainyard/state"
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
    (project.ROOT / ".trainyard").mkdir()
    (project.ROOT / ".trainyard" / "env.sh").write_text(ENV_SH.format(root=project.ROOT))
    return shell


def test_yard_uses_the_private_backend_without_a_login(set_up: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{project.ROOT}/.trainyard/state?metadata=skip"
    private = {"PULUMI_BACKEND_URL": url, "PULUMI_CONFIG_PASSPHRASE_FILE": "/private"}
    assert private.items() <= pulumi.environment().items()
    log_in(set_up, "s3://team")
    found = pulumi.environment()
    assert backend_url(found) == "s3://team"
    assert "PULUMI_CONFIG_PASSPHRASE_FILE" not in found
    assert found["ADDED"] == "1"
    team = {"PULUMI_BACKEND_URL": "gs://team", "PULUMI_CONFIG_PASSPHRASE": "team"}
    for name, value in team.items():
        monkeypatch.setenv(name, value)
    assert team.items() <= pulumi.environment().items()


app = typer.Typer()


@app.command()
def show(stack: StackOption = "local", outputs: OutputsOption = None) -> None:
    typer.echo(f"{stack} {outputs}")


@pytest.mark.parametrize(
    ("variables", "words", "printed"),
    [
        ({}, [], "big None"),
        ({"TRAINYARD_STACK": "mine"}, [], "mine None"),
        ({"TRAINYARD_STACK": "mine"}, ["--stack", "local"], "local None"),
        ({"PULUMI_STACK": ""}, [], "local None"),
        # The option for a stack overrides a variable for outputs.
        ({"TRAINYARD_OUTPUTS": "file.json"}, [], "big file.json"),
        ({"TRAINYARD_OUTPUTS": "file.json"}, ["--stack", "x"], "x None"),
        ({"TRAINYARD_OUTPUTS": "file.json"}, ["--stack", "x", "--outputs", "f"], "x f"),
    ],
)
@pytest.mark.usefixtures("shell")
def test_an_option_and_a_variable_precede_the_selected_stack(
    variables: dict[str, str], words: list[str], printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRAINYARD_STACK", "TRAINYARD_OUTPUTS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PULUMI_STACK": "organization/trainyard/big", **variables}.items():
        monkeypatch.setenv(name, value)
    assert CliRunner().invoke(app, words).stdout == f"{printed}\n"


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
    (tmp_path / "link").symlink_to(project.ROOT)
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


@pytest.mark.engine
def test_the_state_is_that_of_the_projects_name(logged_in: dict[str, str]) -> None:
    (project.ROOT / "Pulumi.yaml").write_text(PROJECT.replace("trainyard", '"mine"  # a comment'))
    pulumi_cli(logged_in, "stack", "init", "four")
    assert selected_stack(logged_in) == "four"
    state = state_file(logged_in, "four")
    assert state is not None
    assert state.parts[-2:] == ("mine", "four.json")
    assert state.is_file()


def put_lock(backend: Path, pid: int, host: str | None = None) -> Path:
    lock = backend / ".pulumi" / "locks" / "organization" / "trainyard" / "local" / "0a1b.json"
    lock.parent.mkdir(parents=True)
    holder = {"pid": pid, "username": "u", "hostname": host or socket.gethostname(), "timestamp": "2026-01-02T03:04Z"}
    lock.write_text(json.dumps(holder))
    return lock


@pytest.mark.parametrize(
    ("program", "host", "error"),
    [
        (None, None, None),
        ("other", None, None),  # another program has the id of the process that has ended
        ("pulumi", None, r"in use: pulumi process \d+ .*Fix: "),
        (None, "elsewhere", r"on elsewhere since .*Fix: "),
    ],
)
def test_only_locks_of_ended_processes_are_removed(
    program: str | None, host: str | None, error: str | None, tmp_path: Path
) -> None:
    shutil.copy("/bin/sleep", tmp_path / (program or "ended"))
    with subprocess.Popen([tmp_path / (program or "ended"), "60" if program else "0"]) as process:
        if program is None:
            process.wait()
        lock = put_lock(tmp_path, process.pid, host)
        try:
            if error is None:
                assert clear_stale(tmp_path, "local") == [process.pid]
            else:
                with pytest.raises(StackError, match=error):
                    clear_stale(tmp_path, "local")
        finally:
            process.kill()
    assert lock.exists() is (error is not None)


def test_unreadable_and_missing_locks(tmp_path: Path) -> None:
    assert clear_stale(tmp_path, "local") == []
    lock = put_lock(tmp_path, 1)
    lock.write_text("{")
    with pytest.raises(StackError, match=str(lock)):
        clear_stale(tmp_path, "local")


DRIVER = """
import os, sys
from yard.stack.pulumi import run_pulumi
sys.exit(run_pulumi(sys.argv[1:], os.environ))
"""

PULUMI_THAT_NOTES = """
import pathlib, signal, sys, time
folder, noted = pathlib.Path(sys.argv[1]), []
def note(number, frame):
    noted.append(number)
    (folder / "notes").write_text("i\\n" * len(noted))
    if len(noted) == 2:
        sys.exit(3)
signal.signal(signal.SIGINT, note)
(folder / "ready").write_text("\\n")
for _ in range(600):  # ends after 30 s if the test fails
    time.sleep(0.05)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment whose `pulumi` is bash, so the tests pass the arguments `-c SCRIPT`."""
    (tmp_path / "pulumi").symlink_to("/bin/bash")
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.fixture
def driven(environment: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs a fake pulumi, which logs interrupts and exits after the second one."""
    script = f"exec {sys.executable} -c '{PULUMI_THAT_NOTES}' {tmp_path}"
    process = subprocess.Popen([sys.executable, "-c", DRIVER, "-c", script], env=environment)
    wait_for(tmp_path / "ready")
    yield process
    process.kill()
    process.wait()


def wait_for(file: Path) -> None:
    wait_until(lambda: file.exists() and file.read_text().endswith("\n"))


@pytest.mark.engine
@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -KILL $$", 128 + signal.SIGKILL)])
def test_exit_code_of_pulumi_is_returned(script: str, code: int, environment: dict[str, str]) -> None:
    assert run_pulumi(["-c", script], environment) == code


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_is_forwarded_as_one_interrupt(
    driven: subprocess.Popen[bytes], tmp_path: Path, number: signal.Signals
) -> None:
    driven.send_signal(number)
    wait_for(tmp_path / "notes")
    assert driven.poll() is None, "the first interrupt must let pulumi finish"
    driven.send_signal(signal.SIGINT)
    assert driven.wait(20) == 3
    assert (tmp_path / "notes").read_text() == "i\ni\n"


@pytest.mark.engine
def test_plugins_of_a_killed_pulumi_are_ended(environment: dict[str, str], tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.pid"
    run_pulumi(["-c", f"sleep 300 & echo $! >{plugin}; echo $$ >{plugin}.session; kill -KILL $$"], environment)
    assert session_members(int(Path(f"{plugin}.session").read_text())) == []
    assert not alive(int(plugin.read_text()))


@pytest.mark.engine
def test_processes_outside_the_session_keep_running(environment: dict[str, str], tmp_path: Path) -> None:
    note = tmp_path / "machine.pid"
    run_pulumi(
        ["-c", f"setsid bash -c 'echo $$ >{note}; exec sleep 300' & while [[ ! -s {note} ]]; do :; done"], environment
    )
    pid = int(note.read_text())
    os.kill(pid, 0)
    os.kill(pid, signal.SIGKILL)


def test_offline_environment_hides_the_real_backend(tmp_path: Path) -> None:
    home = {"PULUMI_HOME": "/home/me/.pulumi", "PULUMI_CONFIG_PASSPHRASE_FILE": "/home/me/passphrase"}
    online = {"PULUMI_BACKEND_URL": "s3://team", "PATH": "/bin", **home}
    found = workspace.simulated_environment(online, tmp_path)
    assert found["PULUMI_BACKEND_URL"] == f"file://{tmp_path}/state?metadata=skip"
    assert found["PULUMI_HOME"].startswith(str(tmp_path))
    assert "PULUMI_CONFIG_PASSPHRASE_FILE" not in found
    programs = ROOT / "offline" / "programs"
    assert found["PATH"] == f"{programs / 'recorded'}:{programs}:/bin"
    booted = workspace.simulated_environment(online, tmp_path, boots=True)
    assert booted["PATH"] == f"{programs}:/bin"  # ssh connects to the machines
    assert "TRAINYARD_OFFLINE_COMMANDS" not in booted
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


@pytest.fixture
def stack_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the stack file of an empty project with one stack, `local`."""
    monkeypatch.setattr("trainyard.project.ROOT", tmp_path)
    (tmp_path / "Pulumi.yaml").write_text(PROJECT)
    (tmp_path / "stacks").mkdir()
    file = tmp_path / "stacks" / "Pulumi.local.yaml"
    file.write_text(COMMITTED)
    return file


COMMITTED = "# why two\nconfig:\n  trainyard:cluster: {name: yard}\n"


@pytest.mark.parametrize(
    ("platform", "refused"),
    [
        ("{provider: azure}", False),
        ("{provider: gcp}", False),
        ("{provider: local}", True),
        ("{provider: hosts}", True),
        ("azure", False),  # the Pulumi program reports the problem
    ],
)
def test_platforms_with_real_machines_are_refused(stack_file: Path, platform: str, refused: bool) -> None:
    stack_file.write_text(f"config: {{trainyard:cluster: {{platform: {platform}}}}}\n")
    if not refused:
        workspace.refuse_real_machines("local")
        return
    with pytest.raises(StackError, match=r"platform '\w+' uses real machines. Fix: omit --offline"):
        workspace.refuse_real_machines("local")


OWN_SECRETS = "secretsprovider: passphrase\nencryptionsalt: v1:own\n"
ENCRYPTED = "  gcp:credentials:\n    secure: v1:abc\n  gcp:project: mine\n"


@pytest.mark.parametrize(
    ("committed", "with_secrets", "salt", "config"),
    [
        (COMMITTED, True, "v1:abc=:v1:def==", {}),
        # `pulumi config set --secret` encrypts with the salt from the committed file, if the file contains one.
        (COMMITTED + "encryptionsalt: v1:own\n", True, "v1:own", {}),
        # A simulated backend has another passphrase than the user, so it cannot read the user's secrets.
        (COMMITTED + ENCRYPTED + OWN_SECRETS, False, "v1:abc=:v1:def==", {"gcp:project": "mine"}),
    ],
)
def test_the_copy_has_one_salt_and_the_committed_text(
    stack_file: Path, committed: str, with_secrets: bool, salt: str, config: dict[str, str]
) -> None:
    stack_file.write_text(committed)
    copy = workspace.copy_of("local")
    copy.parent.mkdir(parents=True)
    copy.write_text("config: {old: text}\nencryptionsalt: v1:abc=:v1:def==\n")
    assert workspace.refresh_copy("local", with_secrets=with_secrets) == copy
    assert copy.read_text().startswith(COMMITTED)
    whole = {"config": {"trainyard:cluster": {"name": "yard"}, **config}, "encryptionsalt": salt}
    assert yaml.safe_load(copy.read_text()) == whole
    assert copy.read_text().count("encryptionsalt") == 1
    assert stack_file.read_text() == committed


@pytest.mark.parametrize("content", [b"\xff\xfe\x00garbage", None], ids=["not UTF-8", "a folder"])
def test_unreadable_file_is_reported(stack_file: Path, content: bytes | None) -> None:
    if content is not None:
        stack_file.write_bytes(content)
    else:
        stack_file.unlink()
        stack_file.mkdir()
    with pytest.raises(StackError, match=r"stacks.* cannot be read: .* Fix: write it as UTF-8 text"):
        workspace.refresh_copy("local")


@pytest.mark.parametrize("text", ["config: " + "[" * 3000 + "]" * 3000, "config: ["], ids=["deep", "open"])
def test_invalid_yaml_is_reported_by_pulumi(stack_file: Path, text: str) -> None:
    stack_file.write_text(text)
    assert workspace.refresh_copy("local").read_text() == text + "\n"


def test_error_for_an_unknown_stack_lists_the_known_stacks(stack_file: Path) -> None:
    stack_file.with_name("Pulumi.azure-h100.yaml").write_text("config: {}\n")
    with pytest.raises(StackError, match=r"no stack 'loca'.*one of azure-h100, local"):
        workspace.refresh_copy("loca")
