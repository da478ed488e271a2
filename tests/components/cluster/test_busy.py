"""Tests of `running_jobs` with a real SSH server: direct connections, tunnels, time limits and failures."""

from __future__ import annotations

import asyncio
import getpass
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.cluster import busy
from components.cluster.busy import LIST_JOBS, RunningJob, UnknownError, last_cluster, running_jobs
from tests.offline.loopback_sshd import Sshd, free_port, new_server, running, sshd_binary
from tests.trainyard.tunnel_programs import BASTION, TunnelPrograms
from trainyard.outputs import Head, read_head

pytestmark = pytest.mark.engine

JOB = RunningJob(id="7", user="ada", name="train", nodes="yard-gpu-0")


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    """A running SSH server."""
    if not sshd_binary():
        pytest.skip("needs sshd (Debian: apt-get install openssh-server)")
    folder = Path(tempfile.mkdtemp(prefix="ty-busy-"))
    with running(new_server(folder)) as found:
        yield found
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "LIST_JOBS", "echo '7|ada|yard-gpu-0|train'")


def head(sshd: Sshd, **changes: object) -> Head:
    facts = {
        "name": "yard-head",
        "address": "127.0.0.1",
        "port": sshd.port,
        "private_ip": "10.0.0.4",
        "user": "trainer",
        "admin_user": getpass.getuser(),
        "host_key": sshd.host_key,
    }
    return read_head({**facts, **changes})


def wait_for_end(programs: TunnelPrograms) -> None:
    deadline = time.monotonic() + 20
    while programs.running:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def list_jobs(found: Head, key: str) -> tuple[RunningJob, ...]:
    return asyncio.run(running_jobs(found, key))


def test_returns_the_jobs_of_the_head(sshd: Sshd) -> None:
    assert list_jobs(head(sshd), sshd.private_key) == (JOB,)


def test_returns_no_jobs_if_slurm_is_not_installed(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("squeue"):
        pytest.skip("Slurm is installed on this computer")
    monkeypatch.setattr(busy, "LIST_JOBS", LIST_JOBS)
    assert list_jobs(head(sshd), sshd.private_key) == ()


def test_uses_and_ends_the_tunnel(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = TunnelPrograms(tmp_path / "bin")
    programs.install(sshd.port)
    monkeypatch.setenv("PATH", str(programs.folder), prepend=":")
    assert list_jobs(head(sshd, port=1, tunnel=BASTION), sshd.private_key) == (JOB,)
    assert len(programs.calls) == 1
    wait_for_end(programs)


def test_refuses_a_wrong_host_key(sshd: Sshd) -> None:
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE0iG0wYxVYt9B5nXGWQqBOFjCkN3sQfYqkUcLSgPq1t"
    with pytest.raises(UnknownError, match="Host key verification failed"):
        list_jobs(head(sshd, host_key=other), sshd.private_key)


def test_reports_a_refused_connection(sshd: Sshd) -> None:
    with pytest.raises(UnknownError, match="Connection refused"):
        list_jobs(head(sshd, port=free_port()), sshd.private_key)


def test_reports_the_errors_of_squeue(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "LIST_JOBS", "echo 'slurm_load_jobs error' >&2; false")
    with pytest.raises(UnknownError, match="slurm_load_jobs error"):
        list_jobs(head(sshd), sshd.private_key)


def test_times_out_if_the_head_does_not_answer(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "_SECONDS", 0.5)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(UnknownError, match="did not answer within"):
        list_jobs(head(sshd, port=silent.getsockname()[1]), sshd.private_key)
    assert time.monotonic() - began < 5


def test_ends_the_tunnel_after_a_timeout(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = TunnelPrograms(tmp_path / "bin")
    programs.install(sshd.port)
    programs.behave("late=60")
    monkeypatch.setenv("PATH", str(programs.folder), prepend=":")
    monkeypatch.setattr(busy, "_TUNNEL_SECONDS", 2.0)
    with pytest.raises(UnknownError, match="did not answer within"):
        list_jobs(head(sshd, port=1, tunnel=BASTION), sshd.private_key)
    wait_for_end(programs)


def test_returns_no_cluster_without_outputs() -> None:
    assert last_cluster(None) is None


@pytest.mark.parametrize("outputs", ["text", {}, {"scheduler": "slurm", "nodes": [], "head": {"name": "-oProxy"}}])
def test_refuses_outputs_of_a_different_version(outputs: object) -> None:
    with pytest.raises(UnknownError, match="different version"):
        last_cluster(outputs)
