"""The tunnel under the real engine: commands run over ssh on a real server, through fake command lines."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.offline.cloud.stack import ROOT, TestStack, wait_until
from tests.offline.loopback_sshd import Sshd, free_port, new_server, running, sshd_binary
from tests.tunnel_programs import BASTION, TunnelPrograms

pytestmark = pytest.mark.engine

_PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from pulumi_command import remote
from components.platforms.base import Tunnel
from components.tunnel import opened, require

require(Tunnel(program="az", port={port}, option="cluster.platform.bastion_port"))
# An output of a resource, as the Bastion's id is: unknown until it exists.
pulumi.export("made", made("gcp:compute/network:Network", "net", autoCreateSubnetworks=False).id)
command = pulumi.Output.from_input({command!r})
connection = remote.ConnectionArgs(
    host=opened(command, {port}),
    port={port},
    user={user!r},
    private_key=Path({folder!r}, "user").read_text(),
    host_key=Path({folder!r}, "host.pub").read_text().strip(),
    dial_error_limit=3,
)
ran = remote.Command("ran", connection=connection, create={create!r})
after = pulumi.ResourceOptions(depends_on=[ran])
again = remote.Command("again", connection=connection, create="echo twice", opts=after)
pulumi.export("said", ran.stdout)
"""


@pytest.fixture
def sshd() -> Iterator[Sshd]:
    """A running ssh server."""
    if not sshd_binary():
        pytest.skip("there is no sshd here (Debian: apt-get install openssh-server)")
    folder = Path(tempfile.mkdtemp(prefix="ty-tunnel-"))
    with running(new_server(folder)) as found:
        yield found
    shutil.rmtree(folder)


class TunnelledStack:
    """A stack whose commands run through a tunnel."""

    def __init__(self, stack: TestStack, sshd: Sshd, programs: TunnelPrograms) -> None:
        self.stack, self.programs, self.sshd, self.port = stack, programs, sshd, free_port()
        stack.environment["PATH"] = f"{programs.folder}:{stack.environment['PATH']}"
        del stack.environment["TRAINYARD_OFFLINE_COMMANDS"]

    def write(self, create: str) -> None:
        """Set the command that runs through the tunnel."""
        user, folder = getpass.getuser(), str(self.sshd.folder)
        program = _PROGRAM.format(
            root=str(ROOT), port=self.port, user=user, folder=folder, create=create, command=BASTION
        )
        self.stack.write(program, raw=True)


@pytest.fixture
def tunnelled(stack: TestStack, sshd: Sshd, tmp_path: Path) -> Iterator[TunnelledStack]:
    programs = TunnelPrograms(tmp_path / "bin")
    programs.install(sshd.port)
    yield TunnelledStack(stack, sshd, programs)
    wait_until(lambda: not programs.running)


def test_up_opens_the_tunnel_and_ends_it(tunnelled: TunnelledStack) -> None:
    tunnelled.write("echo through")
    preview = tunnelled.stack.preview()
    assert preview.code == 0, preview
    assert tunnelled.programs.calls == []
    tunnelled.programs.behave("late=1")
    up = tunnelled.stack.up()
    assert up.code == 0, up
    assert tunnelled.stack.outputs()["said"] == "through"
    assert tunnelled.programs.running == []


def test_a_missing_login_ends_up_at_once(tunnelled: TunnelledStack) -> None:
    tunnelled.write("echo through")
    tunnelled.programs.behave("logged-out")
    began = time.monotonic()
    up = tunnelled.stack.up()
    assert up.code != 0
    assert "no tunnel to the head: az ended with exit code 1: ERROR: Please run 'az login'" in up.text, up
    assert "Traceback" not in up.text, up
    assert time.monotonic() - began < 60


def test_what_is_missing_here_is_reported_before_anything_is_made(tunnelled: TunnelledStack) -> None:
    tunnelled.write("echo through")
    with socket.create_server(("127.0.0.1", tunnelled.port)):
        up = tunnelled.stack.up()
    assert up.code != 0
    assert f"port {tunnelled.port} of this machine is taken" in up.text, up
    assert "Traceback" not in up.text, up
    (tunnelled.programs.folder / "az").unlink()
    if shutil.which("az") is None:
        up = tunnelled.stack.up()
        assert "`az` is not on PATH" in up.text, up
    assert tunnelled.stack.kinds == []


@pytest.mark.parametrize("how", ["kill -9", "Ctrl-C"])
def test_an_engine_that_ends_in_the_middle_leaves_no_tunnel(tunnelled: TunnelledStack, how: str) -> None:
    started = tunnelled.sshd.folder / "started"
    tunnelled.write(f"touch {started}; sleep 60")
    process = tunnelled.stack.start("up", "-s", "test", "--yes", "--skip-preview")
    wait_until(started.exists)
    assert tunnelled.programs.running
    if how == "kill -9":
        tunnelled.stack.kill(process)
    else:
        # A terminal sends it to every process of the foreground group; a second one does not wait for commands.
        for _ in range(2):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(1)
        process.communicate(timeout=60)
    wait_until(lambda: not tunnelled.programs.running)
