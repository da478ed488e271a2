"""Checks of disks, memory, the clock, munge, NFS, leftovers of jobs, and events that the cloud announces."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

from health.node import Check, Node, Outcome, failed, passed, unknown

_SLURMCTLD_PORT, _NFS_PORT = 6817, 2049
_MOUNT_FIELDS = 4
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  (the path is examined, not written)
_AZURE, _GOOGLE = {"Metadata": "true"}, {"Metadata-Flavor": "Google"}
_LEAVES = frozenset({"Reboot", "Redeploy", "Preempt", "Terminate"})
"""The types of Azure events that end the machine's processes. "Freeze" only pauses the machine for seconds."""


def disk_full(node: Node, check: Check) -> Outcome:
    """Check that the file systems have free space and free inodes."""
    for path in check.limits["paths"]:
        try:
            facts = node.statvfs(path)
        except OSError as error:
            return unknown(f"{path}: {error.strerror}")
        size, free = (blocks * facts.f_frsize // 2**20 for blocks in (facts.f_blocks, facts.f_bavail))
        share = check.limits["min_free_share"]
        # A file system such as /tmp in memory can be smaller than min_free_mib, so a tenth of its size is enough.
        if free < max(min(check.limits["min_free_mib"], size / 10), size * share):
            return failed(f"{path} is full")
        if facts.f_files and facts.f_favail < facts.f_files * share:
            return failed(f"{path} has no free inodes")
    return passed()


shared_full = disk_full


def shared_disk(node: Node, check: Check) -> Outcome:
    """Check that the head's data disk is attached, and that the shared folders are on it and writable."""
    name = node.variable("TRAINYARD_SHARED_DISK")
    if not name:
        return passed()
    disk = node.path(name)
    if not disk.exists():
        return failed(f"the disk {name} is detached")
    mounts = {path: (source, options) for path, _, options, source in _mounts(node)}
    for path in check.limits["paths"]:
        source, options = mounts.get(path, ("", []))
        # A disk that is attached again has another name, and the folders are still on the detached one.
        if node.path(source).resolve() != disk.resolve():
            return failed(f"{path} is not on the disk {name}")
        if "ro" in options:
            return failed(f"{path} is read-only")
    return passed()


def root_read_only(node: Node, check: Check) -> Outcome:
    """Check that no local file system has become read-only."""
    options = {path: words for path, _, words, _ in _mounts(node)}
    if "/" not in options:
        return unknown("no mount table")
    for path in check.limits["paths"]:
        if "ro" in options.get(path, []):
            return failed(f"{path} is read-only")
    return passed()


def low_memory(node: Node, check: Check) -> Outcome:
    """Check that a node without jobs has free memory."""
    if _has_jobs(node):
        return unknown("jobs are running")
    rows = (line.split() for line in node.read("/proc/meminfo").splitlines())
    kib = {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
    total, free = kib.get("MemTotal:", 0), kib.get("MemAvailable:")
    if not total or free is None:
        return unknown("no memory statistics")
    if free < total * check.limits["min_free_share"]:
        return failed("memory is in use although no job is running")
    return passed()


def clock_offset(node: Node, check: Check) -> Outcome:
    """Check that the node's clock agrees with the head's clock."""
    offset = node.clock_offset(node.variable("TRAINYARD_HEAD_IP"), check.timeout)
    if offset is None:
        return unknown("the head's time server does not answer")
    if abs(offset) > check.limits["max_seconds"]:
        return failed("the clock differs from the head's clock")
    return passed(f"offset {offset:+.3f} s")


def munge(node: Node, check: Check) -> Outcome:
    """Check that munged accepts connections."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(check.timeout)
        try:
            client.connect(str(node.path("/run/munge/munge.socket.2")))
        except TimeoutError:
            return unknown("munged is slow")
        except OSError:
            return failed("munged is not running")
    return passed()


def nfs_hang(node: Node, check: Check) -> Outcome:
    """Check that each mounted NFS file system responds."""
    for path, kind, _, source in _mounts(node):
        if not kind.startswith("nfs") or _answers(node, path, check.timeout):
            continue
        head, server = node.variable("TRAINYARD_HEAD_IP"), source.partition(":")[0]
        # If the server or the head is down, the node is not at fault, and draining it would not help.
        if node.connects(server, _NFS_PORT, 3) == "refused":
            return unknown(f"the NFS server of {path} is down")
        if node.connects(head, _SLURMCTLD_PORT, 3) != "open":
            return unknown(f"{path} and the head do not answer")
        return failed(f"{path} does not answer")
    return passed()


def _answers(node: Node, path: str, timeout: float) -> bool:
    """Return whether the file system responds. A thread waits, because the call cannot be interrupted."""
    waiting: dict[str, threading.Thread] = node.memo.setdefault("nfs", {})
    if path not in waiting or not waiting[path].is_alive():
        waiting[path] = threading.Thread(target=_stat, args=(node, path), daemon=True)
        waiting[path].start()
    waiting[path].join(timeout)
    return not waiting[path].is_alive()


def _stat(node: Node, path: str) -> None:
    # An error is a response as well.
    with contextlib.suppress(OSError):
        node.statvfs(path)


def leftover_processes(node: Node, check: Check) -> Outcome:
    """Check that the processes that survived the epilog have ended."""
    alive = [pid for pid in node.events.get(check.id, "").split() if node.path(f"/proc/{pid}/stat").exists()]
    if alive:
        return failed("processes of an ended job cannot be killed")
    node.events.pop(check.id, None)
    return passed()


def leftover_containers(node: Node, check: Check) -> Outcome:
    """Check that each job container still has its client, a process of the job (`contain` in yard/run/shared.sh)."""
    listed = node.run(["docker", "ps", "--filter", "name=^yard-", "--format", "{{.Names}}"], check.timeout)
    if listed.code != 0:
        return unknown("docker does not answer")
    names = set(listed.output.split())
    if names:
        for path in node.glob("/proc/[0-9]*/cmdline"):
            names -= set(node.read(path).split("\0"))
    return failed("containers of an ended job are running") if names else passed()


def leftover_files(node: Node, check: Check) -> Outcome:
    """Check that a node without jobs has free space in /dev/shm."""
    if _has_jobs(node):
        return unknown("jobs are running")
    try:
        facts = node.statvfs(_SHARED_MEMORY)
    except OSError as error:
        return unknown(f"{_SHARED_MEMORY}: {error.strerror}")
    if facts.f_bavail < facts.f_blocks * check.limits["min_free_share"]:
        return failed(f"files of ended jobs fill {_SHARED_MEMORY}")
    return passed()


def _has_jobs(node: Node) -> bool:
    """Return whether a Slurm job is running on the node, judging by slurmstepd's cgroups or processes."""
    if node.glob("/sys/fs/cgroup/system.slice/*slurmstepd.scope/job_*"):
        return True
    if node.path("/sys/fs/cgroup/system.slice").exists():
        return False
    return any(node.read(path) == "slurmstepd" for path in node.glob("/proc/[0-9]*/comm"))


def _mounts(node: Node) -> list[tuple[str, str, list[str], str]]:
    """Return the path, type, options and source of each mount. A later mount on the same path hides an earlier one."""
    rows = (line.split() for line in node.read("/proc/self/mounts").splitlines())
    found = {row[1]: (row[1], row[2], row[3].split(","), row[0]) for row in rows if len(row) >= _MOUNT_FIELDS}
    return list(found.values())


def _scheduled_events(node: Node, timeout: float) -> str | None:
    """Return the event that Azure has announced, "" if there is none, or None if the service does not answer.

    The service returns a document with the array `Events`. Its items have `EventType`, `EventStatus`, `NotBefore` and
    `Resources`, which names the affected machines (not always this one). The first request can take two minutes
    (MicrosoftDocs/azure-compute-docs at 533281db, articles/virtual-machines/linux/scheduled-events.md, "Use the API",
    read 2026-11-22). The instance metadata contains this machine's name as `compute/name`.
    """
    if "machine" not in node.memo:
        name = node.fetch("/metadata/instance/compute/name?api-version=2021-02-01&format=text", _AZURE, timeout)
        if name is None:
            return None
        node.memo["machine"] = name.strip()
    text = node.fetch("/metadata/scheduledevents?api-version=2020-07-01", _AZURE, timeout)
    if text is None:
        return None
    for event in json.loads(text)["Events"]:
        if event["EventType"] in _LEAVES and node.memo["machine"] in event["Resources"]:
            when = f" after {event['NotBefore']}" if event.get("NotBefore") else ""
            return f"{event['EventType']}{when}"
    return ""


def _maintenance_event(node: Node, timeout: float) -> str | None:
    """Return the event that Google Cloud has announced, "" if there is none, or None if the service does not answer.

    `maintenance-event` is NONE, MIGRATE_ON_HOST_MAINTENANCE or TERMINATE_ON_HOST_MAINTENANCE, and machines with GPUs
    cannot migrate (Google Cloud, "Query metadata server for maintenance event notices"). `preempted` is TRUE after the
    notice of an eviction (README of banzaicloud/preemption-exporter). Both were read on 2026-11-22.
    """
    for key, event, words in (
        ("preempted", "TRUE", "preemption"),
        ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE", "termination for host maintenance"),
    ):
        value = node.fetch(f"/computeMetadata/v1/instance/{key}", _GOOGLE, timeout)
        if value is None:
            return None
        if value.strip() == event:
            return words
    return ""


def event(node: Node, check: Check) -> Outcome:
    """Check that the cloud has announced no event that ends this machine's processes."""
    read = _scheduled_events if node.announcer == "azure" else _maintenance_event
    found = read(node, check.timeout)
    if found is None:
        return unknown("the metadata service does not answer")
    return failed(f"the cloud announces {found}") if found else passed()
