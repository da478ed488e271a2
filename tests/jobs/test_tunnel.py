"""OpenSSH itself through a tunnel: a real sshd behind fake command lines, with the configuration that yard writes."""

from __future__ import annotations

import getpass
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from components.outputs import ClusterOutputs
from jobs.cli import app
from jobs.errors import RemoteError
from jobs.remote import Remote
from jobs.stack import forget, load_stack
from tests.jobs.conftest import FakeStack
from tests.offline.loopback_sshd import Sshd, new_server, running, sshd_binary
from tests.tunnel_programs import BASTION, IAP, TunnelPrograms

pytestmark = pytest.mark.engine


@pytest.fixture
def sshd() -> Iterator[Sshd]:
    """A running ssh server whose folder every user may pass through, as sshd wants it for its keys."""
    if not sshd_binary():
        pytest.skip("there is no sshd here (Debian: apt-get install openssh-server)")
    folder = Path(tempfile.mkdtemp(prefix="ty-tunnel-"))
    with running(new_server(folder)) as found:
        yield found
    shutil.rmtree(folder)


@pytest.fixture
def programs(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TunnelPrograms]:
    made = TunnelPrograms(tmp_path / "bin")
    made.install(sshd.port)
    monkeypatch.setenv("PATH", str(made.folder), prepend=":")
    yield made
    deadline = time.monotonic() + 20
    while made.running:
        assert time.monotonic() < deadline, "a tunnel was left running"
        time.sleep(0.05)


@pytest.fixture(params=[BASTION, IAP], ids=["bastion", "iap"])
def tunnelled(
    request: pytest.FixtureRequest,
    stack: FakeStack,
    sshd: Sshd,
    programs: TunnelPrograms,
    local_outputs: ClusterOutputs,
) -> Iterator[FakeStack]:
    """A stack whose head is reached through a tunnel alone; nothing listens on the port of its outputs."""
    outputs = local_outputs.model_dump(mode="json")
    user = getpass.getuser()
    outputs["head"] |= {
        "tunnel": request.param,
        "address": "127.0.0.1",
        "port": 1,
        "user": user,
        "admin_user": user,
        "host_key": sshd.host_key,
    }
    stack.export({"cluster": outputs, "ssh_private_key": sshd.private_key})
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
    # The second went over the shared connection.
    assert len(programs.calls) == 1


def test_yard_goes_through_the_tunnel(tunnelled: FakeStack) -> None:
    assert Remote(load_stack("local")).run("cat", stdin=b"x" * 300_000) == "x" * 300_000


def test_yard_ssh_reports_why_there_is_no_tunnel(tunnelled: FakeStack, programs: TunnelPrograms) -> None:
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


def test_why_there_is_no_tunnel_reaches_the_user(tunnelled: FakeStack, programs: TunnelPrograms) -> None:
    programs.behave("logged-out")
    with pytest.raises(RemoteError, match=r"cannot reach yard-head: no tunnel: .* Please run 'az login'"):
        Remote(load_stack("local")).run("true")


def test_a_missing_command_line_is_named(tunnelled: FakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # This machine may have the real ones.
    few = tmp_path / "few"
    few.mkdir()
    for name in ("ssh", "pulumi", "bash", "env", "cat"):
        (few / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(few))
    with pytest.raises(RemoteError, match=r"no tunnel: cannot run (az|gcloud) .*install it"):
        Remote(load_stack("local")).run("true")
