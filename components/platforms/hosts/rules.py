"""Checks for stacks with existing hosts. The hosts themselves are checked by the survey."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path

from components.node.slurm import confines
from components.plan.check import Broken, Level, Planned, check
from components.platforms.hosts.spec import Host, HostsSpec
from components.platforms.shared_rules import in_group, in_platform, in_storage
from trainyard.outputs import HOST_KEY

_HOST_KEY = re.compile(rf"(?:{HOST_KEY.pattern})( [^\n]*)?")
"""A host key in the stack file, optionally followed by a comment."""
PROXY = re.compile(r"(?:(?P<user>[a-z_][a-z0-9_-]{0,31})@)?(?P<address>[A-Za-z0-9.-]{1,253})(?::(?P<port>[0-9]{1,5}))?")
_PORTS = range(1, 65536)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def _spec(planned: Planned) -> HostsSpec:
    return planned.plan.platform_spec(HostsSpec)


def _each(planned: Planned) -> list[tuple[str, Host]]:
    return [(f"cluster.platform.hosts.{index}", host) for index, host in enumerate(_spec(planned).hosts)]


@check("hosts-address", Level.ERROR, "keep one of the two entries")
def addresses_differ(planned: Planned) -> Iterator[Broken]:
    """No two hosts share the same address and port."""
    seen: dict[tuple[str, int, str | None], str] = {}
    for path, host in _each(planned):
        first = seen.setdefault((host.address.lower(), host.port, host.proxy_jump), host.called)
        if first != host.called:
            rule = f"{host.address} port {host.port} is already the address of {first}"
            yield Broken(path=f"{path}.address", rule=rule)


@check("hosts-private-ip", Level.ERROR, "correct one of them; `ip -4 address` on the host prints its addresses")
def private_ips_differ(planned: Planned) -> Iterator[Broken]:
    """No two hosts share a private address."""
    seen: dict[str, str] = {}
    for path, host in _each(planned):
        first = seen.setdefault(str(host.private_ip), host.called)
        if first != host.called:
            rule = f"{host.private_ip} is already the private address of {first}"
            yield Broken(path=f"{path}.private_ip", rule=rule)


@check("hosts-network", Level.ERROR, "set cluster.network.cidr to the private network of the hosts")
def private_ips_in_network(planned: Planned) -> Iterator[Broken]:
    """All hosts are in the cluster's network, to which the head exports the shared folders."""
    network = planned.plan.network
    for path, host in _each(planned):
        if host.private_ip not in network:
            yield Broken(path=f"{path}.private_ip", rule=f"{host.private_ip} is not in {network}")


@check(
    "hosts-host-key",
    Level.ERROR,
    "run `yard hosts scan {address}`, which prints the key, and check its fingerprint on the host's console",
)
def host_keys_known(planned: Planned) -> Iterator[Broken]:
    """The stack file contains the SSH host key of each host."""
    for path, host in _each(planned):
        words = {"address": f"{host.address}:{host.port}"}
        if host.host_key is None:
            rule = "is missing, so the identity of the host cannot be verified"
            yield Broken(path=f"{path}.host_key", rule=rule, words=words)
        elif not _HOST_KEY.fullmatch(host.host_key):
            yield Broken(path=f"{path}.host_key", rule="must be a public host key: the type and the key", words=words)


@check(
    "hosts-proxy",
    Level.ERROR,
    "name a host without proxy_jump",
    "write an address such as ubuntu@203.0.113.9:22, or the name of a host in this list",
    "run `yard hosts scan {address}`, which prints it",
)
def proxies_known(planned: Planned) -> Iterator[Broken]:
    """A jump host is a host in the list without proxy_jump, or a different machine with a known host key."""
    names = {host.called: host for host in _spec(planned).hosts}
    for path, host in _each(planned):
        proxy = host.proxy_jump
        if proxy is None or (proxy in names and proxy != host.called and names[proxy].proxy_jump is None):
            continue
        where = f"{path}.proxy_jump"
        found = PROXY.fullmatch(proxy)
        if proxy in names:
            yield Broken(path=where, rule=f"{proxy} cannot be a jump host, because it is this host or has a proxy_jump")
        elif not found or int(found["port"] or 22) not in _PORTS:
            yield Broken(path=where, rule="must be a host's name or [user@]address[:port]", fix=1)
        elif not _HOST_KEY.fullmatch(host.proxy_host_key or ""):
            words = {"address": f"{found['address']}:{found['port'] or 22}"}
            yield Broken(path=f"{path}.proxy_host_key", rule="must be the proxy's public host key", words=words, fix=2)


@check("hosts-key-private", Level.ERROR, "chmod 600 {file}")
def keys_private(planned: Planned) -> Iterator[Broken]:
    """Only their owner can read the private keys, because SSH rejects other keys."""
    for path, file in _key_files(planned):
        if file.is_file() and file.stat().st_mode & _OTHERS:
            yield Broken(path=path, rule="other users can read this private key", words={"file": file})


@check("hosts-key-missing", Level.WARNING, "correct the path, or load the key into the SSH agent and remove the path")
def keys_exist(planned: Planned) -> Iterator[Broken]:
    """The private keys exist, because `pulumi up` needs them."""
    for path, file in _key_files(planned):
        if not file.is_file():
            yield Broken(path=path, rule="the file does not exist on this computer, so `pulumi up` would fail")


def _key_files(planned: Planned) -> Iterator[tuple[str, Path]]:
    spec = _spec(planned)
    if spec.key is not None:
        yield "cluster.platform.key", Path(spec.key).expanduser()
    for path, host in _each(planned):
        if host.key is not None:
            yield f"{path}.key", Path(host.key).expanduser()


@check("hosts-unused", Level.ERROR, "add {host} to the hosts of a group, or remove it here")
def every_host_used(planned: Planned) -> Iterator[Broken]:
    """Each host is the head or a member of a group."""
    used = {host.name for host in planned.plan.hosts}
    for path, host in _each(planned):
        if host.called not in used:
            rule = f"{host.called} is neither the head nor a member of a group"
            yield Broken(path=path, rule=rule, words={"host": host.called})


@check(
    "hosts-head-works",
    Level.ERROR,
    "choose a different cluster.head.host, or use scheduler: none",
    "write {machine} in both sections",
)
def head_may_run_jobs(planned: Planned) -> Iterator[Broken]:
    """A head that runs jobs has the machine type of its group, and its cluster does not use Slurm."""
    plan = planned.plan
    if not plan.head.runs_jobs:
        return
    group = str(plan.head.group)
    if plan.scheduler == "slurm":
        rule = f"{plan.head.name} is the head of a Slurm cluster, which cannot run jobs"
        yield Broken(path=f"cluster.nodes.{group}.hosts", rule=rule)
    if plan.head.machine.name != plan.groups[group].machine:
        words = {"machine": plan.groups[group].machine}
        rule = f"differs from the machine type of group {group}, which contains the head"
        yield Broken(path="cluster.head.machine", rule=rule, words=words, fix=1)


@check(
    "hosts-machine",
    Level.ERROR,
    "add `gpu_type: h100`",
    "write the number of ports that are up on each host, or declare fabric: ethernet",
)
def gpus_named(planned: Planned) -> Iterator[Broken]:
    """Machine types with GPUs have gpu_type, and machine types with InfiniBand or RoCE have rdma."""
    for name, facts in _spec(planned).machines.items():
        path = f"cluster.platform.machines.{name}"
        if facts.gpus and facts.gpu_type is None:
            yield Broken(path=f"{path}.gpu_type", rule="is missing, but the machine type has GPUs")
        if (facts.fabric == "ethernet") == (facts.rdma > 0):
            yield Broken(path=f"{path}.rdma", rule="must be set if and only if fabric is infiniband or roce", fix=1)


@check(
    "hosts-rdma-devices",
    Level.ERROR,
    "list {rdma} devices, or correct rdma of {machine}",
    "list the devices for collectives, as `rdma link` prints them",
)
def rdma_devices_known(planned: Planned) -> Iterator[Broken]:
    """rdma_devices lists one device for each RDMA port of a machine type, and is required with RoCE."""
    listed = _spec(planned).rdma_devices
    for machine in {host.machine.name: host.machine for host in planned.plan.hosts if host.machine.rdma}.values():
        if len(listed) not in {0, machine.rdma}:
            rule = f"lists {len(listed)} devices, but {machine.name} has {machine.rdma}"
            yield in_platform("rdma_devices", rule, rdma=machine.rdma, machine=machine.name)
        elif machine.fabric == "roce" and not listed:
            rule = f"must list the RDMA devices of {machine.name}, because its fabric is roce"
            yield in_platform("rdma_devices", rule, fix=1)


@check("hosts-defaults", Level.ERROR, "leave it out")
def defaults_kept(planned: Planned) -> Iterator[Broken]:
    """Placement, capacity and access.via use their default values."""
    plan = planned.plan
    for name, group in plan.groups.items():
        if group.placement != "none":
            rule = f"{group.placement} has no effect: existing hosts cannot be placed together"
            yield in_group(name, "placement", rule)
        if group.capacity.kind != "on_demand":
            rule = f"{group.capacity.kind} has no effect: existing hosts use no cloud capacity"
            yield in_group(name, "capacity", rule)
    if plan.access.via != "public":
        rule = f"{plan.access.via} has no effect: SSH uses the address and proxy_jump of each host"
        yield Broken(path="cluster.access.via", rule=rule)


@check(
    "hosts-power",
    Level.ERROR,
    "add elastic to a group, or remove it",
    "remove it. Elastic groups already stop idle workers",
    "use an image with Slurm 23.11 or later, or remove it",
)
def power_command_used(planned: Planned) -> Iterator[Broken]:
    """power_command has elastic groups with a current Slurm, and the head is never stopped, because it cannot wake."""
    plan = planned.plan
    if _spec(planned).power_command and not plan.is_elastic:
        yield in_platform("power_command", "has no effect, because no group is elastic")
    if plan.idle_minutes is not None:
        rule = "would also stop the head, and nothing could start an existing host that is the head"
        yield Broken(path="cluster.idle", rule=rule, fix=1)
    for name, group in plan.groups.items():
        if group.elastic is not None and plan.image.slurm_version < _SAVES_POWER_SINCE:
            version = "{}.{:02}".format(*plan.image.slurm_version)
            yield in_group(name, "elastic", f"requires Slurm 23.11, and {_spec(planned).image} has {version}", fix=2)


_SAVES_POWER_SINCE = (23, 11)
"""The first version whose power saving was read (repair/power.py)."""
_LEAST_PARTS = 2
_OTHER_FOLDERS = frozenset(
    "bin boot dev etc home job lib lib64 proc root run sbin shared sys tmp usr var".split()  # noqa: SIM905
)
"""Top-level folders to which the system, the cluster or users write."""


@check("hosts-storage", Level.ERROR, "write head_nfs", "write a folder such as /raid/trainyard")
def storage_on_head(planned: Planned) -> Iterator[Broken]:
    """The head serves the shared files from a folder outside the system folders."""
    kind = planned.plan.storage.kind
    if kind != "head_nfs":
        yield in_storage("kind", f"{kind} is not available on existing hosts")
    folder = planned.plan.storage.path or ""
    parts = folder.split("/")[1:]
    if folder and (
        len(parts) < _LEAST_PARTS or not all(parts) or {".", ".."} & set(parts) or parts[0] in _OTHER_FOLDERS
    ):
        yield Broken(
            path="cluster.storage.shared.path",
            rule=f"{folder} must be a folder below a mount point, outside the system folders",
            fix=1,
        )


@check(
    "hosts-unconfined",
    Level.WARNING,
    "give each job whole nodes, or upgrade the hosts to ubuntu-24.04, or use scheduler: none",
)
def jobs_confined(planned: Planned) -> Iterator[Broken]:
    """Slurm limits jobs to their resources, which requires a Slurm version that supports cgroup v2."""
    if planned.plan.scheduler == "slurm" and not confines(planned.plan):
        major, minor = planned.plan.image.slurm_version
        rule = (
            f"Slurm {major}.{minor:02} of {planned.plan.image.name} does not support cgroup v2, so jobs can use more "
            "cores, memory and GPUs than Slurm allocates to them"
        )
        yield in_platform("image", rule)
