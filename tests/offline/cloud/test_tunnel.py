"""Tunnels in the real engine: remote commands run on a real sshd through fake `az` and `gcloud` programs."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import time

import pytest

from tests.offline.cloud.stack import ROOT, TestStack, wait_until
from tests.offline.loopback_sshd import Sshd, free_port
from tests.trainyard.tunnel_programs import BASTION, TunnelPrograms

pytestmark = pytest.mark.engine

_PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from pulumi_command import remote
from components.platforms.registry import Tunnel
from components.cluster.tunnel import open_tunnel, require_tunnel

require_tunnel(Tunnel(program="az", port={port}, option="cluster.platform.bastion_port"))
# An output of a resource, as the Bastion's id is: unknown until it exists.
pulumi.export("made", made("gcp:compute/network:Network", "net", autoCreateSubnetworks=False).id)
command = pulumi.Output.from_input({command!r})
connection = remote.ConnectionArgs(
    host=open_tunnel(command, {port}),
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


class TunnelledStack:
    def __init__(self, stack: TestStack, sshd: Sshd, programs: TunnelPrograms) -> None:
        self.stack, self.programs, self.sshd, self.port = stack, programs, sshd, free_port()
        # The first two folders contain the simulated programs.
        others = stack.environment["PATH"].split(":", 2)[2]
        stack.environment["PATH"] = f"{programs.folder}:{others}"
        del stack.environment["TRAINYARD_OFFLINE_COMMANDS"]

    def write(self, create: str) -> None:
        user, folder = getpass.getuser(), str(self.sshd.folder)
        program = _PROGRAM.format(
            root=str(ROOT), port=self.port, user=user, folder=folder, create=create, command=BASTION
        )
        self.stack.write(program, raw=True)


@pytest.fixture
def tunnelled(stack: TestStack, sshd: Sshd, tunnel_programs: TunnelPrograms) -> TunnelledStack:
    return TunnelledStack(stack, sshd, tunnel_programs)


def test_up_opens_the_tunnel_and_ends_it(tunnelled: TunnelledStack) -> None:
    tunnelled.write("echo through")
    tunnelled.stack.preview().passed()
    assert tunnelled.programs.calls == []
    tunnelled.programs.behave("logged-out")
    began = time.monotonic()
    failed = tunnelled.stack.up()
    assert "no tunnel to the head: az ended with exit code 1: ERROR: Please run 'az login'" in failed.text, failed
    assert "Traceback" not in failed.text, failed
    assert time.monotonic() - began < 60
    tunnelled.programs.behave("late=1")
    tunnelled.stack.up().passed()
    assert tunnelled.stack.outputs()["said"] == "through"
    assert tunnelled.programs.running == []


def test_a_used_port_or_a_missing_program_prevents_all_changes(tunnelled: TunnelledStack) -> None:
    tunnelled.write("echo through")
    with socket.create_server(("127.0.0.1", tunnelled.port)):
        up = tunnelled.stack.up()
    assert f"port {tunnelled.port} on this machine is in use" in up.failure()
    assert "Traceback" not in up.text, up
    (tunnelled.programs.folder / "az").unlink()
    if shutil.which("az") is None:
        up = tunnelled.stack.up()
        assert "`az` is not on PATH" in up.text, up
    assert tunnelled.stack.kinds == []


@pytest.mark.parametrize("how", ["kill -9", "Ctrl-C"])
def test_an_interrupted_engine_leaves_no_tunnel(tunnelled: TunnelledStack, how: str) -> None:
    started = tunnelled.sshd.folder / "started"
    tunnelled.write(f"touch {started}; sleep 60")
    process = tunnelled.stack.start("up", "-s", "test", "--yes", "--skip-preview")
    wait_until(started.exists)
    assert tunnelled.programs.running
    if how == "kill -9":
        tunnelled.stack.kill(process)
    else:
        # A terminal sends SIGINT to the whole process group. After the second SIGINT, the engine exits without waiting.
        for _ in range(2):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(1)
        process.communicate(timeout=60)
    wait_until(lambda: not tunnelled.programs.running)
