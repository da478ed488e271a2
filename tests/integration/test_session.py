"""`yard run` on the local cluster: commands, a shell on a terminal, and forwarded ports."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from tests.integration.project import Project, wait_until
from tests.integration.test_cluster import FIRST, HEAD, SECOND

pytestmark = [pytest.mark.integration, pytest.mark.full]

PORT = 28765


def queue(cluster: Project) -> str:
    return cluster.on(HEAD, "squeue -h -o '%j %T'").strip()


def fetch() -> str:
    """Return the start page of the session's server, or an empty string."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def test_command_runs_on_allocated_nodes(cluster: Project) -> None:
    done = cluster.yard("run", "--nodes", "2", "--", "srun", "hostname")
    assert {FIRST, SECOND} <= set(done.out.split())
    done = cluster.yard("run", "--", "bash", "-c", "echo on $(hostname) with $(nproc) processors; exit 7", check=False)
    assert done.code == 7, done.out
    assert "on it-gpu-" in done.out
    wait_until("the release of the nodes", 60, lambda: queue(cluster) == "")


def test_shell_has_a_terminal(cluster: Project) -> None:
    begin = shlex.join([sys.executable, "-m", "yard", "run"])
    terminal = cluster.start("script", "-qefc", begin, "/dev/null", stdin=subprocess.PIPE)
    output, _ = terminal.communicate("tty; echo on $(hostname); exit 3\n", timeout=180)
    assert terminal.returncode == 3, output
    assert "/dev/pts/" in output
    assert "on it-gpu-" in output
    wait_until("the release of the node", 60, lambda: queue(cluster) == "")


def test_port_is_forwarded_until_ctrl_c(cluster: Project) -> None:
    serve = ("python3", "-m", "http.server", str(PORT), "--bind", "127.0.0.1", "--directory", "/etc/trainyard")
    session = cluster.start("python", "-m", "yard", "run", "--port", str(PORT), "--", *serve)
    wait_until("the page", 180, lambda: "fabric.env" in fetch(), 1.0)
    os.killpg(session.pid, signal.SIGINT)  # a terminal also signals ssh
    output, _ = session.communicate(timeout=60)
    assert session.returncode == 130, output
    assert "not forwarded" not in output
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", PORT)) != 0
    wait_until("the release of the node", 60, lambda: queue(cluster) == "")
    for node in (FIRST, SECOND):
        assert cluster.on(node, "pgrep -fc '[h]ttp.server' || true").strip() == "0"
