"""Hosts that exist become a cluster, without a scheduler and with Slurm, and go back as they were.

Two bare machines, whose owner has a user there and nothing else; the tests run in the order they stand in.
"""

from __future__ import annotations

import base64
import io
import json
import tarfile
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest

from components.platforms.local.process import end
from components.platforms.local.sweep import sweep_run
from tests.integration.bare import BareHost, HostsProject, boot
from tests.integration.project import wait_until
from tests.platforms.hosts.apt import USABLE, add_package

pytestmark = [
    pytest.mark.integration,
    pytest.mark.full,
    pytest.mark.skipif(not USABLE, reason="needs root and dpkg, which build the packages of the owner's archive"),
]

State = dict[str, list[str]]
_ARCHIVE = "/var/tmp/archive"  # noqa: S108  (on a machine of the test's own)
_MARIADB_10_6 = """
cat >/etc/systemd/system/mariadb.service <<'UNIT'
[Service]
Type=notify
User=mysql
Group=mysql
PermissionsStartOnly=true
ExecStartPre=/usr/bin/install -m 755 -o mysql -g root -d /var/run/mysqld
ExecStart=/usr/sbin/mariadbd $MYSQLD_OPTS $_WSREP_NEW_CLUSTER $_WSREP_START_POSITION
ExecStartPost=/etc/mysql/debian-start
Restart=on-abort
UMask=007
UNIT
for file in $(grep -l mysqld /usr/lib/tmpfiles.d/*); do ln -s /dev/null /etc/tmpfiles.d/${file##*/}; done
rm -rf /run/mysqld
mkdir -p /srv/disk
systemctl daemon-reload
"""
"""The first host has the unit of Ubuntu 22.04's mariadb-server-10.6 (1:10.6.23-0ubuntu0.22.04.1, read 2026-11-22). Its
first hook creates /run/mysqld, and no tmpfiles.d entry does."""

_OTHERWISE = f"""
dpkg --purge pdsh genders
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d
mkdir -p {_ARCHIVE}
touch {_ARCHIVE}/Packages
echo 'deb [trusted=yes] file:{_ARCHIVE} ./' >/etc/apt/sources.list

hostname odd.example.org && hostname >/etc/hostname
sed -i '1i 127.0.1.1 odd.example.org odd' /etc/hosts
echo '# theirs' >>/etc/default/slurmd
"""
"""The second host calls itself otherwise than the stack file does, and has settings of its own. It lacks a package that
the bring-up installs, and its archive has none yet."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BareHost]]:
    """Two machines with a user and his key, and nothing of ours."""
    run = Path(tmp_path_factory.mktemp("bare")) / "run"
    try:
        hosts = boot(run, ["node1", "node2"], 25100)
        for host, script in zip(hosts, (_MARIADB_10_6, _OTHERWISE), strict=True):
            done = host.ssh(f"set -e\n{script}")
            assert done.returncode == 0, done.stderr
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
    shared = {"kind": "head_nfs", "path": "/srv/disk/trainyard"}
    made = HostsProject(folder, bare, scheduler="none", nodes=group, storage={"shared": shared})
    made.setup()
    return made


def changes(host: BareHost, before: State) -> list[str]:
    """Return what is not as it was."""
    lines = unified_diff(before[host.machine.name], host.state(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def test_conflicts_are_named_before_anything_is_changed(
    project: HostsProject, bare: list[BareHost], before: State
) -> None:
    bare[0].ssh("useradd --uid 2000 somebody; groupadd ops; echo '/shared 192.0.2.0/24(rw)' >>/etc/exports")
    bare[1].ssh("date -s '+400 seconds'")
    said = project.stack("up", check=False)
    assert said.code != 0
    assert "host node1: uid 2000 is somebody's, and the cluster's trainer needs it" in said.out
    assert "host node1: /etc/exports has a line for /shared already. Fix: remove that line" in said.out
    assert "host node1: has a group ops already (gid 2001)" in said.out
    assert "host node1: the clock of node2 differs by +" in said.out
    bare[0].ssh("userdel somebody; groupdel ops; sed -i '/192.0.2.0/d' /etc/exports")
    bare[1].ssh("date -s '-400 seconds'")
    assert changes(bare[1], before) == []


def test_a_closed_private_network_is_found_on_both_hosts(project: HostsProject, bare: list[BareHost]) -> None:
    bare[0].ssh("ip route add unreachable 10.77.0.11")
    said = project.stack("up", check=False)
    bare[0].ssh("ip route del unreachable 10.77.0.11")
    assert said.code != 0
    assert "host node1: node2 (10.77.0.11) is not reached on port 22 (ssh): No route to host" in said.out
    assert "host node2: node1 (10.77.0.10) is not reached on port 22 (ssh): no answer" in said.out
    assert "hosts-node1-lease" not in said.out


def test_a_server_of_mariadb_10_6_needs_the_folder_of_its_socket(bare: list[BareHost]) -> None:
    folder = "/etc/systemd/system/mariadb.service.d"
    hooks = "[Service]\\nExecStartPre=\\nExecStartPost=\\n"
    started = bare[0].ssh(
        f"mkdir {folder}; printf '{hooks}' >{folder}/old.conf; systemctl daemon-reload\n"
        f"systemctl start mariadb; code=$?; rm -r {folder}; systemctl daemon-reload; systemctl reset-failed; exit $code"
    )
    assert started.returncode != 0


def test_the_owner_installs_packages_after_a_failed_stage(
    project: HostsProject, bare: list[BareHost], tmp_path: Path
) -> None:
    said = project.stack("up", check=False)
    assert said.code != 0
    assert "node2: stage 20-apt failed" in said.out
    assert bare[1].ssh("test -e /usr/sbin/policy-rc.d").returncode == 1
    archive = tmp_path / "archive"
    archive.mkdir()
    add_package(archive, "pdsh", "Depends: transport")
    add_package(archive, "transport", post_install="#!/bin/sh\nuseradd --system transport\n")
    add_package(archive, "owners-tool")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(archive, ".")
    sent = base64.b64encode(packed.getvalue()).decode()
    done = bare[1].ssh(
        f"set -e; base64 -d <<<'{sent}' | tar -x -C {_ARCHIVE}; apt-get -q update\n"
        "apt-get -q -y install owners-tool; useradd --system owners-daemon\n"
        "systemctl restart --no-block trainyard-bootstrap"
    )
    assert done.returncode == 0, done.stderr


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


def test_shared_lies_in_the_folder_that_the_stack_file_names(bare: list[BareHost]) -> None:
    assert bare[0].ssh("cat /srv/disk/trainyard/word; findmnt -no SOURCE /shared").stdout.startswith("shared\n")


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
    # What the owner added is there, and of the cluster nothing is left.
    owners = bare[1].ssh(
        "dpkg-query -W -f '${Status}' owners-tool; id -un owners-daemon; id transport; dpkg -s transport"
    )
    assert owners.stdout == "install ok installedowners-daemon\n"
    accounts = ("etc/passwd", "etc/shadow", "etc/group", "etc/gshadow", "owners-tool")
    assert [line for line in changes(bare[1], before) if not any(word in line for word in accounts)] == []
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
