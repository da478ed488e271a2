"""A stack's outputs from Pulumi's backend or from a file, their cache, and SSH connections, also through tunnels."""

from __future__ import annotations

import getpass
import json
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import yard.stack.load
from tests.offline.loopback_sshd import Sshd
from tests.trainyard.tunnel_programs import BASTION, IAP, TunnelPrograms
from tests.yard.conftest import HOST_KEY, FakeStack, outputs_file
from trainyard import checkout
from trainyard.errors import ContractError, RemoteError, StackError
from trainyard.outputs import Cluster, dumped
from yard.commands.cli import app
from yard.stack import pulumi
from yard.stack.load import forget, load_stack, save_for_jobs
from yard.stack.remote import Remote


def test_outputs_are_cached_for_a_state_and_backend(stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_stack("local") == load_stack("local")
    assert stack.pulumi.calls == ["stack output --json --show-secrets --non-interactive -s local"]
    stack.touch_state("changed")
    load_stack("local")
    assert len(stack.pulumi.calls) == 2
    load_stack("local", refresh=True)
    assert len(stack.pulumi.calls) == 3
    for number, url in enumerate(("s3://one", "s3://two"), start=4):
        monkeypatch.setenv("PULUMI_BACKEND_URL", url)
        load_stack("local")
        load_stack("local")
        assert len(stack.pulumi.calls) == number


def test_only_the_owner_reads_the_key(stack: FakeStack) -> None:
    folder = load_stack("local").folder
    assert folder == stack.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == dict.fromkeys(("config", "id_ed25519", "id_ed25519_admin", "known_hosts", "outputs.json"), 0o600)
    assert (folder / "id_ed25519").read_text() == "not a key\n"
    assert (folder / "id_ed25519_admin").read_text() == "nor this\n"
    kept = (folder / "outputs.json").read_text()
    assert "not a key" not in kept
    assert "nor this" not in kept
    names = ("yard-head", "yard-gpu-0", "yard-gpu-1")
    assert (folder / "known_hosts").read_text().splitlines() == [f"{name} {HOST_KEY}" for name in names]


def test_only_the_users_key_is_required(stack: FakeStack, local: Cluster) -> None:
    folder = load_stack("local").folder
    cluster = dumped(local)
    stack.export({"cluster": cluster, "user_private_key": "other"})
    load_stack("local")
    assert (folder / "id_ed25519").read_text() == "other\n"
    assert not (folder / "id_ed25519_admin").exists()
    stack.export({"cluster": cluster, "admin_private_key": "k"})
    with pytest.raises(StackError, match="no `user_private_key` output; run `pulumi up`"):
        load_stack("local", refresh=True)


def test_files_of_a_destroyed_stack_are_removed(stack: FakeStack) -> None:
    folder = load_stack("local").folder
    stack.export({})
    with pytest.raises(ContractError, match=r"stack local: .*`pulumi up`"):
        load_stack("local")
    assert list(folder.iterdir()) == []


def test_the_error_of_pulumi_is_reported(stack: FakeStack) -> None:
    stack.program("pulumi", "echo \"error: no stack named 'local' found\" >&2; echo more >&2; exit 255")
    with pytest.raises(StackError, match="no stack named 'local' found; deploy it"):
        load_stack("local")


@pytest.mark.parametrize("name", ["", "../up", "a b", "-s"])
def test_odd_stack_names_are_refused(name: str, stack: FakeStack) -> None:
    with pytest.raises(StackError, match="not a stack name"):
        load_stack(name)
    assert stack.pulumi.calls == []


def test_the_environment_of_set_up_is_read(stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    text = "# set-up\nexport A=1\nexport PATH=\"/x/bin:$PATH\" B='two words' # why\nC=3\nexport D=${A}$B\n"
    (stack.root / ".trainyard" / "env.sh").write_text(text)
    found = pulumi.environment()
    expected = {"A": "1", "PATH": "/x/bin:/usr/bin:/bin", "B": "two words", "D": "1two words"}
    assert expected.items() <= found.items()
    assert "C" not in found
    (stack.root / ".trainyard" / "env.sh").write_text("if\n")
    with pytest.raises(StackError, match="run `make setup` again"):
        load_stack("local")


def ssh_sees(stack: FakeStack, host: str) -> dict[str, str]:
    """Return the options that `ssh -G` prints for a host in the generated configuration."""
    config = load_stack("local").ssh_config
    said = subprocess.run(["ssh", "-F", str(config), "-G", host], capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in said.splitlines() if " " in line)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("yard-head", {"user": "trainer", "hostname": "127.0.0.1", "port": "22001"}),
        ("yard-head-admin", {"user": "ops", "hostname": "127.0.0.1", "port": "22001"}),
        ("yard-gpu-0", {"user": "trainer", "hostname": "127.0.0.1", "port": "22002"}),
        ("yard-gpu-1", {"user": "trainer", "hostname": "10.77.2.2", "port": "22", "proxyjump": "yard-head"}),
        ("yard-gpu-1-admin", {"user": "ops", "hostname": "10.77.2.2", "port": "22", "proxyjump": "yard-head"}),
    ],
)
def test_openssh_understands_the_configuration(
    host: str, expected: dict[str, str], stack: FakeStack, sockets: Path
) -> None:
    seen = ssh_sees(stack, host)
    assert {key: seen[key] for key in expected} == expected
    assert ("proxyjump" in seen) == ("proxyjump" in expected)
    assert seen["hostkeyalias"] == host.removesuffix("-admin")
    assert seen["stricthostkeychecking"] == "true"
    assert seen["userknownhostsfile"] == str(stack.folder / "known_hosts")
    key = "id_ed25519_admin" if expected["user"] == "ops" else "id_ed25519"
    assert seen["identityfile"] == str(stack.folder / key)
    assert Path(seen["controlpath"]).parent == sockets
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    # While ssh creates the socket, it appends a random suffix of 17 characters. The kernel's limit is 108.
    assert len(seen["controlpath"]) + 17 < 108


def test_a_home_with_a_long_path_shares_no_connection(stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yard.stack.load, "SOCKETS", stack.root / ("long" * 20))
    seen = ssh_sees(stack, "yard-head")
    assert seen["controlmaster"] == "false"
    assert "controlpath" not in seen


def test_a_proxy_is_reached_with_the_users_own_keys(stack: FakeStack, local: Cluster) -> None:
    outputs = dumped(local)
    outputs["head"]["proxy_jump"] = "me@203.0.113.9:2222"
    stack.export({"cluster": outputs, "user_private_key": "not a key", "admin_private_key": "nor this"})
    assert ssh_sees(stack, "yard-head")["proxycommand"] == "ssh -W [%h]:%p ssh://me@203.0.113.9:2222"
    assert ssh_sees(stack, "yard-gpu-1")["proxyjump"] == "yard-head"


@pytest.mark.parametrize(
    ("checkout_exists", "fix"), [(True, "run `make setup`"), (False, "for jobs, set TRAINYARD_OUTPUTS to the file")]
)
def test_missing_pulumi_has_a_fix_for_operators_and_job_users(
    monkeypatch: pytest.MonkeyPatch, checkout_exists: bool, fix: str
) -> None:
    monkeypatch.setattr(checkout, "exists", lambda: checkout_exists)
    with pytest.raises(StackError, match=f"pulumi is not on PATH. Fix: {fix}"):
        pulumi.run(["stack"], {"PATH": ""})


@pytest.fixture
def file(stack: FakeStack) -> Path:
    return outputs_file(stack.root / "given.json")


def test_a_file_replaces_the_backend(stack: FakeStack, file: Path, local: Cluster) -> None:
    loaded = load_stack("local", file=file)
    assert loaded.cluster == local
    assert loaded.folder != stack.folder
    assert (loaded.folder / "id_ed25519").read_text() == "a key\n"
    assert load_stack("local", file=file) == loaded
    file.write_text(file.read_text().replace("a key", "another"))
    assert (load_stack("local", file=file).folder / "id_ed25519").read_text() == "another\n"
    assert stack.pulumi.calls == []


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True)])
def test_keys_that_others_can_read_are_reported(
    file: Path, mode: int, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    file.chmod(mode)
    load_stack("local", file=file)
    assert ("chmod 600" in capsys.readouterr().err) == warned


@pytest.mark.parametrize("text", ["", "[]", '{"user_private_key": "[secret]"}', None])
def test_an_unusable_file_is_refused_with_the_fix(file: Path, text: str | None) -> None:
    file.unlink()
    if text is not None:
        file.write_text(text)
    with pytest.raises(StackError, match="--show-secrets"):
        load_stack("local", file=file)


def test_a_saved_file_contains_no_admin_key(stack: FakeStack, local: Cluster) -> None:
    saved = stack.root / "jobs.json"
    saved.touch(mode=0o644)
    save_for_jobs(load_stack("local"), saved)
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    assert set(json.loads(saved.read_text())) == {"cluster", "user_private_key"}
    assert "nor this" not in saved.read_text()
    loaded = load_stack("local", file=saved)
    assert loaded.cluster == local
    assert not (loaded.folder / "id_ed25519_admin").exists()
    with pytest.raises(StackError, match="name a file in an existing folder"):
        save_for_jobs(load_stack("local"), stack.root / "missing" / "jobs.json")


def test_refresh_saves_the_file_for_job_users(stack: FakeStack) -> None:
    done = CliRunner().invoke(app, ["refresh", "--stack", "local", "--save", str(stack.root / "jobs.json")])
    assert done.exit_code == 0, done.output
    assert "yard nodes --outputs jobs.json" in done.output
    load_stack("local", file=stack.root / "jobs.json")


@pytest.mark.parametrize("words", ["Host key verification failed.", "connect to host x port 1: Connection refused"])
def test_a_refused_connection_is_repeated_with_new_outputs(words: str, stack: FakeStack) -> None:
    remote = Remote(load_stack("local"))
    fails = f'[[ $(wc -l <"{stack.root}/programs/ssh.calls") -gt 1 ]] || {{ echo "{words}" >&2; exit 255; }}'
    ssh = stack.program("ssh", f"{fails}; echo here")
    assert remote.run("hostname") == "here\n"
    assert len(ssh.calls) == 2
    assert len(stack.pulumi.calls) == 2


def test_an_unreachable_head_is_reported_with_a_fix(stack: FakeStack) -> None:
    remote = Remote(load_stack("local"))
    ssh = stack.program("ssh", 'echo "Connection refused" >&2; exit 255')
    with pytest.raises(RemoteError, match=r"cannot reach yard-head \(127.0.0.1 port 22001\): Connection refused"):
        remote.run("hostname")
    assert len(ssh.calls) == 2
    with pytest.raises(RemoteError):
        remote.run("hostname")
    assert len(ssh.calls) == 3


@pytest.mark.parametrize(
    ("code", "words"), [(1, "sbatch: error: Batch job submission failed"), (255, "client_loop: send")]
)
def test_a_command_that_may_have_run_is_not_run_again(code: int, words: str, stack: FakeStack) -> None:
    remote = Remote(load_stack("local"))
    ssh = stack.program("ssh", f'echo "{words}" >&2; exit {code}')
    with pytest.raises(RemoteError, match=words):
        remote.run("sbatch")
    assert len(ssh.calls) == 1


def test_an_admin_login_without_the_key_is_refused(stack: FakeStack) -> None:
    saved = stack.root / "jobs.json"
    save_for_jobs(load_stack("local"), saved)
    remote = Remote(load_stack("local", file=saved))
    ssh = stack.program("ssh", "echo ok")
    assert remote.run("true") == "ok\n"
    with pytest.raises(RemoteError, match=r"jobs\.json contains no admin key"):
        remote.run("true", admin=True)
    assert len(ssh.calls) == 1


@pytest.fixture
def programs(tunnel_programs: TunnelPrograms, monkeypatch: pytest.MonkeyPatch) -> TunnelPrograms:
    monkeypatch.setenv("PATH", str(tunnel_programs.folder), prepend=":")
    return tunnel_programs


@pytest.fixture(params=[BASTION, IAP], ids=["bastion", "iap"])
def tunnelled(
    request: pytest.FixtureRequest, stack: FakeStack, sshd: Sshd, programs: TunnelPrograms, local: Cluster
) -> Iterator[FakeStack]:
    """A stack whose head is reachable only through a tunnel. The port in its outputs is closed."""
    outputs = dumped(local)
    user = getpass.getuser()
    outputs["head"] |= {"tunnel": request.param, "address": "127.0.0.1", "port": 1, "host_key": sshd.host_key}
    outputs["head"] |= {"user": user, "admin_user": user}
    stack.export({"cluster": outputs, "user_private_key": sshd.private_key})
    yield stack
    forget(stack.folder)


def ssh(stack: FakeStack, *words: str) -> subprocess.CompletedProcess[str]:
    argv = ["ssh", "-F", str(load_stack("local").ssh_config), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.engine
def test_ssh_and_yard_go_through_the_tunnel(tunnelled: FakeStack, programs: TunnelPrograms) -> None:
    done = ssh(tunnelled, "yard-head", "echo over there")
    assert done.stdout == "over there\n", done
    assert Remote(load_stack("local")).run("cat", stdin=b"x" * 300_000) == "x" * 300_000
    # The second command used the shared connection.
    assert len(programs.calls) == 1


@pytest.mark.engine
def test_a_wrong_host_key_is_refused_through_the_tunnel(tunnelled: FakeStack) -> None:
    folder = load_stack("local").folder
    known = (folder / "known_hosts").read_text()
    (folder / "known_hosts").write_text(known.replace("AAAAC3NzaC1lZDI1NTE5AAAAI", "AAAAC3NzaC1lZDI1NTE5AAAAIA")[:-2])
    done = ssh(tunnelled, "-o", "ControlPath=none", "yard-head", "true")
    assert done.returncode == 255
    assert "verification failed" in done.stderr


@pytest.mark.engine
def test_the_reason_of_a_failed_tunnel_is_reported(tunnelled: FakeStack, programs: TunnelPrograms) -> None:
    programs.behave("logged-out")
    with pytest.raises(RemoteError, match=r"cannot reach yard-head: no tunnel: .* Please run 'az login'"):
        Remote(load_stack("local")).run("true")
    done = CliRunner().invoke(app, ["ssh", "--", "true"])
    assert done.exit_code != 0
    assert "az login" in done.output + str(done.exception)


@pytest.mark.engine
def test_a_missing_command_line_is_named(tunnelled: FakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The real programs may be installed on this machine.
    few = tmp_path / "few"
    few.mkdir()
    for name in ("ssh", "pulumi", "bash", "env", "cat"):
        (few / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(few))
    with pytest.raises(RemoteError, match=r"no tunnel: cannot run (az|gcloud) .*install it"):
        Remote(load_stack("local")).run("true")
