"""The names of this project's metrics, and the text format in which the node exporter reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

GAUGE, COUNTER = "gauge", "counter"
METRICS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        # From each node (collector.py).
        "trainyard_cpu_seconds_total": (COUNTER, "Seconds that all processors have spent in each mode."),
        "trainyard_cpus": (GAUGE, "Number of processors."),
        "trainyard_health_check_failed": (GAUGE, "Whether the last run of a health check failed."),
        "trainyard_gpu_info": (GAUGE, "The GPU's uuid and model."),
        "trainyard_gpu_job": (GAUGE, "The Slurm job to which the GPU is allocated."),
        "trainyard_gpu_utilization_percent": (GAUGE, "Share of the time in which a kernel ran."),
        "trainyard_gpu_memory_used_bytes": (GAUGE, "Used memory."),
        "trainyard_gpu_memory_total_bytes": (GAUGE, "Installed memory."),
        "trainyard_gpu_power_watts": (GAUGE, "Power draw."),
        "trainyard_gpu_power_limit_watts": (GAUGE, "Enforced power limit."),
        "trainyard_gpu_temperature_celsius": (GAUGE, "Temperature of the GPU."),
        "trainyard_gpu_memory_temperature_celsius": (GAUGE, "Temperature of the memory."),
        "trainyard_gpu_sm_clock_hertz": (GAUGE, "Clock of the streaming multiprocessors."),
        "trainyard_gpu_sm_clock_max_hertz": (GAUGE, "Highest clock of the streaming multiprocessors."),
        "trainyard_gpu_throttled": (GAUGE, "Whether the clock is reduced for this reason."),
        "trainyard_gpu_ecc_errors_total": (COUNTER, "Memory errors since the driver was loaded."),
        "trainyard_gpu_row_remap": (GAUGE, "Whether a remapping of memory rows is pending or has failed."),
        "trainyard_gpu_xid_errors_total": (COUNTER, "Messages of the driver with this Xid since the boot."),
        "trainyard_gpu_nvlink_bytes_total": (COUNTER, "Data that the GPU's NVLinks have sent or received."),
        "trainyard_gpu_nvlink_errors_total": (COUNTER, "Errors of the GPU's NVLinks since the driver was loaded."),
        "trainyard_job_goodput_ratio": (GAUGE, "Share of the job's wall time that was spent on useful steps."),
        # From the head (repair/figures.py).
        "trainyard_nodes": (GAUGE, "Number of workers by state: busy, idle, off or out of service."),
        "trainyard_node_in_service": (GAUGE, "Whether Slurm can start jobs on the node."),
        "trainyard_node_off": (GAUGE, "Whether Slurm has powered the node down."),
        "trainyard_node_fault": (GAUGE, "The cause in the node's drain reason."),
        "trainyard_gpus_in_service": (GAUGE, "Number of GPUs in the nodes in service."),
        "trainyard_gpus_allocated": (GAUGE, "Number of GPUs that are allocated to jobs."),
        "trainyard_jobs": (GAUGE, "Number of jobs by state and user. A waiting array counts once."),
        "trainyard_user_gpus": (GAUGE, "Number of GPUs that are allocated to a user's jobs."),
        "trainyard_usd_per_hour": (GAUGE, "List price of the machines that are on, and of the services."),
        "trainyard_spent_usd": (GAUGE, "What the calendar month (UTC) has cost at list prices."),
        "trainyard_limit_usd": (GAUGE, "The limit limits.max_usd_per_month."),
    }
)
"""Mapping from metric to its type and its description."""


def escaped(value: str) -> str:
    """Return a label value in the text format, in which backslash, quote and newline are escaped."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Page:
    """Metrics in the text format. Samples of one metric are together, as the format requires."""

    def __init__(self) -> None:
        self._samples: dict[str, list[str]] = {}

    def add(self, metric: str, value: float, **labels: str) -> None:
        """Add a sample. Raises KeyError if METRICS does not contain the metric."""
        kind, about = METRICS[metric]
        samples = self._samples.setdefault(metric, [f"# HELP {metric} {about}\n# TYPE {metric} {kind}\n"])
        shown = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
        samples.append(f"{metric}{{{shown}}} {value:.15g}\n" if shown else f"{metric} {value:.15g}\n")

    @property
    def text(self) -> str:
        return "".join(sample for samples in self._samples.values() for sample in samples)


def write(path: Path, text: str) -> None:
    """Replace a file that every user may read. Readers see the old or the new content.

    The file is not flushed to the disk, because it is written again soon.
    """
    new = path.with_name(f"{path.name}.new")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(file, "w") as opened:
        opened.write(text)
        os.fchmod(file, 0o644)
    new.replace(path)
