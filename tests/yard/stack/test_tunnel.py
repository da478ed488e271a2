"""OpenSSH connections through a tunnel, with a real sshd, fake cloud CLIs and yard's SSH configuration."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.offline.loopback_sshd import Sshd
from tests.trainyard.tunnel_programs import BASTION, IAP, TunnelPrograms
from tests.yard.conftest import FakeStack
from trainyard.errors import RemoteError
from trainyard.outputs import Cluster, dumped
from yard.commands.cli import app
from yard.stack.load import forget, load_stack
from yard.stack.remote import Remote

pytestmark = pytest.mark.engine


@pytest.fixture
def programs(tunnel_programs: TunnelPrograms, monkeypatch: pytest.MonkeyPatch) -> TunnelPrograms:
    monkeypatch.setenv("PATH", str(tunnel_programs.folder), prepend=":")
    return tunnel_programs


@pytest.fixture(params=[BASTION, IAP], ids=["bastion", "iap"])
def tunnelled(
    request: pytest.FixtureRequest,
    stack: FakeStack,
    sshd: Sshd,
    programs: TunnelPrograms,
    local_outputs: Cluster,
) -> Iterator[FakeStack]:
    """A stack whose head is reachable only through a tunnel. The port in its outputs is closed."""
    outputs = dumped(local_outputs)
    user = getpass.getuser()
    outputs["head"] |= {
        "tunnel": request.param,
        "address": "127.0.0.1",
        "port": 1,
        "user": user,
        "admin_user": user,
        "host_key": sshd.host_key,
    }
    stack.export({"cluster": outputs, "user_private_key": sshd.private_key})
    stack.touch_state("a tunnel")
    yield stack
    forget(stack.folder)


def ssh(stack: FakeStack, *words: str) -> subprocess.CompletedProcess[str]:
    argv = ["ssh", "-F", str(load_stack("local").ssh_config), *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_plain_ssh_goes_through_the_tunnel(tunnelled: FakeStack, programs: TunnelPrograms) -> None:
    for _ in range(2):
        done = ssh(tunnelled, "yard-head", "echo over there")
        assert done.stdout == "over there\n", done
    # The second command used the shared connection.
    assert len(programs.calls) == 1


def test_yard_goes_through_the_tunnel(tunnelled: FakeStack) -> None:
    assert Remote(load_stack("local")).run("cat", stdin=b"x" * 300_000) == "x" * 300_000


def test_yard_ssh_reports_a_failed_tunnel(tunnelled: FakeStack, programs: TunnelPrograms) -> None:
    programs.behave("logged-out")
    done = CliRunner().invoke(app, ["ssh", "--", "true"])
    assert done.exit_code != 0
    assert "az login" in done.output + str(done.exception)


def test_a_wrong_host_key_is_refused_through_the_tunnel(tunnelled: FakeStack) -> None:
    folder = load_stack("local").folder
    known = (folder / "known_hosts").read_text()
    (folder / "known_hosts").write_text(known.replace("AAAAC3NzaC1lZDI1NTE5AAAAI", "AAAAC3NzaC1lZDI1NTE5AAAAIA")[:-2])
    done = ssh(tunnelled, "-o", "ControlPath=none", "yard-head", "true")
    assert done.returncode == 255
    assert "verification failed" in done.stderr


def test_the_reason_of_a_failed_tunnel_is_reported(tunnelled: FakeStack, programs: TunnelPrograms) -> None:
    programs.behave("logged-out")
    with pytest.raises(RemoteError, match=r"cannot reach yard-head: no tunnel: .* Please run 'az login'"):
        Remote(load_stack("local")).run("true")


def test_a_missing_command_line_is_named(tunnelled: FakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The real programs may be installed on this machine.
    few = tmp_path / "few"
    few.mkdir()
    for name in ("ssh", "pulumi", "bash", "env", "cat"):
        (few / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(few))
    with pytest.raises(RemoteError, match=r"no tunnel: cannot run (az|gcloud) .*install it"):
        Remote(load_stack("local")).run("true")
