"""Writes a node's metrics to a file that the node exporter reads. A timer starts the program every 30 seconds.

It runs as an unprivileged user and calls nvidia-smi once, and twice more on nodes with NVLink. The queries were tested
on H100s with driver 580.159.04.

A job tells its goodput in the name of one of its processes (/proc/PID/comm), which yard/run/flight.py sets. The kernel
limits a name to 15 bytes, removes it with the process, and shows everyone the process's cgroup, which contains the
number of the job and which only root and slurmd assign. So no service follows a path or reads a file that a user
controls, and a user can only change the goodput of own jobs. A file would need space that users can fill, and jobs of
people have their own /tmp and /dev/shm.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from metrics.page import Page, write
from trainyard.idle_gpus import FOLDER

OUTPUT = "/run/trainyard-metrics/node.prom"
HEALTH = "/run/trainyard/health/results.json"
FIGURES = "/var/lib/trainyard/repair/metrics.prom"
"""The cluster's metrics on the head (repair/figures.py)."""
OLD_SECONDS = 300.0
"""Older files are ignored, because the service that writes them has stopped."""
_GOODPUT = re.compile(r"goodput (0\.\d{3}|1\.000)\n")
"""The name of a process that tells the goodput of its job (show_goodput in yard/run/flight.py)."""
_CGROUP = re.compile(r"(?m)^0::/system\.slice/(?:[\w.-]+_)?slurmstepd\.scope/job_(\d+)/")
"""The cgroup of a job's process (Slurm with cgroup v2). Users can create cgroups, but not at the root."""
_MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The first numbers in /proc/stat, in hundredths of a second (proc(5), read 2026-11-27)."""
_TICKS = 100.0
_MIB, _MHZ = 2.0**20, 1e6
_NUMBERS = {
    "utilization.gpu": ("trainyard_gpu_utilization_percent", 1.0),
    "memory.used": ("trainyard_gpu_memory_used_bytes", _MIB),
    "memory.total": ("trainyard_gpu_memory_total_bytes", _MIB),
    "power.draw": ("trainyard_gpu_power_watts", 1.0),
    "enforced.power.limit": ("trainyard_gpu_power_limit_watts", 1.0),
    "temperature.gpu": ("trainyard_gpu_temperature_celsius", 1.0),
    "temperature.memory": ("trainyard_gpu_memory_temperature_celsius", 1.0),
    "clocks.sm": ("trainyard_gpu_sm_clock_hertz", _MHZ),
    "clocks.max.sm": ("trainyard_gpu_sm_clock_max_hertz", _MHZ),
}
"""Mapping from a field of nvidia-smi to the metric and the factor to its unit."""
_KINDS = {
    "ecc.errors.corrected.volatile.total": ("trainyard_gpu_ecc_errors_total", "corrected"),
    "ecc.errors.uncorrected.volatile.total": ("trainyard_gpu_ecc_errors_total", "uncorrected"),
    "remapped_rows.pending": ("trainyard_gpu_row_remap", "pending"),
    "remapped_rows.failure": ("trainyard_gpu_row_remap", "failure"),
}
"""Mapping from a field of nvidia-smi to the metric and its label `kind`."""
_REASONS = {0x04: "power_cap", 0x08: "hardware", 0x20: "temperature", 0x40: "hardware_temperature", 0x80: "power_brake"}
"""Bits of clocks_throttle_reasons.active (nvml.h, nvmlClocksEventReason*, read 2026-11-27). The other bits are not
faults: idle, and clocks that a user has set."""
_THROTTLE = "clocks_throttle_reasons.active"
FIELDS = ("index", "uuid", "name", "pci.bus_id", *_NUMBERS, *_KINDS, _THROTTLE)
QUERY = ("nvidia-smi", "--format=csv,noheader,nounits", f"--query-gpu={','.join(FIELDS)}")
_SMI_SECONDS = 20
NVLINK = (("nvidia-smi", "nvlink", "-gt", "d"), ("nvidia-smi", "nvlink", "-e"))
"""The calls for the data and the errors of each link. Each took 0.07 s on two H100s on 2026-11-27."""
_NVLINK_SECONDS = 10
NO_NVLINK = "/run/trainyard-metrics/no-nvlink"
"""The file that is written if the first of these calls shows no link."""
_NO_NVLINK_SECONDS = 3600.0
"""The time after which the call is repeated, because links can come up after the boot."""
_GPU = re.compile(r"GPU (\d+):")
_DATA = re.compile(r"\s*Link \d+: Data (Tx|Rx): (\d+) KiB")
_ERRORS = re.compile(r"\s*Link \d+: ([A-Za-z ]+?) Errors: (\d+)")
_DIRECTIONS = {"Tx": "sent", "Rx": "received"}
_JOB = re.compile(r"\d+")


def number(text: str) -> float | None:
    """Return the number in a field of nvidia-smi, or None if the GPU does not support it ("[N/A]")."""
    if text in {"Yes", "No"}:
        return float(text == "Yes")
    try:
        return float(int(text, 16)) if text.startswith("0x") else float(text)
    except ValueError:
        return None


def gpu_rows(output: str) -> Iterator[dict[str, str]]:
    """Yield a mapping from field to value for each GPU in the output of QUERY. Other lines are ignored."""
    for line in output.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(FIELDS) and values[0].isdigit():
            yield dict(zip(FIELDS, values))  # noqa: B905  (Python 3.10)


def add_gpus(page: Page, rows: Iterable[dict[str, str]]) -> None:
    """Add the metrics of each GPU."""
    for row in rows:
        gpu = row["index"]
        page.add("trainyard_gpu_info", 1, gpu=gpu, uuid=row["uuid"], model=row["name"])
        for field, (metric, factor) in _NUMBERS.items():
            value = number(row[field])
            if value is not None:
                page.add(metric, value * factor, gpu=gpu)
        for field, (metric, kind) in _KINDS.items():
            value = number(row[field])
            if value is not None:
                page.add(metric, value, gpu=gpu, kind=kind)
        active = number(row[_THROTTLE])
        for bit, reason in _REASONS.items() if active is not None else ():
            page.add("trainyard_gpu_throttled", float(bool(int(active or 0) & bit)), gpu=gpu, reason=reason)


def add_nvlinks(page: Page, data: str, errors: str) -> None:
    """Add the sums over each GPU's links, from the output of the calls in NVLINK."""
    for (gpu, name), kib in _sums(data, _DATA).items():
        page.add("trainyard_gpu_nvlink_bytes_total", kib * 1024, gpu=gpu, direction=_DIRECTIONS[name])
    for (gpu, name), count in _sums(errors, _ERRORS).items():
        page.add("trainyard_gpu_nvlink_errors_total", count, gpu=gpu, kind=name.lower().replace(" ", "_"))


def _sums(output: str, pattern: re.Pattern[str]) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    gpu = ""
    for line in output.splitlines():
        if header := _GPU.match(line):
            gpu = header[1]
        elif link := pattern.match(line):
            found[gpu, link[1]] += int(link[2])
    return found


def add_xids(page: Page, root: Path, counts: dict[str, dict[str, int]], rows: Iterable[dict[str, str]]) -> None:
    """Add the Xids that the health daemon has counted. `counts` is a mapping from PCI address and Xid to the number.

    The daemon reads them from the kernel log as root. If nvidia-smi does not show a GPU, for example because it has
    fallen off the bus, its index is its place in the driver's folder, because nvidia-smi sorts by PCI address.
    """
    folder = root / "proc/driver/nvidia/gpus"
    known = sorted(path.name[:-2].lower() for path in folder.iterdir()) if folder.is_dir() else []
    indices = {address: str(index) for index, address in enumerate(known)}
    indices |= {row["pci.bus_id"].lower()[-12:-2]: row["index"] for row in rows}
    sums: Counter[tuple[str, str]] = Counter()
    for address, xids in counts.items():
        for xid, count in xids.items():
            sums[indices.get(address, address), xid] += count
    for (gpu, xid), count in sorted(sums.items()):
        page.add("trainyard_gpu_xid_errors_total", count, gpu=gpu, xid=xid)


def device_numbers(root: Path, rows: Iterable[dict[str, str]]) -> dict[str, str]:
    """Return a mapping from the number in a GPU's device file, which Slurm uses, to its index in nvidia-smi."""
    found = {}
    for row in rows:
        # nvidia-smi prints a domain of eight digits, and the driver's folder has one of four.
        domain, _, rest = row["pci.bus_id"].lower().partition(":")
        text = _read(root / f"proc/driver/nvidia/gpus/{domain[-4:]}:{rest}/information")
        minor = re.search(r"(?m)^Device Minor:\s*(\d+)", text)
        found[minor[1] if minor else row["index"]] = row["index"]
    return found


def add_jobs(page: Page, root: Path, numbers: dict[str, str]) -> None:
    """Add the job of each allocated GPU, from the files of the prolog. `numbers`: see `device_numbers`."""
    folder = root / FOLDER.lstrip("/")
    files = [file for file in folder.iterdir() if _JOB.fullmatch(file.name)] if folder.is_dir() else []
    found: dict[str, str] = {}
    # Without an epilog, for example after a crash of slurmd, the file of an ended job remains. With two jobs for a GPU,
    # the rule GpuSlowerThanOthers would fail for all GPUs.
    for file in sorted(files, key=_written):
        found |= {numbers.get(gpu, gpu): file.name for gpu in _JOB.findall(_read(file))}
    for gpu, job in sorted(found.items()):
        # Prometheus itself sets a label `job`.
        page.add("trainyard_gpu_job", 1, gpu=gpu, slurm_job=job)


def add_goodput(page: Page, root: Path) -> None:
    """Add the goodput of the jobs whose first node this is."""
    found: dict[str, float] = {}
    for folder in (root / "proc").glob("[0-9]*"):
        if name := _GOODPUT.fullmatch(_read(folder / "comm")):
            job = _CGROUP.search(_read(folder / "cgroup"))
            if job:
                found.setdefault(job[1], float(name[1]))
    for job_number, ratio in sorted(found.items()):
        page.add("trainyard_job_goodput_ratio", ratio, slurm_job=job_number)


def add_node(page: Page, root: Path, rows: Iterable[dict[str, str]], now: float) -> None:
    """Add the processors' times, the results of the health checks and the Xids."""
    lines = _read(root / "proc/stat").splitlines()
    for mode, ticks in zip(_MODES, lines[0].split()[1:] if lines else ()):  # noqa: B905  (Python 3.10)
        page.add("trainyard_cpu_seconds_total", int(ticks) / _TICKS, mode=mode)
    page.add("trainyard_cpus", sum(re.match(r"cpu\d", line) is not None for line in lines))
    try:
        found = json.loads(_read(root / HEALTH.lstrip("/")) or "{}")
    except ValueError:
        return
    if now - found.get("time", 0.0) < OLD_SECONDS:
        for check, (state, _) in found.get("results", {}).items():
            if state in {"pass", "fail"}:
                page.add("trainyard_health_check_failed", float(state == "fail"), check=check)
        add_xids(page, root, found.get("xids", {}), rows)


def collect(root: Path, smi_output: str, now: float, nvlinks: Sequence[str] = ("", "")) -> str:
    """Return the text for the node exporter. `nvlinks`: see `nvlink_output`. `now` is in seconds since 1970."""
    page, rows = Page(), list(gpu_rows(smi_output))
    add_node(page, root, rows, now)
    add_gpus(page, rows)
    add_nvlinks(page, *nvlinks)
    add_jobs(page, root, device_numbers(root, rows))
    add_goodput(page, root)
    figures = root / FIGURES.lstrip("/")
    is_new = figures.exists() and now - figures.stat().st_mtime < OLD_SECONDS
    return page.text + (_read(figures) if is_new else "")


def nvlink_output(root: Path, smi_output: str, now: float) -> tuple[str, str]:
    """Return the output of the calls in NVLINK. Nothing is called on a node without GPUs or without links."""
    no_links = root / NO_NVLINK.lstrip("/")
    if not any(gpu_rows(smi_output)) or (no_links.exists() and now - no_links.stat().st_mtime < _NO_NVLINK_SECONDS):
        return "", ""
    data = output_of(NVLINK[0], _NVLINK_SECONDS)
    if not _sums(data, _DATA):
        no_links.touch()
        return "", ""
    return data, output_of(NVLINK[1], _NVLINK_SECONDS)


def output_of(command: Sequence[str], seconds: float) -> str:
    """Return the output of a command, or "" if it does not exist or does not work."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def main() -> None:
    """Write the metrics once."""
    os.umask(0o022)
    root, smi, now = Path("/"), output_of(QUERY, _SMI_SECONDS), time.time()
    write(Path(OUTPUT), collect(root, smi, now, nvlink_output(root, smi, now)))


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
