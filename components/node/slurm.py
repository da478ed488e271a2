"""Renders Slurm's configuration files for the Slurm version in the plan's image.

Because the plan contains all hosts and addresses, slurm.conf is complete before any machine exists. Workers run in
configless mode, so the head serves slurm.conf, gres.conf, cgroup.conf and plugstack.conf to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from components.catalog import Machine, SlurmVersion
from components.node.parameters import START_SECONDS
from components.node.user_data import JOB_USER
from components.plan.plan import ClusterPlan, HostPlan
from components.spec.people import PEOPLE
from trainyard.errors import CatalogError

SLURM_VERSIONS = ((21, 8), (22, 5), (23, 11), (24, 11))
"""The versions in Ubuntu 22.04, Debian 12, Ubuntu 24.04 and Debian 13. All supported versions accept the keys below."""

_CONFINES_SINCE = (22, 5)
"""The first version that supports cgroup v2. Current distributions mount only v2."""

_UNCONFINED = {
    # Processes are tracked by their parents, so a process that forks twice can outlive its job.
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/affinity",
    "JobAcctGatherType": "jobacct_gather/linux",
    # PrologFlags=Contain needs proctrack/cgroup.
    "PrologFlags": "Alloc",
}

_HEADER = "# Written by trainyard from the stack file; changes made here are lost.\n"

_REQUEUES_SINCE = (23, 11)
"""The first version with PrologFlags=ForceRequeueOnFail (common/read_config.c of 21.08.5, 22.05.8, 23.11.4 and 24.11.5;
read 2026-11-22). If the prolog fails, the flag requeues even jobs with --no-requeue, because they have not started."""
_JOB_FOLDERS = "/var/lib/trainyard/job-folders"
_PROGRAMS = "/usr/local/sbin"
"""The bundle installs these programs before slurmd starts, because a missing prolog would drain the node."""
_MESSAGE_SECONDS = 60
_COMMON = {
    "AuthType": "auth/munge",
    # A requeued job is held for the lifetime of its step credentials, which is 120 s by default.
    "AuthInfo": "cred_expire=20",
    "CredType": "cred/munge",
    "SlurmUser": "slurm",
    # Every node has the munge key, so root on a worker can act as SlurmUser. By default, slurmctld runs programs for
    # SlurmUser on the head (src/slurmctld/trigger_mgr.c and proc_req.c of 23.11.4 and 24.11.5, read 2026-11-24). Older
    # versions ignore disable_triggers, so only the settings in slurmctld.service.d prevent this.
    "SlurmctldParameters": "enable_configless,disable_triggers",
    "StateSaveLocation": "/var/lib/slurm/slurmctld",
    "SlurmdSpoolDir": "/var/spool/slurmd",
    "SlurmctldPidFile": "/run/slurmctld/slurmctld.pid",
    "SlurmdPidFile": "/run/slurmd.pid",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_Core_Memory",
    "ProctrackType": "proctrack/cgroup",
    "TaskPlugin": "task/cgroup,task/affinity",
    "JobAcctGatherType": "jobacct_gather/cgroup",
    "JobAcctGatherFrequency": "30",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    # `sacct` works only on the head, because slurmdbd accepts only connections from its own host (slurmdbd.service.d).
    "AccountingStorageHost": "localhost",
    "AccountingStorageTRES": "gres/gpu",
    "MpiDefault": "none",
    "LaunchParameters": "use_interactive_step",
    # Slurm tracks a job's processes on each node from the job's start. A job whose prolog fails does not start.
    "PrologFlags": "Contain",
    # A fault drains the node (docs/health.md). In all versions, slurmd runs HealthCheckProgram at its start and then
    # once a minute while the node responds (run_health_check in slurmctld/ping_nodes.c of Slurm 21.08.5, 23.11.4 and
    # 24.11.5, read 2026-11-22). Slurm itself drains a node whose prolog or epilog fails or is late.
    "HealthCheckProgram": f"{_PROGRAMS}/trainyard-health-program",
    "HealthCheckInterval": "60",
    "HealthCheckNodeState": "ANY,CYCLE",
    "Prolog": f"{_PROGRAMS}/trainyard-prolog",
    "Epilog": f"{_PROGRAMS}/trainyard-epilog",
    "PrologEpilogTimeout": "120",
    # Otherwise, jobs inherit the login shell's limit of 8 MiB for locked memory, which is too low for RDMA.
    "PropagateResourceLimits": "NONE",
    "DisableRootJobs": "YES",
    # Slurm ends a step whose rank fails. If a node fails, its job starts again and appends to its output.
    "KillOnBadExit": "1",
    "JobRequeue": "1",
    "JobFileAppend": "1",
    # A node that reboots unexpectedly stays down until the health stage returns it to service, so that its job is
    # requeued instead of being marked as completed.
    "ReturnToService": "1",
    # slurmctld ends the jobs of nodes that have not responded for this long, even if the head's own network has failed
    # (ping_nodes in slurmctld/ping_nodes.c of Slurm 23.11.4 and 24.11.5, read 2026-11-24). Because of
    # HealthCheckInterval, the last response is about a minute old, so no jobs end if the head is unreachable for ten
    # minutes. trainyard-repair detects a failed node much earlier.
    "SlurmdTimeout": "900",
    "SlurmctldTimeout": "120",
    "MessageTimeout": str(_MESSAGE_SECONDS),
    "TCPTimeout": "15",
    "BatchStartTimeout": "120",
    # At less than five times MessageTimeout, slow storage would cause nodes to be drained with "Kill task failed".
    "UnkillableStepTimeout": str(5 * _MESSAGE_SECONDS),
    # Seconds between SIGTERM and SIGKILL, in which a job can write a last checkpoint.
    "KillWait": "60",
    # batch_sched_delay: by default, a job submitted soon after another job waits up to 3 s (measured: 2.8 s by default,
    # 0.9 s with this setting). nohold_on_prolog_fail: a failed prolog drains the node without holding the requeued job.
    "SchedulerParameters": (
        "batch_sched_delay=0,bf_interval=5,sched_interval=10,bf_continue,"
        "nohold_on_prolog_fail,salloc_wait_nodes,sbatch_wait_nodes"
    ),
}

_ELASTIC = {
    # Slurm starts and stops machines only with these programs, but trainyard-repair starts and stops them instead
    # (repair/power.py).
    "ResumeProgram": "/usr/bin/true",
    "SuspendProgram": "/usr/bin/true",
    "ResumeTimeout": str(START_SECONDS),
    # A node is not allocated for this long after its machine began to stop.
    "SuspendTimeout": "60",
}
_NEVER = 365 * 86400
"""The SuspendTime in seconds of elastic groups. Slurm's power saving is off without one (_init_power_config in
slurmctld/power_save.c of 23.11.4 and 24.11.5, read 2026-11-26). trainyard-repair powers idle nodes down earlier."""

_FAIR_USE = {
    # Jobs can use only the accounts of their user and, with `qos`, only the QOS of their user, which has the limits.
    # `safe`: a job starts only if the GPU hours of the month last until its time limit. Otherwise, Slurm would end jobs
    # that use up the hours (slurm.conf(5) of 24.11.5, read 2026-11-26).
    "AccountingStorageEnforce": "limits,qos,safe",
    # The limit of GPU hours and fair share use the same counters, which a decay would also reduce, so that the limit
    # would not apply to a month. Without a decay, both count the usage since the first day of the month (_apply_decay
    # and _reset_usage in plugins/priority/multifactor/priority_multifactor.c of 24.11.5, read 2026-11-26).
    "PriorityType": "priority/multifactor",
    "PriorityDecayHalfLife": "0",
    "PriorityUsageResetPeriod": "MONTHLY",
    # After seven days (PriorityMaxAge), a waiting job has gained as much as a tenth of the difference between the user
    # with the least usage and the user with the most.
    "PriorityWeightFairshare": "100000",
    "PriorityWeightAge": "10000",
}


def render_slurm_conf(plan: ClusterPlan) -> str:
    """Return slurm.conf. Raises CatalogError if the Slurm version is not supported."""
    _require_supported_version(plan)
    head = plan.head
    values = {
        "ClusterName": plan.name,
        # Because of the address, configless workers do not need DNS.
        "SlurmctldHost": f"{head.name}({head.private_ip})",
        **_COMMON,
    }
    if not confines(plan):
        values |= _UNCONFINED
    if plan.users:
        values |= _FAIR_USE
    if plan.is_elastic:
        values |= _ELASTIC
    if separates_folders(plan):
        values["JobContainerType"] = "job_container/tmpfs"
    if plan.image.slurm_version >= _REQUEUES_SINCE:
        values["PrologFlags"] += ",ForceRequeueOnFail"
    if any(host.machine.gpus for host in plan.workers):
        values["GresTypes"] = "gpu"
    topologies = [host.machine.topology for host in plan.nodes if host.machine.topology is not None]
    if any(topology.needs_numa_as_socket(plan.image.slurm_version) for topology in topologies):
        values["SlurmdParameters"] = "numa_node_as_socket"
    settings = "".join(f"{key}={value}\n" for key, value in sorted(values.items()))
    version = plan.image.slurm_version
    nodes = "".join(f"{line}\n" for group in plan.groups for line in _node_lines(plan.group(group), version))
    partitions = "".join(
        f"{_partition_line(plan, group, default=group == next(iter(plan.groups)))}\n" for group in plan.groups
    )
    return f"{_HEADER}{settings}\n{nodes}\n{partitions}"


def render_gres_conf(plan: ClusterPlan) -> str:
    """Return gres.conf with the catalog's GPU device files and the cores near each GPU."""
    _require_supported_version(plan)
    lines = [
        f"NodeName={host_list(hosts)} Name=gpu Type={hosts[0].machine.gpu_type} {gpus}\n"
        for hosts in map(plan.group, plan.groups)
        for gpus in _gpu_lines(hosts[0].machine, plan.image.slurm_version)
    ]
    return f"{_HEADER}AutoDetect=off\n{''.join(lines)}"


def render_cgroup_conf(plan: ClusterPlan) -> str:
    """Return cgroup.conf, which confines jobs to their cores, memory and GPUs if this version of Slurm can."""
    _require_supported_version(plan)
    if not confines(plan):
        unused = "# This version of Slurm does not support cgroup v2: jobs are not confined, and this file is not used."
        return f"{_HEADER}{unused}\n"
    return (
        f"{_HEADER}CgroupPlugin=cgroup/v2\nConstrainCores=yes\nConstrainDevices=yes\n"
        "ConstrainRAMSpace=yes\nConstrainSwapSpace=no\n"
    )


def render_plugstack_conf(plan: ClusterPlan) -> str:
    """Return plugstack.conf, which loads the pyxis plugin on the nodes that have it. Jobs with enroot use the plugin.

    `make install` in pyxis and the pyxis packages use these paths (NVIDIA/pyxis at 10751994). The head serves this file
    to the workers. Each node includes its own files and ignores a pattern without matches (common/fetch_config.c,
    common/plugstack.c and common/spank.c of 21.08.8 to 24.11.5; all read 2026-11-23).
    """
    folders = ("/usr/local/share/pyxis", "/usr/share/pyxis") if plan.containers == "enroot" else ()
    return _HEADER + "".join(f"include {folder}/*.conf\n" for folder in folders)


def separates_folders(plan: ClusterPlan) -> bool:
    """Return whether each job has its own temporary folders: on clusters with people. Slurm 23.11 or later can join
    them after a login to the node (contribs/pam_slurm_adopt, join_container). Only existing hosts have older versions,
    and they have no people (components/stackfile/plan_checks.py, users_supported).

    Programs use predictable names in /tmp, for example torch.compile the name torchinductor_USER, and some do not check
    the owner (default_cache_dir in torch/_inductor/runtime/cache_dir_utils.py). Another person could create such a
    folder first, and a job would run that person's code. The first change of the users from none to some can disturb
    running jobs (job_container.conf(5)). All sources were read on 2026-11-26.
    """
    return bool(plan.users)


def render_job_container_conf(plan: ClusterPlan) -> str:
    """Return job_container.conf, which slurmd fetches from the head (common/fetch_config.c of 23.11.4 and 24.11.5).

    The folders are private to a job and are deleted at its end. `Shared` lets later mounts on the node appear in a job
    (job_container.conf(5) of 24.11; all read 2026-11-26).
    """
    if not separates_folders(plan):
        return f"{_HEADER}# Jobs use the node's temporary folders.\n"
    return f"{_HEADER}AutoBasePath=true\nBasePath={_JOB_FOLDERS}\nDirs=/tmp,/var/tmp,/dev/shm\nShared=true\n"


def render_slurmdbd_conf(plan: ClusterPlan) -> str:
    """Return slurmdbd.conf without `StoragePass=`. The head generates the password and adds this line."""
    _require_supported_version(plan)
    return (
        f"{_HEADER}AuthType=auth/munge\nDbdHost=localhost\nSlurmUser=slurm\n"
        "StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=slurm\nStorageLoc=slurm_acct_db\n"
        "PidFile=/run/slurmdbd/slurmdbd.pid\n"
    )


def confines(plan: ClusterPlan) -> bool:
    """Return whether this version of Slurm can confine jobs to their cores, memory and GPUs."""
    return plan.image.slurm_version >= _CONFINES_SINCE


def host_list(hosts: Sequence[HostPlan]) -> str:
    """Return a group's hosts as a Slurm host list: `yard-gpu-[0-1]` if they are numbered, otherwise `a,b`."""
    stem = hosts[0].name.removesuffix(str(hosts[0].index))
    if any(host.name != f"{stem}{host.index}" for host in hosts):
        return ",".join(host.name for host in hosts)
    return f"{stem}{_range(hosts[0].index, hosts[-1].index)}"


def _require_supported_version(plan: ClusterPlan) -> None:
    version = plan.image.slurm_version
    if version not in SLURM_VERSIONS:
        known = ", ".join(f"{major}.{minor:02}" for major, minor in SLURM_VERSIONS)
        raise CatalogError(
            f"image {plan.image.name} has Slurm {version[0]}.{version[1]:02}, but supported versions are {known}; "
            "use another image, or check components/node/slurm.py against that version and extend SLURM_VERSIONS"
        )


def _node_lines(hosts: Sequence[HostPlan], version: SlurmVersion) -> Iterator[str]:
    """Yield a line for each range of addresses in a /24, because Slurm expands ranges only in the last number."""
    facts = _node_facts(hosts[0].machine, version)
    rows = groupby(enumerate(hosts), key=lambda pair: (int(pair[1].private_ip) >> 8, int(pair[1].private_ip) - pair[0]))
    for _, row in rows:
        part = [host for _, host in row]
        prefix, first = str(part[0].private_ip).rsplit(".", 1)
        address = f"{prefix}.{_range(int(first), int(first) + len(part) - 1)}"
        yield f"NodeName={host_list(part)} NodeAddr={address} {facts} State=UNKNOWN"


def _node_facts(machine: Machine, version: SlurmVersion) -> str:
    """Return a machine type's settings for a NodeName line.

    A node with the right number of CPUs but different sockets stays up (slurmd logs "Node configuration differs from
    hardware"). A node with fewer CPUs is set to INVAL and drained with "Low socket*core*thread count" (SchedMD/slurm at
    slurm-23-11-4-1, slurmd.c and node_mgr.c; 21.08 and 24.11 behave in the same way). With
    SlurmdParameters=config_overrides, Slurm would also accept nodes with too little memory.
    """
    sockets = ""
    if machine.topology is not None:
        count, cores = machine.topology.slurm_sockets(version)
        sockets = f" Sockets={count} CoresPerSocket={cores} ThreadsPerCore={machine.topology.threads_per_core}"
    gres = f" Gres=gpu:{machine.gpu_type}:{machine.gpus}" if machine.gpus else ""
    return f"CPUs={machine.vcpus}{sockets} RealMemory={machine.schedulable_memory_mib}{gres}"


def _partition_line(plan: ClusterPlan, group: str, *, default: bool) -> str:
    hosts = plan.group(group)
    machine = hosts[0].machine
    # Without these defaults, a job that requests no memory gets all of the node's memory, and a job that requests no
    # CPUs gets one core for all its GPUs.
    share = f"DefMemPerCPU={machine.schedulable_memory_mib // machine.vcpus}"
    if machine.gpus and machine.vcpus >= machine.gpus:
        share += f" DefCpuPerGPU={machine.vcpus // machine.gpus}"
    if plan.users and any(host.machine.gpus for host in plan.nodes):
        # By default, `billing`, which fair share and the limits of accounts count, is the number of CPUs.
        share += " TRESBillingWeights=GRES/gpu=1"
    first = "YES" if default else "NO"
    # On existing hosts, other accounts must not run jobs, because their uid can belong to a different account on
    # another host. The prolog also checks the group on each node, because SlurmUser can change a partition.
    # slurmctld looks up a new person's primary group when the person submits a job (validate_group in
    # slurmctld/partition_mgr.c of 21.08.5 to 24.11.5, read 2026-11-25).
    who = f"AllowGroups={JOB_USER}{f',{PEOPLE}' if plan.users else ''}"
    if plan.groups[group].elastic is not None:
        share += f" SuspendTime={_NEVER}"
    return f"PartitionName={group} Nodes={host_list(hosts)} {who} Default={first} MaxTime=INFINITE State=UP {share}"


def _gpu_lines(machine: Machine, version: SlurmVersion) -> Iterator[str]:
    """Yield File and Cores for each range of GPUs with the same cores.

    Cores is omitted if the cores are unknown or, as the gres.conf manual recommends, if each GPU is near all cores.
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
