"""Running jobs that a change would end: digests, the list of jobs with a real SSH server, and the message."""

from __future__ import annotations

import asyncio
import getpass
import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from components.cluster import busy
from components.stackfile.read import parse_stack, read_stack
from tests.components.platforms.recording import stack_text
from tests.offline.loopback_sshd import Sshd, free_port
from tests.stack_texts import STACKS
from tests.trainyard.tunnel_programs import BASTION, TunnelPrograms
from tests.yard.conftest import outputs

LIST_JOBS = busy.LIST_JOBS
JOB = busy.RunningJob(id="7", user="ada", nodes="yard-gpu-0")


@pytest.fixture
def sshd(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Sshd:
    """A running SSH server on which one job is running."""
    monkeypatch.setattr(busy, "LIST_JOBS", "echo '7|ada|yard-gpu-0'")
    return sshd


@pytest.fixture
def programs(tunnel_programs: TunnelPrograms, monkeypatch: pytest.MonkeyPatch) -> TunnelPrograms:
    monkeypatch.setenv("PATH", str(tunnel_programs.folder), prepend=":")
    return tunnel_programs


def list_jobs(sshd: Sshd, **changes: object) -> tuple[busy.RunningJob, ...]:
    """Return the running jobs, from a head with these changed fields."""
    facts: dict[str, Any] = {"port": sshd.port, "admin_user": getpass.getuser(), "host_key": sshd.host_key, **changes}
    head = replace(outputs(2, "fake", 1, None).head, **facts)
    return asyncio.run(busy.running_jobs(head, sshd.private_key))


@pytest.mark.engine
def test_returns_the_jobs_of_the_head(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_jobs(sshd) == (JOB,)
    if not shutil.which("squeue"):
        monkeypatch.setattr(busy, "LIST_JOBS", LIST_JOBS)
        assert list_jobs(sshd) == ()


@pytest.mark.engine
def test_uses_and_ends_the_tunnel(sshd: Sshd, programs: TunnelPrograms) -> None:
    assert list_jobs(sshd, port=1, tunnel=BASTION) == (JOB,)
    assert len(programs.calls) == 1


@pytest.mark.engine
def test_ends_the_tunnel_after_a_timeout(sshd: Sshd, programs: TunnelPrograms, monkeypatch: pytest.MonkeyPatch) -> None:
    programs.behave("late=60")
    monkeypatch.setattr(busy, "_TUNNEL_SECONDS", 2.0)
    with pytest.raises(busy.UnknownError, match="did not answer within"):
        list_jobs(sshd, port=1, tunnel=BASTION)


@pytest.mark.engine
def test_reports_why_the_head_lists_no_jobs(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE0iG0wYxVYt9B5nXGWQqBOFjCkN3sQfYqkUcLSgPq1t"
    with pytest.raises(busy.UnknownError, match="Host key verification failed"):
        list_jobs(sshd, host_key=other)
    with pytest.raises(busy.UnknownError, match="Connection refused"):
        list_jobs(sshd, port=free_port())
    monkeypatch.setattr(busy, "LIST_JOBS", "echo 'slurm_load_jobs error' >&2; false")
    with pytest.raises(busy.UnknownError, match="slurm_load_jobs error"):
        list_jobs(sshd)


@pytest.mark.engine
def test_times_out_if_the_head_does_not_answer(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "_SECONDS", 0.5)
    began = time.monotonic()
    expected = pytest.raises(busy.UnknownError, match="did not answer within")
    with socket.create_server(("127.0.0.1", 0)) as silent, expected:
        list_jobs(sshd, port=silent.getsockname()[1])
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("found", ["text", {}, {"scheduler": "slurm", "nodes": [], "head": {"name": "-oProxy"}}])
def test_refuses_outputs_of_a_different_version(found: object) -> None:
    assert busy.last_cluster(None) is None
    with pytest.raises(busy.UnknownError, match="different version"):
        busy.last_cluster(found)


@pytest.mark.parametrize(
    ("nodes", "hosts"),
    [
        ("", []),
        ("yard-gpu-0", ["yard-gpu-0"]),
        ("yard-gpu-[0-2,7]", ["yard-gpu-0", "yard-gpu-1", "yard-gpu-2", "yard-gpu-7"]),
        ("a-0,b-[08-10],c", ["a-0", "b-08", "b-09", "b-10", "c"]),
    ],
)
def test_expands_host_lists(nodes: str, hosts: list[str]) -> None:
    assert list(busy.hosts_of(nodes)) == hosts


def test_job_names_are_not_listed() -> None:
    # Users choose the names, which can contain line breaks.
    assert "%j" not in busy.LIST_JOBS
    (found,) = busy.parse_jobs("12_3|trainer|yard-gpu-[0-1]\n")
    assert found == busy.RunningJob(id="12_3", user="trainer", nodes="yard-gpu-[0-1]")


def test_rejects_other_output() -> None:
    with pytest.raises(ValueError, match="unpack"):
        busy.parse_jobs("Welcome to this machine\n")


def job(nodes: str, number: str = "12") -> busy.RunningJob:
    return busy.RunningJob(id=number, user="trainer", nodes=nodes)


@pytest.mark.parametrize(
    ("machine", "ended"), [("yard-gpu-1", ["1"]), ("yard-gpu-2", []), ("yard-head", ["1", "2", "3"])]
)
def test_returns_only_jobs_on_changed_machines(machine: str, ended: list[str]) -> None:
    jobs = (job("yard-gpu-[0-1]", "1"), job("yard-gpu-10", "2"), job("", "3"))
    assert [found.id for found in busy.ended_jobs(jobs, [machine], "yard-head")] == ended


def test_message_has_machines_jobs_users_and_fix() -> None:
    text = busy.busy_message([job("yard-gpu-[0-1]")], ["yard-gpu-0", "yard-gpu-1"])
    assert text.startswith("this change replaces, restarts or removes yard-gpu-0, yard-gpu-1, and running jobs")
    assert "\n  job 12 of trainer on yard-gpu-[0-1]\n" in text
    assert text.endswith("run `pulumi up --config trainyard:end_jobs=12`")
    long = busy.busy_message([job("n", str(number)) for number in range(30)], [f"n-{index}" for index in range(512)])
    assert len(long.splitlines()) == 23
    assert "  and 10 more" in long
    assert "n-19 and 492 more," in long


def digests(stack: str, **edits: Any) -> dict[str, str]:
    return busy.machine_digests(parse_stack(stack_text(stack, **edits), "test").plan)


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.name)
def test_each_host_has_a_digest(file: Path) -> None:
    plan = read_stack(file).plan
    assert list(busy.machine_digests(plan)) == [host.name for host in plan.hosts]
    assert plan.platform.beside_machines <= set(type(plan.platform).model_fields)


@pytest.mark.parametrize(
    ("stack", "edits", "names"),
    [
        ("local", {"nodes__gpu__count": 3}, ""),
        ("local", {"nodes__gpu__count": 1}, "gpu-1"),
        ("local", {"nodes__gpu__machine": "vm-gpu2-large"}, "gpu-0 gpu-1"),
        ("local", {"head__machine": "vm-gpu2-large"}, "head"),
        ("local", {"scheduler": "none"}, "head gpu-0 gpu-1"),
        ("local", {"name": "other"}, "head gpu-0 gpu-1"),
        ("local", {"network__cidr": "10.78.0.0/20"}, "head gpu-0 gpu-1"),
        ("local", {"platform__ssh_port_base": 23000}, "head gpu-0 gpu-1"),
        ("azure-a100", {"platform__boot_disk_gib": 300}, "head gpu-0 gpu-1"),
        ("gcp-a2", {"platform__boot_disk_gib": 300}, "head gpu-0 gpu-1"),
        ("local", {"limits": {"max_usd_per_hour": 5}}, ""),
        ("azure-a100", {"platform__protect_storage": False}, ""),
        ("azure-a100", {"storage__shared__size_gib": 8192}, ""),
        ("gcp-a2", {"platform__iap_port": 22201}, ""),
        ("azure-a100", {"platform__image_version": "24.04.2026072901"}, ""),
        ("gcp-a2", {"platform__custom_image": "projects/p/global/images/own"}, ""),
        ("local", {"platform__baked_image": "trainyard-debian-13-0123456789abcdef"}, ""),
        # Existing hosts are changed in place.
        ("lambda-a6000", {"scheduler": "none", "containers": "docker"}, ""),
    ],
)
def test_only_changed_or_removed_machines_are_returned(stack: str, edits: dict[str, Any], names: str) -> None:
    found = busy.changed_or_removed_hosts(digests(stack), digests(stack, **edits))
    assert [name.partition("-")[2] for name in found] == names.split()


def test_digests_of_another_version_are_not_compared() -> None:
    after = {"a": "2-0", "b": "2-0"}
    assert busy.changed_or_removed_hosts({"a": "2-1", "b": "2-0"}, after) == ("a",)
    assert busy.changed_or_removed_hosts({"a": "0123456789abcdef", "b": "1-0"}, after) == ()
    assert busy.changed_or_removed_hosts({"a": "2-0", "gone": "1-0"}, after) == ("gone",)
