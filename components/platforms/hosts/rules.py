"""What a stack file about existing hosts can get wrong beyond its schema. What only a host knows, its survey says."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from components.checks.base import Check, Level, Planned
from components.errors import Problem
from components.host_key_format import HOST_KEY
from components.slurm import confines

if TYPE_CHECKING:
    from components.platforms.hosts.spec import Host, Spec

_HOST_KEY = re.compile(rf"(?:{HOST_KEY.pattern})( [^\n]*)?")
"""A host key of the stack file may end with a comment."""
PROXY = re.compile(r"(?:(?P<user>[a-z_][a-z0-9_-]{0,31})@)?(?P<address>[A-Za-z0-9.-]{1,253})(?::(?P<port>[0-9]{1,5}))?")
_PORTS = range(1, 65536)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def _spec(planned: Planned) -> Spec:
    found: Spec = planned.spec.platform  # type: ignore[assignment]
    return found


def _each(planned: Planned) -> Iterator[tuple[str, Host]]:
    for index, host in enumerate(_spec(planned).hosts):
        yield f"cluster.platform.hosts.{index}", host


def addresses_differ(planned: Planned) -> Iterator[Problem]:
    """Two entries for one machine would bring it up twice."""
    seen: dict[tuple[str, int, str | None], str] = {}
    for path, host in _each(planned):
        place = (host.address.lower(), host.port, host.proxy_jump)
        if place in seen:
            rule = f"{host.address} port {host.port} is {seen[place]}'s already"
            yield Problem(path=f"{path}.address", rule=rule, fix="keep one of the two entries")
        seen.setdefault(place, host.called)


def private_ips_differ(planned: Planned) -> Iterator[Problem]:
    """Nodes find one another by these."""
    seen: dict[str, str] = {}
    for path, host in _each(planned):
        address = str(host.private_ip)
        if address in seen:
            rule, fix = f"{address} is {seen[address]}'s already", "correct one; `ip -4 address` on the host shows it"
            yield Problem(path=f"{path}.private_ip", rule=rule, fix=fix)
        seen.setdefault(address, host.called)


def private_ips_in_network(planned: Planned) -> Iterator[Problem]:
    """The shares are exported to the cluster's network, and to nobody else."""
    network = planned.spec.network.cidr
    for path, host in _each(planned):
        if host.private_ip not in network:
            fix = "set cluster.network.cidr to the network that joins the hosts"
            yield Problem(path=f"{path}.private_ip", rule=f"{host.private_ip} is not in {network}", fix=fix)


def host_keys_known(planned: Planned) -> Iterator[Problem]:
    """A host is known by its key before anything is sent to it; the first answer on a line proves nothing."""
    for path, host in _each(planned):
        scan = f"`yard hosts scan {host.address}:{host.port}` prints it; compare its fingerprint on the host's console"
        if host.host_key is None:
            yield Problem(path=f"{path}.host_key", rule="is missing: nobody could tell the host from another", fix=scan)
        elif not _HOST_KEY.fullmatch(host.host_key):
            yield Problem(path=f"{path}.host_key", rule="must be a public host key, type and key", fix=scan)


def proxies_known(planned: Planned) -> Iterator[Problem]:
    """A proxy is one of the hosts, or somebody else with a host key of its own."""
    names = {host.called: host for host in _spec(planned).hosts}
    for path, host in _each(planned):
        proxy = host.proxy_jump
        if proxy is None or (proxy in names and proxy != host.called and names[proxy].proxy_jump is None):
            continue
        where = f"{path}.proxy_jump"
        found = PROXY.fullmatch(proxy)
        if proxy in names:
            fix = "name a host that is reached directly"
            yield Problem(path=where, rule=f"{proxy} is not reached directly itself", fix=fix)
        elif not found or int(found["port"] or 22) not in _PORTS:
            fix = "write something like ubuntu@203.0.113.9:22, or the name of a host of this list"
            yield Problem(path=where, rule="must be a host's name or [user@]address[:port]", fix=fix)
        elif not _HOST_KEY.fullmatch(host.proxy_host_key or ""):
            fix = f"`yard hosts scan {found['address']}:{found['port'] or 22}` prints it"
            yield Problem(path=f"{path}.proxy_host_key", rule="must be the proxy's public host key", fix=fix)


def keys_private(planned: Planned) -> Iterator[Problem]:
    """ssh refuses a private key that others may read, and so does this."""
    for path, file in _key_files(planned):
        if file.is_file() and file.stat().st_mode & _OTHERS:
            yield Problem(path=path, rule="others may read this private key", fix=f"chmod 600 {file}")


def keys_there(planned: Planned) -> Iterator[Problem]:
    """A preview works without the keys; `pulumi up` does not."""
    for path, file in _key_files(planned):
        if not file.is_file():
            fix = "correct the path, or leave key out and load the key into the ssh agent"
            yield Problem(path=path, rule="there is no such file here, so `pulumi up` would fail", fix=fix)


def _key_files(planned: Planned) -> Iterator[tuple[str, Path]]:
    spec = _spec(planned)
    if spec.key is not None:
        yield "cluster.platform.key", Path(spec.key).expanduser()
    for path, host in _each(planned):
        if host.key is not None:
            yield f"{path}.key", Path(host.key).expanduser()


def every_host_used(planned: Planned) -> Iterator[Problem]:
    """A host that nobody uses is probably forgotten in a group."""
    used = {host.name for host in planned.plan.hosts}
    for path, host in _each(planned):
        if host.called not in used:
            fix = f"add {host.called} to the hosts of a group, or remove it here"
            yield Problem(path=path, rule=f"{host.called} is neither the head nor in a group", fix=fix)


def head_may_work(planned: Planned) -> Iterator[Problem]:
    """Slurm's controller shares its machine with no job; without Slurm, the head is a node like others."""
    plan, spec = planned.plan, planned.spec
    if not plan.head.works:
        return
    group = str(plan.head.group)
    if plan.scheduler == "slurm":
        fix = "choose another cluster.head.host, or use scheduler: none"
        yield Problem(
            path=f"cluster.nodes.{group}.hosts", rule=f"{plan.head.name} is the head of a Slurm cluster", fix=fix
        )
    if spec.head.machine != spec.nodes[group].machine:
        fix = f"write {spec.nodes[group].machine} in both places"
        yield Problem(
            path="cluster.head.machine", rule=f"the head is in group {group}, of another machine type", fix=fix
        )


def gpus_named(planned: Planned) -> Iterator[Problem]:
    """A machine's GPUs have a type, which the host is asked for; InfiniBand has ports, which must be up."""
    for name, facts in _spec(planned).machines.items():
        path = f"cluster.platform.machines.{name}"
        if facts.gpus and facts.gpu_type is None:
            yield Problem(path=f"{path}.gpu_type", rule="is missing, and there are GPUs", fix="add `gpu_type: h100`")
        if (facts.fabric == "ethernet") == (facts.rdma > 0):
            fix = "write how many ports of each host are up, or declare fabric: ethernet"
            yield Problem(path=f"{path}.rdma", rule="rdma belongs to fabric: infiniband and fabric: roce", fix=fix)


def rdma_devices_known(planned: Planned) -> Iterator[Problem]:
    """As many devices as the machine types have. On Ethernet, cards for storage and for ssh look alike."""
    listed = _spec(planned).rdma_devices
    for machine in {host.machine.name: host.machine for host in planned.plan.hosts if host.machine.rdma}.values():
        if len(listed) not in {0, machine.rdma}:
            fix = f"list {machine.rdma} devices, or correct rdma of {machine.name}"
            rule = f"lists {len(listed)} devices, and {machine.name} has {machine.rdma}"
            yield Problem(path="cluster.platform.rdma_devices", rule=rule, fix=fix)
        elif machine.fabric == "roce" and not listed:
            fix = "list those for collectives, as `rdma link` shows them"
            rule = f"must name the devices of {machine.name}, whose fabric is roce"
            yield Problem(path="cluster.platform.rdma_devices", rule=rule, fix=fix)


_LEAST_PARTS = 2
_OTHER_FOLDERS = frozenset(
    "bin boot dev etc home job lib lib64 proc root run sbin shared sys tmp usr var".split()  # noqa: SIM905
)
"""Top-level folders in which the cluster, the system or its users write."""


def storage_on_head(planned: Planned) -> Iterator[Problem]:
    """The head serves the files; nothing outside is created or asked."""
    kind = planned.spec.storage.shared.kind
    if kind != "head_nfs":
        yield Problem(
            path="cluster.storage.shared.kind", rule=f"{kind} is not made on hosts that exist", fix="write head_nfs"
        )
    folder = planned.spec.storage.shared.path or ""
    parts = folder.split("/")[1:]
    if folder and (
        len(parts) < _LEAST_PARTS or not all(parts) or {".", ".."} & set(parts) or parts[0] in _OTHER_FOLDERS
    ):
        yield Problem(
            path="cluster.storage.shared.path",
            rule=f"{folder} must be a folder of its own below a disk's, outside the system's folders",
            fix="write something like /raid/trainyard",
        )


def jobs_confined(planned: Planned) -> Iterator[Problem]:
    """Without cgroup v2, Slurm hands out GPUs and memory and cannot hold a job to its share."""
    if planned.plan.scheduler == "slurm" and not confines(planned.plan):
        major, minor = planned.plan.image.slurm_version
        yield Problem(
            path="cluster.platform.image",
            rule=f"{planned.plan.image.name} has Slurm {major}.{minor:02}, which knows no cgroup v2: jobs are given "
            "cores, memory and GPUs, but not held to them",
            fix="give each job whole nodes, or upgrade the hosts to ubuntu-24.04, or use scheduler: none",
        )


RULES: tuple[Check[Planned], ...] = (
    Check(id="hosts-address", level=Level.ERROR, run=addresses_differ),
    Check(id="hosts-private-ip", level=Level.ERROR, run=private_ips_differ),
    Check(id="hosts-network", level=Level.ERROR, run=private_ips_in_network),
    Check(id="hosts-host-key", level=Level.ERROR, run=host_keys_known),
    Check(id="hosts-proxy", level=Level.ERROR, run=proxies_known),
    Check(id="hosts-key-private", level=Level.ERROR, run=keys_private),
    Check(id="hosts-key-missing", level=Level.WARNING, run=keys_there),
    Check(id="hosts-unused", level=Level.ERROR, run=every_host_used),
    Check(id="hosts-head-works", level=Level.ERROR, run=head_may_work),
    Check(id="hosts-machine", level=Level.ERROR, run=gpus_named),
    Check(id="hosts-rdma-devices", level=Level.ERROR, run=rdma_devices_known),
    Check(id="hosts-storage", level=Level.ERROR, run=storage_on_head),
    Check(id="hosts-unconfined", level=Level.WARNING, run=jobs_confined),
)
