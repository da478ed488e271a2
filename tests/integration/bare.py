"""Virtual machines that run only sshd to simulate existing hosts, and a stack that uses them."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import yaml

from components.keys import ssh_keypair
from components.node.bundle import bundle_files
from components.node.files import BIRTH, NodeFile, render_install
from components.node.parameters import ON_HEAD, birth_env
from components.plan.plan import ClusterPlan, HostPlan
from components.platforms.local.image import ensure_image
from components.platforms.local.machine import HOST_KEY_MARK, Hardware, Machine, macs, start_switch
from components.platforms.local.probe import choose
from components.platforms.local.process import sweep_run
from tests.integration.project import Project, wait_until

OWNER = "owner"
_USER_DATA = """#cloud-config
users:
- name: {owner}
  shell: /bin/bash
  lock_passwd: true
  sudo: "ALL=(ALL) NOPASSWD:ALL"
  ssh_authorized_keys: ["{key}"]
runcmd:
- 'read -r kind key _ </etc/ssh/ssh_host_ed25519_key.pub; echo "{mark}$kind $key" >/dev/console'
"""

STATE = """
set -eo pipefail
cd /
find etc usr/local opt srv root home var/lib/slurm var/log/slurm var/spool -xdev -type f \
  ! -name '*-' ! -path 'etc/.pwd.lock' ! -path 'home/*/.ssh/*' -exec sha256sum {} + | sort -k2
find etc usr/local opt srv -xdev -type l -printf '%p -> %l\\n' | sort
find . -xdev -maxdepth 1 -printf 'top %p %m\\n' | sort
find etc usr/local opt srv home var/lib var/log var/spool -xdev -maxdepth 2 -type d -printf 'folder %p %m %u\\n' | sort
dpkg-query -W -f 'package ${Package} ${Version} ${Status}\\n'
systemctl list-unit-files --no-legend --state=enabled,masked | awk '{ print "unit", $1, $2 }' | sort
systemctl list-units --no-legend --plain --type=service,mount,automount --state=active |
  awk '{ print "active", $1 }' | sort
sysctl net.core.rmem_max net.ipv4.tcp_wmem vm.zone_reclaim_mode
/usr/sbin/nft list tables
"""
"""Prints a host's state as lines: files, links, folders, packages, units and sysctl values."""


@dataclass(frozen=True)
class BareHost:
    """A running machine. `entry` is its entry in the stack file."""

    machine: Machine
    port: int
    private_ip: str
    host_key: str
    key: Path

    @property
    def entry(self) -> dict[str, Any]:
        return {
            "name": self.machine.name,
            "address": "127.0.0.1",
            "port": self.port,
            "private_ip": self.private_ip,
            "host_key": self.host_key,
        }

    def ssh(self, command: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command as root, with the owner's key."""
        known = self.key.parent / f"{self.machine.name}.known"
        known.write_text(f"bare {self.host_key}\n")
        options = {
            "BatchMode": "yes",
            "HostKeyAlias": "bare",
            "UserKnownHostsFile": str(known),
            "IdentitiesOnly": "yes",
            "ConnectTimeout": "30",
            "LogLevel": "ERROR",
        }
        flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        argv = ["ssh", *flags, "-i", str(self.key), "-p", str(self.port), f"{OWNER}@127.0.0.1", "sudo -n bash -s"]
        return subprocess.run(argv, input=command, capture_output=True, text=True, check=False, timeout=timeout)

    def ok(self, command: str) -> str:
        done = self.ssh(command, timeout=600)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def stage(self, name: str) -> subprocess.CompletedProcess[str]:
        done = self.ssh(run_stage(name), timeout=3600)
        sys.stdout.write(f"[{name}: exit {done.returncode}]\n{done.stdout[-3000:]}\n")
        return done

    def state(self) -> list[str]:
        """Return the machine's state as lines of text. The command is retried once, because systemd may exceed its own
        timeouts on a busy host."""
        done = self.ssh(STATE, timeout=300)
        if done.returncode:
            done = self.ssh(STATE, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


def boot(run: Path, names: Sequence[str], port_base: int) -> list[BareHost]:
    """Boot machines with one user and an SSH key, and wait until logins succeed."""
    image = ensure_image()
    sweep_run(run)
    start_switch(run)
    private, public = ssh_keypair("owner")
    key = run / "owner.key"
    key.touch(mode=0o600)
    key.write_text(private)
    accelerator = choose("auto", image.kernel).accelerator
    machines = [Machine(run=run, name=name) for name in names]
    for index, machine in enumerate(machines):
        cards, address = macs(run.name, machine.name), IPv4Interface(f"10.77.0.{10 + index}/20")
        text = _USER_DATA.format(owner=OWNER, key=public, mark=HOST_KEY_MARK)
        machine.make_disk(image, uuid.uuid4().hex, cards, address, text)
        hardware = Hardware(
            accelerator=accelerator, vcpus=1, memory_mib=1024, ssh_port=port_base + index, niceness=3 if index else 0
        )
        machine.start(image, hardware, cards)
    hosts = [
        BareHost(machine, port_base + index, f"10.77.0.{10 + index}", machine.wait_host_key(0), key)
        for index, machine in enumerate(machines)
    ]
    for host in hosts:
        wait_until(f"{host.machine.name} to boot", 300, lambda host=host: _booted(host), 1)  # type: ignore[misc]
    return hosts


def _booted(host: BareHost) -> bool:
    ended = "systemctl is-system-running --wait >/dev/null; test -e /run/cloud-init/result.json"
    return host.ssh(ended).returncode == 0


_STAGE = """
mkdir -p /run/trainyard /var/lib/trainyard
bash -c 'source /usr/local/lib/trainyard/stage.sh; source "$1"' {name} /usr/local/lib/trainyard/stages/{name} 2>&1
"""


def install_all(plan: ClusterPlan, host: HostPlan) -> str:
    """Return a script that installs the files of the bundle as if they were part of user-data."""
    files = [replace(file, path=f"{BIRTH}/{file.path}") for file in bundle_files(plan, ON_HEAD)]
    own = NodeFile("/etc/trainyard/birth.env", birth_env(plan, host))
    return render_install([own, *files], begin="true")


def run_stage(name: str) -> str:
    """Return a command that runs a stage in the same way as the bootstrap runs it."""
    return _STAGE.format(name=name)


@contextmanager
def prepared(plan: ClusterPlan, folder: Path, port: int) -> Iterator[BareHost]:
    """Boot a machine with the files of all stages of the first worker. No stage has run on this machine."""
    run = folder / "run"
    try:
        [host] = boot(run, ["node1"], port)
        host.ok(install_all(plan, plan.workers[0]))
        yield host
    finally:
        sweep_run(run)


class HostsProject(Project):
    """A copied checkout with the stack `bare`, which uses existing hosts."""

    name = "bare"

    def __init__(self, folder: Path, hosts: Sequence[BareHost], **cluster: Any) -> None:
        self.copy(folder)
        machine = {"vcpus": 1, "memory_gib": 1, "gpus": 2, "gpu_type": "fake"}
        section = {
            "name": "bare",
            "platform": {
                "provider": "hosts",
                "image": "debian-13",
                "user": OWNER,
                "key": str(hosts[0].key),
                "keep_files": False,
                "hosts": [host.entry for host in hosts],
                "machines": {"vm": machine},
            },
            "network": {"cidr": "10.77.0.0/20"},
            "head": {"machine": "vm"},
            **cluster,
        }
        self.stack_file.write_text(yaml.safe_dump({"config": {"trainyard:cluster": section}}, sort_keys=False))
