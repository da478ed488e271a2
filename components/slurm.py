"""Slurm's configuration as text: pure functions of a plan, by the Slurm version of its image.

Every host and address is in the plan, so slurm.conf is whole before anything exists and nothing is discovered.
Workers are configless: the head serves slurm.conf, gres.conf and cgroup.conf to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from components.catalog import Machine
from components.catalog.topology import SlurmVersion
from components.errors import CatalogError
from components.plan import ClusterPlan, HostPlan

SLURM_VERSIONS = ((21, 8), (22, 5), (23, 11), (24, 11))
"""What the renderers are made for: Ubuntu 22.04, Debian 12, Ubuntu 24.04 and Debian 13. All keys below are known to
each of them."""

_CONFINES_SINCE = (22, 5)
"""The first version that speaks cgroup v2, the only one that today's distributions mount."""

_UNCONFINED = {
    # By parentage instead of cgroups: a process that detaches itself twice outlives its job.
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/affinity",
    "JobAcctGatherType": "jobacct_gather/linux",
    # Contain needs proctrack/cgroup.
    "PrologFlags": "Alloc",
}

_HEADER = "# Written by trainyard from the stack file; changes made here are lost.\n"

_MESSAGE_SECONDS = 60
_COMMON = {
    "AuthType": "auth/munge",
    # The lifetime of a step's credential is also how long a requeued job is held: 20 s instead of 120.
    "AuthInfo": "cred_expire=20",
    "CredType": "cred/munge",
    "SlurmUser": "slurm",
    "SlurmctldParameters": "enable_configless",
    "StateSaveLocation": "/var/lib/slurm/slurmctld",
    "SlurmdSpoolDir": "/var/spool/slurmd",
    "SlurmctldPidFile": "/run/slurmctld.pid",
    "SlurmdPidFile": "/run/slurmd.pid",
    "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
    "SlurmdLogFile": "/var/log/slurm/slurmd.log",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core_Memory",
    "ProctrackType": "proctrack/cgroup",
    "TaskPlugin": "task/cgroup,task/affinity",
    "JobAcctGatherType": "jobacct_gather/cgroup",
    "JobAcctGatherFrequency": "30",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageTRES": "gres/gpu",
    "MpiDefault": "none",
    "LaunchParameters": "use_interactive_step",
    # The job's processes on a node belong to it from its start, and a prolog that fails stops the job before it runs.
    "PrologFlags": "Contain",
    # A login shell's 8 MiB of locked memory would follow the job and break RDMA.
    "PropagateResourceLimits": "NONE",
    "DisableRootJobs": "YES",
    # A lost rank ends its step, and a job that lost a node starts again, adding to its output instead of wiping it.
    "KillOnBadExit": "1",
    "JobRequeue": "1",
    "JobFileAppend": "1",
    # A node that rebooted by surprise stays down, so that its job is requeued rather than called complete. Its own
    # health stage returns it to service.
    "ReturnToService": "1",
    # A dead node is noticed within a minute; clouds pause a machine for maintenance up to half of that.
    "SlurmdTimeout": "60",
    "SlurmctldTimeout": "120",
    "MessageTimeout": str(_MESSAGE_SECONDS),
    "TCPTimeout": "15",
    "BatchStartTimeout": "120",
    # Below five times MessageTimeout, nodes are drained for "Kill task failed" when storage is merely slow.
    "UnkillableStepTimeout": str(5 * _MESSAGE_SECONDS),
    # From SIGTERM to SIGKILL: the time to write a last checkpoint.
    "KillWait": "60",
    # batch_sched_delay: else a job submitted soon after another waits up to 3 s for its turn (measured: 2.8 s, now
    # 0.9). nohold: a node that fails its prolog is drained, and its requeued job would wait for an operator.
    "SchedulerParameters": (
        "batch_sched_delay=0,bf_interval=5,sched_interval=10,bf_continue,"
        "nohold_on_prolog_fail,salloc_wait_nodes,sbatch_wait_nodes"
    ),
}


def render_slurm_conf(plan: ClusterPlan) -> str:
    """Return slurm.conf. Raises CatalogError for a Slurm version that the renderers were not made for."""
    _known_version(plan)
    head = plan.head
    values = {
        "ClusterName": plan.name,
        # Name and address: configless workers need no DNS.
        "SlurmctldHost": f"{head.name}({head.private_ip})",
        "AccountingStorageHost": head.name,
        **_COMMON,
    }
    if not confines(plan):
        values |= _UNCONFINED
    if any(host.machine.gpus for host in plan.workers):
        values["GresTypes"] = "gpu"
    topologies = [host.machine.topology for host in plan.nodes if host.machine.topology is not None]
    if any(topology.needs_numa_as_socket(plan.image.slurm_version) for topology in topologies):
        values["SlurmdParameters"] = "numa_node_as_socket"
    settings = "".join(f"{key}={value}\n" for key, value in sorted(values.items()))
    version = plan.image.slurm_version
    nodes = "".join(f"{line}\n" for group in plan.groups for line in _node_lines(plan.group(group), version))
    partitions = "".join(
        f"{_partition_line(group, plan.group(group), default=group == plan.groups[0])}\n" for group in plan.groups
    )
    return f"{_HEADER}{settings}\n{nodes}\n{partitions}"


def render_gres_conf(plan: ClusterPlan) -> str:
    """Return gres.conf: the GPUs' device files and the cores near them, from the catalog. The nodes are not probed."""
    _known_version(plan)
    lines = [
        f"NodeName={host_list(hosts)} Name=gpu Type={hosts[0].machine.gpu_type} {gpus}\n"
        for hosts in map(plan.group, plan.groups)
        for gpus in _gpu_lines(hosts[0].machine, plan.image.slurm_version)
    ]
    return f"{_HEADER}AutoDetect=off\n{''.join(lines)}"


def render_cgroup_conf(plan: ClusterPlan) -> str:
    """Return cgroup.conf: a job is held to its cores, its memory and its GPUs, where this Slurm can hold it."""
    _known_version(plan)
    if not confines(plan):
        return f"{_HEADER}# This Slurm knows no cgroup v2: jobs are not confined, and nothing reads this file.\n"
    return (
        f"{_HEADER}CgroupPlugin=cgroup/v2\nConstrainCores=yes\nConstrainDevices=yes\n"
        "ConstrainRAMSpace=yes\nConstrainSwapSpace=no\n"
    )


def render_slurmdbd_conf(plan: ClusterPlan) -> str:
    """Return slurmdbd.conf without its password: the head makes one for itself and adds the `StoragePass=` line."""
    _known_version(plan)
    return (
        f"{_HEADER}AuthType=auth/munge\nDbdHost={plan.head.name}\nSlurmUser=slurm\n"
        "StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=slurm\nStorageLoc=slurm_acct_db\n"
        "LogFile=/var/log/slurm/slurmdbd.log\nPidFile=/run/slurmdbd.pid\n"
    )


def confines(plan: ClusterPlan) -> bool:
    """Return whether this Slurm can hold a job to the cores, memory and GPUs that it asked for."""
    return plan.image.slurm_version >= _CONFINES_SINCE


def host_list(hosts: Sequence[HostPlan]) -> str:
    """Return the hosts of one group as Slurm writes them: `yard-gpu-[0-1]` where they are numbered, else `a,b`."""
    stem = hosts[0].name.removesuffix(str(hosts[0].index))
    if any(host.name != f"{stem}{host.index}" for host in hosts):
        return ",".join(host.name for host in hosts)
    return f"{stem}{_range(hosts[0].index, hosts[-1].index)}"


def _known_version(plan: ClusterPlan) -> None:
    version = plan.image.slurm_version
    if version not in SLURM_VERSIONS:
        known = ", ".join(f"{major}.{minor:02}" for major, minor in SLURM_VERSIONS)
        raise CatalogError(
            f"image {plan.image.name} has Slurm {version[0]}.{version[1]:02}, but configuration is made for {known}; "
            "use another image, or check components/slurm.py against that version and add it"
        )


def _node_lines(hosts: Sequence[HostPlan], version: SlurmVersion) -> Iterator[str]:
    """One line for each row of addresses in a /24: Slurm expands a range only in an address's last number."""
    facts = _node_facts(hosts[0].machine, version)
    rows = groupby(
        enumerate(hosts), key=lambda place: (int(place[1].private_ip) >> 8, int(place[1].private_ip) - place[0])
    )
    for _, row in rows:
        part = [host for _, host in row]
        prefix, first = str(part[0].private_ip).rsplit(".", 1)
        address = f"{prefix}.{_range(int(first), int(first) + len(part) - 1)}"
        yield f"NodeName={host_list(part)} NodeAddr={address} {facts} State=UNKNOWN"


def _node_facts(machine: Machine, version: SlurmVersion) -> str:
    """Return what slurm.conf states of a machine type.

    SlurmdParameters=config_overrides is not set: with it, Slurm would also accept nodes with too little memory, and its
    manual calls it "generally only useful for testing". Without it, a node with as many CPUs but other sockets stays up
    (slurmd logs "Node configuration differs from hardware"), and a node with fewer CPUs is set INVAL and drained with
    "Low socket*core*thread count". Source: SchedMD/slurm at slurm-23-11-4-1, slurmd.c and node_mgr.c; the same in 21.08
    and 24.11.
    """
    sockets = ""
    if machine.topology is not None:
        count, cores = machine.topology.slurm_sockets(version)
        sockets = f" Sockets={count} CoresPerSocket={cores} ThreadsPerCore={machine.topology.threads_per_core}"
    gres = f" Gres=gpu:{machine.gpu_type}:{machine.gpus}" if machine.gpus else ""
    return f"CPUs={machine.vcpus}{sockets} RealMemory={machine.schedulable_memory_mib}{gres}"


def _partition_line(group: str, hosts: Sequence[HostPlan], *, default: bool) -> str:
    machine = hosts[0].machine
    # A job that names no memory gets the share of its CPUs, and one that names no CPUs those of its GPUs: otherwise
    # it would hold a node's whole memory, or train eight GPUs on one core.
    share = f"DefMemPerCPU={machine.schedulable_memory_mib // machine.vcpus}"
    if machine.gpus and machine.vcpus >= machine.gpus:
        share += f" DefCpuPerGPU={machine.vcpus // machine.gpus}"
    first = "YES" if default else "NO"
    return f"PartitionName={group} Nodes={host_list(hosts)} Default={first} MaxTime=INFINITE State=UP {share}"


def _gpu_lines(machine: Machine, version: SlurmVersion) -> Iterator[str]:
    """Yield File and Cores for each run of GPUs with the same cores.

    Cores is left out if it is unknown, and if each GPU has all cores: then gres.conf says not to set it.
    """
    cores = machine.topology.gpu_cores(version) if machine.topology is not None else ()
    first = 0
    for near, run in groupby(cores or (None,) * machine.gpus):
        last = first + len(list(run)) - 1
        suffix = "" if near is None else f" Cores={near[0]}-{near[1]}"
        yield f"File={machine.gpu_device}{_range(first, last)}{suffix}"
        first = last + 1


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"
