"""Measures for how long jobs have not used their GPUs on this node, for limits.idle_gpu.

The prolog stores the GPUs of each job in a file (trainyard.idle_gpus.FOLDER), and the epilog deletes it. The node
reports to the head, which decides (repair/idle_jobs.py), because a job is idle only if it is idle on all its nodes.

`utilization.gpu` of nvidia-smi is the share of the last second or less in which a kernel ran. A process that only
allocated memory had 0 %, and one that computed for 20 ms of each second had more than 0 % in one of 12 samples. A
sample took 32 ms of CPU time with two GPUs and 64 ms with four (driver 580.159.04, H100s, 2026-11-27).
"""

from __future__ import annotations

import re
from pathlib import Path

from health.node import Node
from health.slurm import jobs_on
from trainyard.idle_gpus import FOLDER, REPEAT_SECONDS, render_report

SAMPLE_SECONDS = 20.0
_QUERY = ["nvidia-smi", "--format=csv,noheader,nounits", "--query-gpu=pci.bus_id,utilization.gpu"]
_SECONDS = 20
_MINOR = re.compile(r"(?m)^Device Minor:\s*(\d+)\s*$")
_GPUS = re.compile(r"\d+(?:,\d+)*")
_PCI = 12
"""The length of a PCI address with a domain of four digits, as in /proc. nvidia-smi prints eight digits."""

_Start = tuple[str, int]
"""A start of a job on this node: its number and the time at which the prolog wrote its file."""


class IdleGpus:
    """The state of the measurement. One thread calls `sample`, and another calls `report`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._folder = node.path(FOLDER)
        self.limit = float(node.count("TRAINYARD_IDLE_GPU_SECONDS"))
        """The time without use after which the head acts, or 0 if the stack file has no limit."""
        self.due = 0.0 if self.limit else float("inf")
        """The time of the next sample."""
        self._since: dict[_Start, float] = {}
        """The times since which no GPU of the job has been used."""
        self._reported: tuple[str, ...] = ()
        """The jobs in the last report."""
        self._reported_at = 0.0

    def sample(self, now: float) -> None:
        """Take a sample if it is due. `now` is a monotonic time."""
        if now < self.due:
            return
        self.due = now + SAMPLE_SECONDS
        jobs = self._jobs()
        used = self._utilization() if jobs else {}
        # A GPU whose utilization is unknown, for example a GPU in MIG mode, counts as used.
        idle = [start for start, gpus in jobs.items() if all(used.get(gpu) == "0" for gpu in gpus)]
        self._since = {start: self._since.get(start, now) for start in idle}

    def report(self, now: float, wall: float) -> None:
        """Send the jobs that have been idle for half of the limit to Slurm, if they have changed or once a minute.

        `now` is a monotonic time, and `wall` is in seconds since 1970. If Slurm does not answer, the next call repeats
        the report.
        """
        idle = {job: now - since for (job, _), since in self._since.items() if now - since >= self.limit / 2}
        names = tuple(sorted(idle))
        if names == self._reported and (not names or now - self._reported_at < REPEAT_SECONDS):
            return
        if names:
            # Without an epilog, for example after a crash of slurmd, the file of an ended job remains.
            running = jobs_on(self._node)
            if running is None:
                return
            for job in [job for job in idle if job not in running]:
                (self._folder / job).unlink(missing_ok=True)
                del idle[job]
        text = render_report({int(job): seconds for job, seconds in idle.items()}, wall)
        name = self._node.variable("TRAINYARD_NODE")
        if self._node.run(["scontrol", "update", f"nodename={name}", f"extra={text}"], _SECONDS).code == 0:
            self._reported, self._reported_at = names, now

    def _jobs(self) -> dict[_Start, tuple[str, ...]]:
        """Return the GPUs of each job on this node, as the numbers of their device files."""
        found: dict[_Start, tuple[str, ...]] = {}
        for file in self._files():
            try:
                text, written = file.read_text().strip(), file.stat().st_mtime_ns
            except OSError:
                continue
            if _GPUS.fullmatch(text):
                found[file.name, written] = tuple(text.split(","))
        return found

    def _files(self) -> list[Path]:
        try:
            return [file for file in self._folder.iterdir() if file.name.isdigit()]
        except OSError:
            return []

    def _utilization(self) -> dict[str, str]:
        """Return a mapping from the number of a GPU's device file to its utilization in percent.

        The order of nvidia-smi can differ from that of the device files, so GPUs are found by their PCI addresses.
        """
        ran = self._node.run(_QUERY, _SECONDS)
        if ran.code != 0:
            return {}
        rows = (line.split(",") for line in ran.output.splitlines() if line.count(",") == 1)
        by_address = {address.strip().lower()[-_PCI:]: percent.strip() for address, percent in rows}
        found: dict[str, str] = {}
        for file in self._node.glob("/proc/driver/nvidia/gpus/*/information"):
            minor = _MINOR.search(self._node.read(file))
            if minor is not None and (percent := by_address.get(file.parent.name.lower())) is not None:
                found[minor[1]] = percent
        return found
