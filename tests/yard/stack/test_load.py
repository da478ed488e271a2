"""A stack's outputs, SSH connections, also through tunnels, `yard hosts scan`, `yard hosts forget` and `yard bake`."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from components.platforms.registry import Baking
from tests.components.platforms.recording import current_name, planned
from tests.offline.loopback_sshd import Sshd
from tests.trainyard.test_certificate import sign
from tests.trainyard.tunnel_programs import BASTION, IAP, TunnelPrograms
from tests.yard.conftest import HOST_KEY, FakeStack, MakeProgram, Program, outputs_file, printed, refused, yard
from trainyard import project
from trainyard.errors import ContractError, RemoteError, StackError
from trainyard.outputs import Cluster, dumped
from yard.stack import bake, pulumi
from yard.stack.hosts import forget_host, scan
from yard.stack.load import forget, load_stack, save_for_jobs
from yard.stack.remote import Remote
from yard.stack.workspace import stack_names


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
    assert (folder.parents[1] / ".gitignore").read_text() == "*\n"
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
    stack.program("pulumi", 'echo "error: no stack named $7 found" >&2; echo more >&2; exit 255')
    with pytest.raises(StackError, match=r"`pulumi stack select --create big && pulumi up -s big`, or select"):
        load_stack("big")
    with pytest.raises(StackError, match=r"no stack named local found\. Fix: create it with `pulumi stack select"):
        load_stack("local")
    (project.ROOT / "tools").mkdir()
    (project.ROOT / "tools" / "demo.py").touch()
    with pytest.raises(StackError, match=r"no stack named local found\. Fix: create it with `make demo`, or select"):
        load_stack("local")
    stack.program("pulumi", "echo 'error: incorrect passphrase' >&2; exit 255")
    with pytest.raises(StackError, match=r"incorrect passphrase\. You can select a different stack"):
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
    monkeypatch.setattr("yard.stack.load.SOCKETS", stack.root / ("long" * 20))
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
    monkeypatch.setattr(project, "exists", lambda: checkout_exists)
    with pytest.raises(StackError, match=f"pulumi is not on PATH. Fix: {fix}"):
        pulumi.run(["stack"], {"PATH": ""})


@pytest.fixture
def file(stack: FakeStack) -> Path:
    return outputs_file(stack.root / "given.json")


def deploy_certificate(stack: FakeStack, local: Cluster, folder: Path, validity: str) -> None:
    """Deploy the stack with an admin certificate that has this validity."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    text = sign(folder, "ed25519", validity).read_text()
    keys = {"user_private_key": "not a key", "admin_private_key": "nor this", "admin_certificate": text}
    stack.export({"cluster": dumped(local), **keys})


def test_ssh_finds_the_admins_certificate(stack: FakeStack, local: Cluster, tmp_path: Path) -> None:
    deploy_certificate(stack, local, tmp_path / "sign", "-1d:+1d")
    remote = Remote(load_stack("local"))
    # ssh looks for this file, so the configuration does not name it (ssh_config(5), CertificateFile).
    assert (stack.folder / "id_ed25519_admin-cert.pub").read_text().startswith("ssh-ed25519-cert-v01@openssh.com ")
    assert remote.host(None, admin=True) == "yard-head-admin"
    forget(stack.folder)
    assert list(stack.folder.iterdir()) == []


def test_an_expired_admin_certificate_is_reported(stack: FakeStack, local: Cluster, tmp_path: Path) -> None:
    deploy_certificate(stack, local, tmp_path / "sign", "20200101:20200304")
    ssh = stack.program("ssh", "exit 0")
    message = r"id_ed25519_admin-cert.pub expired on 2020-03-0.*`yard rotate admin --stack local` or `pulumi up`"
    remote = Remote(load_stack("local"))
    with pytest.raises(RemoteError, match=message):
        remote.host("yard-gpu-0", admin=True)
    assert "expired on 2020" in refused("ssh", "--admin")
    assert ssh.calls == []
    assert remote.run("true") == ""
    # Another operator has renewed it.
    remote = Remote(load_stack("local"))
    deploy_certificate(stack, local, tmp_path / "sign", "-1d:+1d")
    assert remote.host(None, admin=True) == "yard-head-admin"


def test_a_persons_expired_certificate_is_reported(
    stack: FakeStack, local: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.export({"cluster": dumped(replace(local, users={"ann": "user"}))})
    monkeypatch.setenv("TRAINYARD_USER", "ann")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    sign(tmp_path / "home" / ".ssh", "ed25519", "20200101:20200304")
    stack.program("ssh", "echo 'ann@127.0.0.1: Permission denied (publickey).' >&2; exit 255")
    with pytest.raises(RemoteError, match=r"key-cert.pub expired on 2020-03-0.*let your certificate authority sign"):
        Remote(load_stack("local")).run("true")


def test_a_key_that_ssh_does_not_offer_has_a_fix(
    stack: FakeStack, local: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.export({"cluster": dumped(replace(local, users={"ann": "user"}))})
    monkeypatch.setenv("TRAINYARD_USER", "ann")
    monkeypatch.setenv("HOME", str(tmp_path))
    stack.program("ssh", "echo 'ann@127.0.0.1: Permission denied (publickey).' >&2; exit 255")
    with pytest.raises(
        RemoteError, match=r"^yard-head accepts none of your SSH keys: ann@.* Fix: run `export TRAINYARD_KEY"
    ):
        Remote(load_stack("local")).run("true")


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
    code, out, err = yard("refresh", "--stack", "local", "--save", str(stack.root / "jobs.json"))
    assert (code, "yard ssh --outputs jobs.json" in out + err) == (0, True)
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
    assert "az login" in refused("ssh", "--", "true")


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


@pytest.fixture
def key(tmp_path: Path) -> str:
    file = tmp_path / "host"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    return " ".join(file.with_suffix(".pub").read_text().split()[:2])


def test_scan_returns_the_preferred_key_and_fingerprint(program: MakeProgram, key: str, tmp_path: Path) -> None:
    asked = program("ssh-keyscan", f"echo '# 203.0.113.10:2222 SSH-2.0'; echo 'x ssh-rsa AAAA'; echo 'x {key}'")
    shown = scan("203.0.113.10:2222")
    [call] = asked.calls
    assert call.endswith("-p 2222 203.0.113.10")
    assert shown.host_key == key
    printed = subprocess.run(["ssh-keygen", "-lf", f"{tmp_path}/host.pub"], check=True, capture_output=True, text=True)
    assert shown.fingerprint == printed.stdout.split()[1]
    assert shown.file == "/etc/ssh/ssh_host_ed25519_key.pub"


def test_scan_through_another_host_runs_there(program: MakeProgram, key: str) -> None:
    ssh = program("ssh", f"echo 'x {key}'")
    assert scan("10.0.0.7", through="ubuntu@203.0.113.10").host_key == key
    assert ssh.calls[0].startswith("-o BatchMode=yes ubuntu@203.0.113.10 ssh-keyscan")


def test_scan_reports_a_silent_host_and_a_bad_address(program: MakeProgram) -> None:
    program("ssh-keyscan", "exit 1")
    with pytest.raises(RemoteError, match=r"no sshd answers at 203\.0\.113\.10\. Fix: "):
        scan("203.0.113.10")
    with pytest.raises(RemoteError, match="is not an address"):
        scan("-oProxyCommand=x")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'ubuntu@203.0.113.10: Permission denied (publickey).' >&2; exit 255", "Permission denied"),
        ("echo 'bash: ssh-keyscan: command not found' >&2; exit 127", "ssh-keyscan: command not found"),
    ],
)
def test_scan_reports_that_the_other_host_cannot_scan(program: MakeProgram, script: str, reason: str) -> None:
    program("ssh", script)
    with pytest.raises(RemoteError, match=rf"^cannot scan 10\.0\.0\.7 from ubuntu@203\.0\.113\.10: .*{reason}"):
        scan("10.0.0.7", through="ubuntu@203.0.113.10")


def urn(name: str) -> str:
    return f"urn:pulumi:s::trainyard::a$command:remote:Command::{name}"


@pytest.fixture
def fake_pulumi(program: MakeProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A fake pulumi with two hosts in its state. One host name is a suffix of the other."""
    # After set-up, a checkout contains a pulumi that takes precedence over the one on PATH.
    monkeypatch.setattr("trainyard.project.ROOT", tmp_path)
    names = ["c-hosts-node2-survey", "c-hosts-my-node2-lease", "c-hosts-node2-lease", "c-hosts-node2-files"]
    kind, parent = "command:remote:Command", "urn:pulumi:s::trainyard::a::c-hosts"
    resources = [{"urn": urn(name), "type": kind, "parent": parent} for name in names]
    state = json.dumps({"deployment": {"resources": resources}})
    fails = "[[ $3 != *my-node2* ]] || { echo 'others depend on it' >&2; exit 1; }"
    return program("pulumi", f"if [[ $1 == stack ]]; then echo '{state}'; else {fails}; fi")


def test_only_the_lease_of_that_host_is_forgotten(fake_pulumi: Program) -> None:
    forget_host("s", "node2")
    lease = urn("c-hosts-node2-lease")
    assert fake_pulumi.calls == ["stack export -s s", f"state delete {lease} -s s --yes --non-interactive"]
    with pytest.raises(StackError, match=r"has no host node3; its hosts: my-node2, node2$"):
        forget_host("s", "node3")
    with pytest.raises(StackError, match="others depend on it"):
        forget_host("s", "my-node2")


@pytest.mark.parametrize("stack", [name for name in stack_names() if not name.startswith(("baremetal", "lambda"))])
def test_dry_run_prints_the_name_and_builds_nothing(stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bake, "bake", lambda *_, **__: pytest.fail("built"))
    name, dry_run = current_name(planned(stack, {}).plan), ("bake", "--stack", stack, "--dry-run")
    assert yard(*dry_run) == (0, f"{name}\n", "")
    assert json.loads(printed(*dry_run, "--json")) == {"version": 1, "name": name, "baked_image": None}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_bake_with_exit_code_130(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    request = bake.request_of("local")
    cleaned: list[bool] = []

    def here(*_: object) -> str:
        try:
            os.kill(os.getpid(), number)
            return "no signal"
        finally:
            # A second signal does not interrupt the removal of the builder.
            os.kill(os.getpid(), number)
            cleaned.append(True)

    baking = Baking(base=request.baking.base, here=here)
    monkeypatch.setattr(bake, "request_of", lambda _: replace(request, baking=baking))
    before = signal.getsignal(number)
    assert yard("bake")[0] == 130
    assert cleaned == [True]
    assert signal.getsignal(number) is before


def test_the_stack_file_of_a_qualified_stack_is_found() -> None:
    assert bake.request_of("acme/trainyard/local") == bake.request_of("local")


def test_images_of_hosts_are_refused_with_the_reason() -> None:
    assert "the platform uses existing hosts" in refused("bake", "--stack", "lambda-a6000")


def test_json_needs_dry_run_in_a_cloud() -> None:
    code, _, err = yard("bake", "--stack", "azure-a100", "--json")
    assert (code, "--dry-run" in err) == (2, True)
