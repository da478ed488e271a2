"""A cluster on existing hosts, first without a scheduler and then with Slurm, and the restoration of the hosts.

The hosts are two virtual machines with one user each. The tests run in the order in which they are defined.
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

from components.platforms.local.process import end, sweep_run
from tests.components.platforms.hosts.test_packages import USABLE, add_package
from tests.integration.bare import BareHost, HostsProject, boot
from tests.integration.project import wait_until

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
"""The first host has the systemd unit from mariadb-server-10.6 on Ubuntu 22.04 (1:10.6.23-0ubuntu0.22.04.1, read
2026-11-22). The unit's first ExecStartPre command creates /run/mysqld. No tmpfiles.d entry creates it."""

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
"""The hostname of the second host differs from its name in the stack file. The owner of the host has changed settings.
A package that the bring-up installs is missing on the host and not yet in its package archive."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BareHost]]:
    """Two machines with a user and a key, but without files from Trainyard."""
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
    return {host.machine.name: host.state() for host in bare}


@pytest.fixture(scope="module")
def project(bare: list[BareHost], before: State, tmp_path_factory: pytest.TempPathFactory) -> HostsProject:
    """A stack with both machines and without a scheduler. The first machine is the head node and also runs jobs."""
    folder = Path(tmp_path_factory.mktemp("hosts")) / "project"
    group = {"gpu": {"machine": "vm", "hosts": ["node1", "node2"]}}
    shared = {"kind": "head_nfs", "path": "/srv/disk/trainyard"}
    made = HostsProject(folder, bare, scheduler="none", nodes=group, storage={"shared": shared})
    made.setup()
    return made


def changes(host: BareHost, before: State) -> list[str]:
    lines = unified_diff(before[host.machine.name], host.state(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def test_conflicts_are_reported_before_any_change(project: HostsProject, bare: list[BareHost], before: State) -> None:
    bare[0].ssh("useradd --uid 2000 somebody; groupadd ops; echo '/shared 192.0.2.0/24(rw)' >>/etc/exports")
    bare[1].ssh("date -s '+400 seconds'")
    done = project.stack("up", check=False)
    assert done.code != 0
    assert "host node1: uid 2000 belongs to somebody, but the cluster's trainer needs it" in done.out
    assert "host node1: /etc/exports already contains a line for /shared. Fix: remove that line" in done.out
    assert "host node1: already has a group ops (gid 2001)" in done.out
    assert "host node1: the clock of node2 differs by +" in done.out
    bare[0].ssh("userdel somebody; groupdel ops; sed -i '/192.0.2.0/d' /etc/exports")
    bare[1].ssh("date -s '-400 seconds'")
    assert changes(bare[1], before) == []


def test_blocked_private_network_is_reported_for_both_hosts(project: HostsProject, bare: list[BareHost]) -> None:
    bare[0].ssh("ip route add unreachable 10.77.0.11")
    done = project.stack("up", check=False)
    bare[0].ssh("ip route del unreachable 10.77.0.11")
    assert done.code != 0
    assert "host node1: node2 (10.77.0.11) cannot be reached on port 22 (ssh): No route to host" in done.out
    assert "host node2: node1 (10.77.0.10) cannot be reached on port 22 (ssh): no answer" in done.out
    assert "hosts-node1-lease" not in done.out


def test_owner_can_install_packages_after_a_failed_stage(
    project: HostsProject, bare: list[BareHost], tmp_path: Path
) -> None:
    output = project.stack("up", check=False)
    assert output.code != 0
    assert "node2: stage 20-apt failed" in output.out
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


def test_existing_hosts_become_a_cluster(project: HostsProject, bare: list[BareHost]) -> None:
    assert "2 nodes are ready" in project.stack("up", timeout=600).out
    outputs = json.loads(project.stack("outputs").out)["cluster"]
    assert outputs["scheduler"] == "none"
    assert [node["name"] for node in outputs["nodes"]] == ["node1", "node2"]
    assert bare[0].ssh("cat /job/hostfile").stdout == "node1 slots=2\nnode2 slots=2\n"
    project.stack("preview", "--expect-no-changes")


def test_job_user_can_log_in_everywhere_and_shares_files(bare: list[BareHost]) -> None:
    remote = "cat /shared/word ~/word; . /etc/trainyard/fabric.env; echo $NCCL_IB_DISABLE"
    script = f"echo shared >/shared/word; echo home >~/word; pdsh -R ssh -w node1,node2 '{remote}'"
    done = bare[0].ssh(f"runuser -u trainer -- env HOME=/home/trainer bash -c {json.dumps(script)}".replace("$", "\\$"))
    assert sorted(done.stdout.splitlines()) == [f"node{n}: {word}" for n in (1, 2) for word in ("1", "home", "shared")]
    assert bare[0].ssh("cat /srv/disk/trainyard/word; findmnt -no SOURCE /shared").stdout.startswith("shared\n")


def test_setuid_files_have_no_effect_under_any_path(bare: list[BareHost]) -> None:
    folder = "/srv/disk/trainyard"
    bare[0].ssh(f"install -m 4755 -o owner /usr/bin/id {folder}/other")
    for path in (folder, "/shared"):
        assert "nosuid" in bare[0].ssh(f"findmnt -no OPTIONS --target {path}/other").stdout
        assert bare[0].ssh(f"setpriv --reuid=trainer --clear-groups {path}/other -un").stdout.strip() == "trainer"
    bare[0].ssh(f"rm {folder}/other")
    # The owner keeps login, home and host names.
    output = bare[1].ssh("ls /home; hostname; getent hosts odd; sudo true").stdout
    assert "owner\n" in output
    assert "odd.example.org\n10.77.0.11 " in output


def test_removed_host_is_restored(project: HostsProject, bare: list[BareHost], before: State) -> None:
    def leave(spec: dict[str, Any]) -> None:
        spec["platform"]["hosts"].pop()
        spec["nodes"]["gpu"]["hosts"].pop()

    project.edit(leave)
    output = project.stack("up", timeout=400).out
    assert "1 nodes are ready" in output
    assert "hosts-node1" not in output
    # The owner's additions are kept, and all files of the cluster are removed.
    owners = bare[1].ssh(
        "dpkg-query -W -f '${Status}' owners-tool; id -un owners-daemon; id transport; dpkg -s transport"
    )
    assert owners.stdout == "install ok installedowners-daemon\n"
    accounts = ("etc/passwd", "etc/shadow", "etc/group", "etc/gshadow", "owners-tool")
    assert [line for line in changes(bare[1], before) if not any(word in line for word in accounts)] == []
    assert bare[0].ssh("cat /job/hostfile").stdout == "node1 slots=2\n"


def test_host_joins_again_and_runs_a_slurm_job(project: HostsProject, bare: list[BareHost], tmp_path: Path) -> None:
    def join(spec: dict[str, Any]) -> None:
        spec["platform"]["hosts"].append(bare[1].entry)
        spec.update(scheduler="slurm", nodes={"gpu": {"machine": "vm", "hosts": ["node2"]}})

    sleeper = tmp_path / "sleeper.yaml"
    sleeper.write_text("name: sleeper\nrun: sleep 900\n")
    job = str(project.yard_json("submit", str(sleeper))["id"])
    wait_until("the job to run", 60, lambda: project.yard_json("ps")[0]["state"] == "RUNNING")
    project.edit(join)
    done = project.stack("up", timeout=300, check=False)
    assert done.code != 0
    assert "host node1: has jobs (node-node1), which would not be in the queue of scheduler: slurm" in done.out
    assert bare[0].ssh("cat /job/hostfile").stdout == "node1 slots=2\n"
    project.yard("cancel", job)
    project.yard("wait", job, check=False)

    project.stack("up", timeout=600)
    assert bare[0].ssh("test -e /job/hostfile").returncode == 1
    assert bare[0].ssh("sinfo -h -o '%N %T'").stdout == "node2 idle\n"
    done = project.yard("submit", "hello", "--nodes", "1", "--follow")
    assert "on node2\nrank 0 of 1 on odd.example.org, GPUs 0,1" in done.out


def test_dead_host_is_forgotten_and_others_are_restored(
    project: HostsProject, bare: list[BareHost], before: State
) -> None:
    pid = bare[1].machine.pid
    assert pid is not None
    end(pid)
    done = project.stack("destroy", timeout=300, check=False)
    assert done.code != 0
    assert "hosts-node2-lease" in done.out
    assert "127.0.0.1" in done.out
    project.yard("hosts", "forget", "node2")
    project.stack("destroy", timeout=300)
    # An earlier test added and removed the user `somebody`, so files may still contain this name.
    assert [line for line in changes(bare[0], before) if "somebody" not in line] == []
