"""Hosts that exist become a cluster, without a scheduler and with Slurm, and go back as they were.

Two bare machines, whose owner has a user there and nothing else; the tests run in the order they stand in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest

from components.platforms.local.process import end
from components.platforms.local.sweep import sweep_run
from tests.integration.bare import BareHost, HostsProject, boot
from tests.integration.project import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.full]

State = dict[str, list[str]]
_OTHERWISE = """
hostname odd.example.org && hostname >/etc/hostname
sed -i '1i 127.0.1.1 odd.example.org odd' /etc/hosts
echo '# theirs' >>/etc/default/slurmd
"""
"""The second host calls itself otherwise than the stack file does, and has settings of its own."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BareHost]]:
    """Two machines with a user and his key, and nothing of ours."""
    run = Path(tmp_path_factory.mktemp("bare")) / "run"
    try:
        hosts = boot(run, ["node1", "node2"], 25100)
        assert hosts[1].ssh(_OTHERWISE).returncode == 0
        yield hosts
    finally:
        sweep_run(run)


@pytest.fixture(scope="module")
def before(bare: list[BareHost]) -> State:
    """What each machine is like before anything touches it."""
    return {host.machine.name: host.state() for host in bare}


@pytest.fixture(scope="module")
def project(bare: list[BareHost], before: State, tmp_path_factory: pytest.TempPathFactory) -> HostsProject:
    """A stack of both, without a scheduler; the first is the head, and works too."""
    folder = Path(tmp_path_factory.mktemp("hosts")) / "project"
    group = {"gpu": {"machine": "vm", "hosts": ["node1", "node2"]}}
    made = HostsProject(folder, bare, scheduler="none", nodes=group)
    made.setup()
    return made


def changes(host: BareHost, before: State) -> list[str]:
    """Return what is not as it was."""
    lines = unified_diff(before[host.machine.name], host.state(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def test_conflicts_are_named_before_anything_is_changed(
    project: HostsProject, bare: list[BareHost], before: State
) -> None:
    bare[0].ssh("useradd --uid 2000 somebody; echo '/shared 192.0.2.0/24(rw)' >>/etc/exports")
    said = project.stack("up", check=False)
    assert said.code != 0
    assert "host node1: uid 2000 is somebody's, and the cluster's trainer needs it" in said.out
    assert "host node1: /etc/exports has a line for /shared already. Fix: remove that line" in said.out
    bare[0].ssh("userdel somebody; sed -i '/192.0.2.0/d' /etc/exports")
    assert changes(bare[1], before) == []


def test_hosts_become_a_cluster(project: HostsProject, bare: list[BareHost]) -> None:
    assert "2 nodes are ready" in project.stack("up", timeout=600).out
    outputs = json.loads(project.stack("outputs").out)["cluster"]
    assert outputs["scheduler"] == "none"
    assert [node["name"] for node in outputs["nodes"]] == ["node1", "node2"]
    assert bare[0].ssh("cat /job/hostfile").stdout == "node1 slots=2\nnode2 slots=2\n"


def test_nothing_changes_on_a_second_up(project: HostsProject) -> None:
    project.stack("preview", "--expect-no-changes")


def test_the_job_user_reaches_every_host_and_shares_files(bare: list[BareHost]) -> None:
    remote = "cat /shared/word ~/word; . /etc/trainyard/fabric.env; echo $NCCL_IB_DISABLE"
    script = f"echo shared >/shared/word; echo home >~/word; pdsh -R ssh -w node1,node2 '{remote}'"
    done = bare[0].ssh(f"runuser -u trainer -- env HOME=/home/trainer bash -c {json.dumps(script)}".replace("$", "\\$"))
    assert sorted(done.stdout.splitlines()) == [f"node{n}: {word}" for n in (1, 2) for word in ("1", "home", "shared")]


def test_the_owner_still_gets_in_and_finds_his_home_and_names(bare: list[BareHost]) -> None:
    said = bare[1].ssh("ls /home; hostname; getent hosts odd; sudo true").stdout
    assert "owner\n" in said
    assert "odd.example.org\n10.77.0.11 " in said


def test_a_host_that_leaves_is_as_it_was(project: HostsProject, bare: list[BareHost], before: State) -> None:
    def leave(spec: dict[str, Any]) -> None:
        spec["platform"]["hosts"].pop()
        spec["nodes"]["gpu"]["hosts"].pop()

    project.edit(leave)
    said = project.stack("up", timeout=400).out
    assert "1 nodes are ready" in said
    assert "hosts-node1" not in said
    assert changes(bare[1], before) == []
    assert bare[0].ssh("cat /job/hostfile").stdout == "node1 slots=2\n"


def test_it_joins_again_and_slurm_runs_a_job_on_it(project: HostsProject, bare: list[BareHost], tmp_path: Path) -> None:
    def join(spec: dict[str, Any]) -> None:
        spec["platform"]["hosts"].append(bare[1].entry)
        spec.update(scheduler="slurm", nodes={"gpu": {"machine": "vm", "hosts": ["node2"]}})

    sleeper = tmp_path / "sleeper.yaml"
    sleeper.write_text("name: sleeper\nrun: sleep 900\n")
    job = str(project.yard_json("submit", str(sleeper))["id"])
    wait_until("the job to run", 60, lambda: project.yard_json("ps")[0]["state"] == "RUNNING")
    project.edit(join)
    said = project.stack("up", timeout=300, check=False)
    assert said.code != 0
    assert "host node1: has jobs (node-node1), and scheduler: slurm would not know of them" in said.out
    assert bare[0].ssh("cat /job/hostfile").stdout == "node1 slots=2\n"
    project.yard("cancel", job)
    project.yard("wait", job, check=False)

    project.stack("up", timeout=600)
    assert bare[0].ssh("test -e /job/hostfile").returncode == 1
    assert bare[0].ssh("sinfo -h -o '%N %T'").stdout == "node2 idle\n"
    said = project.yard("submit", "hello", "--nodes", "1", "--follow")
    assert "on node2\nrank 0 of 1 on odd.example.org, GPUs 0,1" in said.out


def test_a_dead_host_is_forgotten_and_the_rest_goes_back(
    project: HostsProject, bare: list[BareHost], before: State
) -> None:
    pid = bare[1].machine.pid
    assert pid is not None
    end(pid)
    said = project.stack("destroy", timeout=300, check=False)
    assert said.code != 0
    assert "hosts-node2-lease" in said.out
    assert "127.0.0.1" in said.out
    project.yard("hosts", "forget", "node2")
    project.stack("destroy", timeout=300)
    # Its user was here, and gone, before: only that he ever was is left.
    assert [line for line in changes(bare[0], before) if "somebody" not in line] == []
