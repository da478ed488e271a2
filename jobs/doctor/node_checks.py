"""What a host tells of itself, judged. One check per probe; each yields a Finding for what would break a job."""

from __future__ import annotations

import json
from collections.abc import Iterator

from jobs.doctor.findings import Examined, Finding, odd_ones, rdma_layer

_REBOOT = "`yard ssh {node} --admin -- sudo systemctl restart trainyard-bootstrap` runs its stages again"
_CLOCK_OFFSET_SECONDS = 0.5
_SHM_SHARE = 4
"""Shared memory must be at least one part in this many of all; Linux gives it half, a careless container 64 MiB."""

_STATUS_FIELDS = 2


def check_status(examined: Examined) -> Iterator[Finding]:
    """The bootstrap of this boot has reached ready."""
    for report in examined.answered:
        try:
            status = json.loads(report.value("status", "json") or "{}")
        except ValueError:
            status = {}
        state, stage = status.get("state", "nothing"), status.get("stage", "")
        if status.get("boot_id") != report.value("status", "boot_id"):
            state, stage = "nothing of this boot", ""
        if state != "ready":
            yield Finding(
                probe="status",
                node=report.name,
                what=f"its bootstrap says {state} {stage}".rstrip(),
                cause=str(status.get("command") or "a stage has not finished"),
                fix=f"read /var/log/trainyard/{stage or '*'}.log there; " + _REBOOT.format(node=report.name),
            )


def check_services(examined: Examined) -> Iterator[Finding]:
    """Every daemon of the role is active."""
    for report in examined.answered:
        rows = report.of("services") or [("systemd", "no answer")]
        for unit, state in rows:
            if state != "active":
                yield Finding(
                    probe="services",
                    node=report.name,
                    what=f"{unit} is {state}",
                    cause=f"`journalctl -u {unit}` on {report.name} tells why",
                    fix=_REBOOT.format(node=report.name),
                )


def check_mounts(examined: Examined) -> Iterator[Finding]:
    """Workers have /home and the shared path from the head, by NFS 4.2, hard."""
    for report in examined.workers:
        for path in (examined.cluster.home_path, examined.cluster.shared_path):
            row = next((row for row in report.of("mounts") if row[0] == path), None)
            options = row[2].split(",") if row else []
            if row is None or row[1] != "nfs4":
                what, cause = (
                    f"{path} is not mounted",
                    "the head's NFS server did not answer, or the automount is stopped",
                )
            elif "hard" not in options or "vers=4.2" not in options:
                what, cause = f"{path} is mounted with {row[2]}", "a soft or older mount cuts checkpoints short"
            else:
                continue
            fix = f"start nfs-server on {examined.cluster.head.name}, then {_REBOOT.format(node=report.name)}"
            yield Finding(probe="mounts", node=report.name, what=what, cause=cause, fix=fix)


def check_clock(examined: Examined) -> Iterator[Finding]:
    """chrony or systemd-timesyncd steers every clock, and all show the same time when asked at once."""
    head = examined.head
    head_now = _seconds(head.value("clock", "now")) if head else None
    for report in examined.answered:
        fix = f"`yard ssh {report.name} --admin -- sudo chronyc makestep`, then look at `chronyc sources` there"
        row = next((row for row in report.of("clock") if row[0] == "chrony"), ("chrony", "", ""))
        offset, leap = _seconds(row[1]), row[2]
        if offset is None and report.value("clock", "synchronised") == "yes":
            pass  # systemd-timesyncd, on an existing host
        elif offset is None or leap in {"", "Not synchronised"}:
            what, cause = "its clock is not steered", "chrony is down or has no source; the head must answer on UDP 123"
            yield Finding(probe="clock", node=report.name, what=what, cause=cause, fix=fix)
        elif abs(offset) > _CLOCK_OFFSET_SECONDS:
            what, cause = f"its clock is off by {offset:.1f} s", "chrony is still moving it there, or lost its source"
            yield Finding(probe="clock", node=report.name, what=what, cause=cause, fix=fix)
        now = _seconds(report.value("clock", "now"))
        if head_now is not None and now is not None and abs(now - head_now) > _CLOCK_APART_SECONDS:
            what = f"its clock differs from the head's by {now - head_now:+.0f} s"
            cause = "munge refuses credentials from a clock that is 300 s off, and files look changed in the future"
            yield Finding(probe="clock", node=report.name, what=what, cause=cause, fix=fix)


_CLOCK_APART_SECONDS = 5
"""Hosts are asked at once, but a busy one may answer late."""


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def check_shm(examined: Examined) -> Iterator[Finding]:
    """Shared memory is large enough for data loaders and NCCL."""
    for report in examined.workers:
        size, memory = next(iter(report.of("shm")), ("0", "0"))
        if int(size) * _SHM_SHARE < int(memory) or int(size) == 0:
            yield Finding(
                probe="shm",
                node=report.name,
                what=f"shared memory has {int(size) // 1024} MiB of {int(memory) // 1024} MiB",
                cause="/dev/shm was mounted small, as containers do by default",  # noqa: S108  (words, not a path)
                fix=f"`yard ssh {report.name} --admin -- sudo mount -o remount,size=50% /dev/shm`",
            )


def check_software(examined: Examined) -> Iterator[Finding]:
    """python, torch and NCCL agree on the workers, Slurm on all hosts. The majority is taken to be right."""
    slurm = [("slurm", examined.answered)] if examined.has_slurm else []
    for what, reports in (*((what, examined.workers) for what in ("python", "torch", "nccl")), *slurm):
        versions = {report.name: report.value("software", what) or "absent" for report in reports}
        for name, version, usual in odd_ones(versions):
            yield Finding(
                probe="software",
                node=name,
                what=f"{what} is {version}, elsewhere {usual}",
                cause="it was made from another image, or packages were changed by hand",
                fix=f"replace the node by one from the same image as the others, or install {what} {usual}",
            )


def check_queue(examined: Examined) -> Iterator[Finding]:
    """Slurm offers every worker."""
    head = examined.head
    if head is None:
        return
    rows = {row[0]: row[1:] for row in head.of("queue")}
    for node in examined.cluster.nodes:
        state, reason = (*rows.get(node.name, ("unknown to Slurm", "none")), "none")[:_STATUS_FIELDS]
        if state.rstrip("*~#!%$@+^-") in {"idle", "allocated", "mixed", "completing", "planned"} and "*" not in state:
            continue
        yield Finding(
            probe="queue",
            node=node.name,
            what=f"Slurm says {state}",
            cause="slurmd there has not registered" if reason == "none" else reason,
            fix=f"mend what else is said of {node.name}, then `yard ssh --admin -- sudo scontrol update "
            f"nodename={node.name} state=resume`",
        )


def check_memlock(examined: Examined) -> Iterator[Finding]:
    """A rank may lock all memory: RDMA registers its buffers. Under ssh's limits only RDMA is worth a finding."""
    fabric = {node.name: node.fabric for node in examined.cluster.nodes}
    for name, limit in (row for report in examined.answered for row in report.of("memlock")):
        if limit == "unlimited" or not (examined.has_slurm or rdma_layer(fabric[name])):
            continue
        cause = "slurmd runs without LimitMEMLOCK=infinity, or PropagateResourceLimits passes on a login's limit"
        fix = _REBOOT.format(node=name) + ", and restart slurmd there"
        if not examined.has_slurm:
            cause, fix = "nothing raises ssh's limit", f"`* - memlock unlimited` in /etc/security/limits.d on {name}"
        what = f"a task may lock {limit} KiB of memory only"
        yield Finding(probe="memlock", node=name, what=what, cause=cause, fix=fix)
