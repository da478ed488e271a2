"""Records what could explain a job's speed: the software, hardware and use of its nodes, and its steps.

yard sends this file with each job. `flight.py watch PID` runs next to a node's first task, until the task with this PID
ends. It writes flight/START-NODE.jsonl in the run folder: the facts about the node, and a sample every ten seconds.
On the first node of a job under Slurm, the program also shows the job's goodput in its own name. `flight.py read
JOB=RUN_DIR...` runs on the head, and prints one JSON document for each job, which contains the run folder's records in
a size that does not depend on the job's duration. `flight.py now JOB=RUN_DIR...` prints the newest records. All
commands need only Python 3.10, and no root rights.

The fields of nvidia-smi, whose units are W, MHz, degrees Celsius and MiB, and the meaning of the clock event reasons
are from `nvidia-smi --help-query-gpu` and nvml.h (nvmlClocksEventReasons), read 2026-11-27.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

INTERVAL = 10
FOLDER = "flight"
_MOST_SAMPLES = 720
"""The most samples in a file. At this number, every second sample is removed, and the interval doubles."""
_KEPT_STARTS = 16
GOODPUT_SECONDS = 60.0
"""How often the goodput is computed, unless this takes longer than a second."""
_SECONDS = 2.0
"""How long the collection of the facts about the GPUs may take."""
_FACTS = {
    "driver_version": "GPU driver", "name": "GPU", "vbios_version": "GPU firmware", "power.limit": "power limit (W)",
    "clocks.max.sm": "highest clock (MHz)", "ecc.mode.current": "ECC", "mig.mode.current": "MIG",
    "pcie.link.gen.max": "PCIe generation", "pcie.link.width.current": "PCIe lanes",
}  # fmt: skip
_SAMPLED = ("utilization.gpu", "power.draw", "clocks.sm", "temperature.gpu", "clocks_throttle_reasons.active",
            "memory.used")  # fmt: skip
_LOST = [None] * len(_SAMPLED)
_SMI = ("nvidia-smi", "--format=csv,noheader,nounits")
_VERDICT = "/run/trainyard/health/verdict"
_LONGEST = 1000

MOST_POINTS, MOST_CELLS, MOST_FILES = 400, 60, 256
"""The most points of a chart, the most cells of a rank's row, and the most files of nodes in a document."""
_MOST_BYTES = 64 << 20
_MOST_EVENTS, _MOST_MESSAGES, _TAIL = 400, 60, 1 << 20
BUSY_PERCENT = 50
"""A sample with at least this GPU use counts as a sample under load."""
THROTTLE = {0x8: "hardware slowdown", 0x20: "software thermal limit", 0x40: "hardware thermal limit",
            0x80: "power brake"}  # fmt: skip
"""The clock event reasons that are not normal under load. At full load, GPUs often reach their power limit (0x4)."""
_NCCL = {
    "version": r"NCCL version (\S+)", "network": r"Using network (\S+)", "plugin": r"Loaded net plugin (.+)",
    "topology": r"NCCL_TOPO_FILE set by environment to (\S+)", "algorithm": r"NCCL_ALGO set by environment to (\S+)",
    "channels": r"(\d+ coll channels, .+)", "rings": r"Connected all rings, (.+)",
}  # fmt: skip
"""Lines of NCCL's log (src/init.cc, src/graph/topo.cc, src/transport/generic.cc and src/plugin/net at NVIDIA/nccl, read
2026-11-27). NCCL logs the algorithm of each operation only with the subsystem TUNING, which has no limit, so the
bandwidth gate records it instead."""


# --- on a node --------------------------------------------------------------------------------------------------------


def together(values: Mapping[str, str]) -> str:
    """Return the values as text, each with the names of its items if they differ: "700 (0, 1); 500 (2)"."""
    names: dict[str, list[str]] = {}
    for name, value in values.items():
        names.setdefault(value, []).append(name)
    if len(names) == 1:
        return next(iter(names))
    return "; ".join(f"{value} ({', '.join(found)})" for value, found in names.items())


def software(root: Path = Path("/")) -> dict[str, str]:
    """Return the versions of the node's software."""
    release = re.search(r'(?m)^PRETTY_NAME="?([^"\n]+)', _text(root / "etc/os-release"))
    toolkit = re.search(r'"cuda"[^}]*"version" *: *"([^"]+)', _text(root / "usr/local/cuda/version.json"))
    fabric = _text(root / "etc/trainyard/fabric.env").split("\n")
    facts = {
        "system": release[1] if release else "",
        "kernel": os.uname().release,
        "Python": sys.version.split()[0],
        "CUDA of the driver": _driver_cuda(),
        "CUDA toolkit": toolkit[1] if toolkit else "",
        "fabric settings": " ".join(line for line in fabric if re.match(r"[A-Z]\w*=", line)),
    }
    return {name: value for name, value in facts.items() if value}


def _driver_cuda() -> str:
    """Return the newest CUDA version that the driver supports, or '' without a driver. This does not start CUDA."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return ""
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def hardware(root: Path = Path("/")) -> dict[str, str]:
    """Return the facts about the node's processor, network cards and health."""
    model = re.search(r"(?m)^model name\s*: (.+)", _text(root / "proc/cpuinfo", 1 << 16))
    memory = re.search(r"MemTotal: +(\d+)", _text(root / "proc/meminfo"))
    cards = {path.name: path for path in sorted((root / "sys/class/infiniband").glob("*"))}
    verdict = root / _VERDICT[1:]
    facts = {
        "processor": f"{os.cpu_count()} x {model[1] if model else os.uname().machine}",
        "memory (GiB)": str(round(int(memory[1]) / 1048576)) if memory else "",
        "network cards": str(len(cards) or ""),
        "network firmware": together({name: _line(path / "fw_ver") for name, path in cards.items()}) if cards else "",
        "network rate": together({name: _line(path / "ports/1/rate") for name, path in cards.items()}) if cards else "",
        "health": (_line(verdict) or "no fault") if verdict.exists() else "",
    }
    return {name: value for name, value in facts.items() if value}


def gpu_facts(printed: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the facts about the software and the hardware of the GPUs from nvidia-smi's lines, one for each GPU."""
    rows = [[cell.strip() for cell in line.split(",")] for line in printed.splitlines()]
    rows = [row for row in rows if len(row) == len(_FACTS)]
    if not rows:
        return {}, {}
    columns = zip(_FACTS.values(), zip(*rows, strict=True), strict=True)
    facts = {label: together({str(at): cell for at, cell in enumerate(cells)}) for label, cells in columns}
    return {"GPU driver": facts.pop("GPU driver")}, {"GPUs": str(len(rows)), **facts}


def sample_of(lines: Sequence[bytes]) -> list[list[float | None]]:
    """Return a sample, with the values of _SAMPLED for each GPU, from nvidia-smi's lines. Unknown values are None."""
    return [[_value(cell) for cell in line.split(b",")] for line in lines]


def _value(cell: bytes) -> float | None:
    try:
        return int(cell, 16) if b"x" in cell else float(cell)
    except ValueError:
        return None


class Samples:
    """A file with the facts about a node and a bounded number of samples."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path, self.head, self.lines = path, json.dumps(facts) + "\n", list[str]()
        self.stride, self.seen = 1, 0
        path.write_text(self.head)

    def add(self, sample: Any) -> None:
        self.seen += 1
        if (self.seen - 1) % self.stride:
            return
        line = json.dumps(sample, separators=(",", ":")) + "\n"
        self.lines.append(line)
        if len(self.lines) < _MOST_SAMPLES:
            with self.path.open("a") as file:
                file.write(line)
            return
        self.lines, self.stride = self.lines[::2], self.stride * 2
        new = self.path.with_suffix(".new")
        new.write_text(self.head + "".join(self.lines))
        new.replace(self.path)


def busy_ticks(text: str) -> tuple[int, int]:
    """Return the processors' busy and total time from the first line of /proc/stat (proc_stat(5))."""
    ticks = [int(word) for word in text.split("\n", 1)[0].split()[1:9]]
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)


def traffic(root: Path = Path("/")) -> tuple[int, int]:
    """Return how many bytes the network cards have received and sent.

    An InfiniBand or RoCE card counts data in units of four bytes, and RDMA does not appear in /proc/net/dev
    (port_rcv_data in Documentation/ABI/stable/sysfs-class-infiniband at torvalds/linux 031616c4, read 2026-11-27).
    """
    received = sent = 0
    for line in _text(root / "proc/net/dev").splitlines()[2:]:
        name, _, values = line.partition(":")
        numbers = values.split()
        if name.strip() != "lo" and len(numbers) > 8:  # noqa: PLR2004  (proc_net(5): 8 columns for each direction)
            received, sent = received + int(numbers[0]), sent + int(numbers[8])
    for port in (root / "sys/class/infiniband").glob("*/ports/*/counters"):
        with suppress(ValueError):
            received += 4 * int(_line(port / "port_rcv_data"))
            sent += 4 * int(_line(port / "port_xmit_data"))
    return received, sent


def watch(task: int, env: Mapping[str, str]) -> None:
    """Record the node until the task ends. `env` contains the variables that yard sets for the task."""
    ended = os.pidfd_open(task)
    folder, start = Path(env["RUN_DIR"]) / FOLDER, int(env["RESTART_COUNT"])
    folder.mkdir(exist_ok=True)
    node_rank, tasks = int(env["NODE_RANK"]), int(env["TASKS_PER_NODE"])
    if node_rank == 0:
        for path in folder.glob("*-*"):
            if path.name.partition("-")[0].isdigit() and int(path.name.partition("-")[0]) <= start - _KEPT_STARTS:
                path.unlink(missing_ok=True)
    visible = env.get("CUDA_VISIBLE_DEVICES", "")
    smi = [*_SMI, *(["-i", visible] if re.fullmatch(r"\d+(,\d+)*", visible) else [])]
    printed = ""
    with suppress(OSError, subprocess.SubprocessError):
        printed = subprocess.run([*smi, f"--query-gpu={','.join(_FACTS)}"], capture_output=True, text=True,
                                 timeout=_SECONDS, check=False).stdout  # fmt: skip
    of_driver, of_gpus = gpu_facts(printed)
    name = os.uname().nodename.partition(".")[0]
    facts = {
        "node": name, "start": start, "node_rank": node_rank, "tasks": tasks, "began": round(time.time()),
        "boot_id": _line(Path("/proc/sys/kernel/random/boot_id")),
        "software": _clipped({**software(), **of_driver}), "hardware": _clipped({**of_gpus, **hardware()}),
    }  # fmt: skip
    shows = node_rank == 0 and "SLURM_JOB_ID" in env and (folder.parent / "goodput.py").exists()
    samples = Samples(folder / f"{start}-{name}.jsonl", facts)
    smi += [f"--query-gpu={','.join(_SAMPLED)}", "-l", str(INTERVAL)]
    _sample(samples, ended, smi, len(printed.splitlines()), env if shows else None)


def show_goodput(env: Mapping[str, str]) -> None:
    """Name this process after the job's goodput, for example "goodput 0.873", for the metrics (docs/monitoring.md).

    The collector (cloud-init/files/usr/local/lib/trainyard/metrics/collector.py) explains why it is the name.
    """
    command = [
        sys.executable,
        "-S",
        f"{env['RUN_DIR']}/goodput.py",
        "--ratio",
        f"{env['SLURM_JOB_ID']}={env['RUN_DIR']}",
    ]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=GOODPUT_SECONDS, check=False)
        if ratio := done.stdout.strip():
            Path("/proc/self/comm").write_text(f"goodput {ratio}")


def _sample(samples: Samples, ended: int, smi: Sequence[str], gpus: int, job: Mapping[str, str] | None) -> None:
    """Add samples until the file descriptor `ended` is ready. One nvidia-smi, which prints every ten seconds, runs.

    `job` contains the variables of the job whose goodput this process shows, or None.
    """
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    process = subprocess.Popen(smi, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) if gpus else None
    output = process.stdout.fileno() if process is not None and process.stdout is not None else -1
    if process is not None:
        poll.register(output, select.POLLIN)
    due = 0.0
    rest, before = b"", (time.monotonic(), *busy_ticks(_text(Path("/proc/stat"), 4096)), *traffic())
    try:
        while ended not in (ready := dict(poll.poll(None if output >= 0 else INTERVAL * 1000))):
            if job is not None and (begin := time.monotonic()) >= due:
                show_goodput(job)
                due = begin + max(GOODPUT_SECONDS, 60 * (time.monotonic() - begin))
            found: list[list[list[float | None]]] = [[]]
            if output in ready:
                got = os.read(output, 65536)
                if not got:
                    poll.unregister(output)
                    output = -1
                    continue
                *lines, rest = (rest + got).split(b"\n")
                whole = len(lines) // gpus * gpus
                found = [sample_of(lines[at : at + gpus]) for at in range(0, whole, gpus)]
                rest = b"\n".join([*lines[whole:], rest])
            now = (time.monotonic(), *busy_ticks(_text(Path("/proc/stat"), 4096)), *traffic())
            seconds, busy, ticks, received, sent = (new - old for new, old in zip(now, before, strict=True))
            for sample in found:
                network = [round(count / max(seconds, 0.001) / 1e6, 1) for count in (received, sent)]
                samples.add([round(time.time()), round(100 * busy / max(1, ticks)), sample, network])
            before = now if found else before
    finally:
        if process is not None:
            process.kill()


def _clipped(facts: Mapping[str, str]) -> dict[str, str]:
    return {name: value[:_LONGEST] for name, value in facts.items()}


def _text(path: Path, most: int = 1 << 20) -> str:
    """Return the beginning of a regular file, or '' if it cannot be read."""
    try:
        if not path.is_file():
            return ""
        with path.open(errors="replace") as file:
            return file.read(most)
    except OSError:
        return ""


def _line(path: Path) -> str:
    return _text(path, 4096).strip()


# --- on the head ------------------------------------------------------------------------------------------------------


def read(run_dir: Path, state: Path) -> dict[str, Any]:
    """Return the records in a run folder. `state` is the head's folder with the measured bandwidths.

    Missing records are empty. The values are not checked, because the job's owner can change the files.
    """
    log = run_dir / "job.log"
    events = _text(run_dir / "events", _MOST_BYTES).splitlines()
    saves = [line.split(" ", 2)[2] for line in events if line.split(" ")[1:2] == ["saves"]]
    steps = Path(saves[-1] if saves else run_dir) / "metrics.jsonl"
    with steps.open(errors="replace") if steps.is_file() else open(os.devnull) as lines:
        metrics = read_metrics(lines)
    files = sorted((run_dir / FOLDER).glob("*-*.jsonl"), key=_start_of)[-MOST_FILES:]
    nodes = [node for path in files if (node := read_node(_text(path, _MOST_BYTES).splitlines())) is not None]
    return {
        "submitted": _json(run_dir / "record.json"),
        "snapshot": _snapshot(run_dir),
        "links": tracking_links("\n".join((_text(log, _TAIL), *_end(log, _TAIL)))),
        "environment": _line(run_dir / "environment"),
        "events": events[-_MOST_EVENTS:],
        "messages": messages(log),
        "metrics": metrics,
        "nodes": nodes,
        "nccl": read_nccl(run_dir / "nccl"),
        "busbw": bandwidths(_json(state / "busbw.json"), {node["node"]: node["boot_id"] for node in nodes}),
    }


def messages(log: Path) -> list[str]:
    """Return yard's last messages in a job's log, for example about the rank that failed first."""
    lines = _end(log, _TAIL)
    return [line[6:_LONGEST] for line in lines if line.startswith("yard: ")][-_MOST_MESSAGES:]


def now(run_dir: Path) -> dict[str, Any]:
    """Return the last recorded step, and each node's last sample since the job's last start."""
    events = _end(run_dir / "events")
    saves = [line.split(" ", 2)[2] for line in events if line.split(" ")[1:2] == ["saves"]]
    starts = [line.split(" ")[2] for line in events if re.match(r"\d+ start \d+ ", line)]
    step, nodes = None, {}
    for line in _end(Path(saves[-1] if saves else run_dir) / "metrics.jsonl"):
        with suppress(ValueError):
            row = json.loads(line)
            step = row if isinstance(row, dict) and "step" in row else step
    for path in (run_dir / FOLDER).glob(f"{starts[-1]}-*.jsonl") if starts else ():
        with suppress(ValueError, IndexError):
            sample = json.loads(_end(path)[-1])
            if isinstance(sample, list):
                nodes[path.stem.partition("-")[2]] = sample
    return {"step": step, "nodes": nodes}


def _end(path: Path, most: int = 1 << 16) -> list[str]:
    """Return the last lines of a regular file, or an empty list if it cannot be read."""
    with suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - most))
                return file.read(most).decode(errors="replace").splitlines()
    return []


def tracking_links(log: str) -> list[str]:
    """Return the addresses of the job in Weights & Biases or MLflow, which have the form ".../runs/ID".

    wandb prints its address at the start (logs of wandb 0.23.1), and MLflow at the end of a run (`_log_url` in
    mlflow/tracking/_tracking_service/client.py of mlflow/mlflow; both read 2026-11-27).
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
    return list(dict.fromkeys(re.findall(r"https?://[^\s\"'<>]{1,300}/runs/[A-Za-z0-9_-]{1,100}", plain)))[:5]


def _start_of(path: Path) -> int:
    start = path.name.partition("-")[0]
    return int(start) if start.isdigit() else -1


def _json(path: Path) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(_text(path, 4 << 20))
        if isinstance(found, dict):
            return found
    return {}


def _snapshot(run_dir: Path) -> dict[str, Any]:
    found, diff = _json(run_dir / "snapshot.json"), _text(run_dir / "snapshot.diff", 2 << 20)
    if not found:
        return {}
    return {
        "commit": found.get("commit"), "modified": found.get("modified"), "untracked": found.get("untracked_count"),
        "changed": re.findall(r"(?m)^diff --git a/.* b/(.*)$", diff)[:100],
        "diff": hashlib.sha256(diff.encode()).hexdigest()[:12] if diff else "",
    }  # fmt: skip


def read_metrics(lines: Iterable[str]) -> dict[str, Any]:
    """Return columns with at most MOST_POINTS useful steps, and the ranks' own time in a step.

    Each point is the mean of some steps, except `step` and `time`, which are from the last of them, and `slowest_ms`.
    Steps that a later start has repeated are omitted. `rank_ms` is each rank's median over
    `rank_rows` records, in milliseconds.
    """
    rows: list[dict[str, Any]] = []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):
            row = json.loads(line)
            first, last = row["step"] - row["steps"], row["step"]
            if not _is_numbers([last, row["step_ms"], row["time"]]):
                continue
            while rows and rows[-1]["step"] > first:
                rows.pop()
            if last > first:
                rows.append(row)
    size = -(-len(rows) // MOST_POINTS) or 1
    buckets = [rows[at : at + size] for at in range(0, len(rows), size)]
    ranks: list[list[float]] = [row["rank_ms"] for row in rows if _is_numbers(row.get("rank_ms"))]
    ranks = [row for row in ranks if len(row) == len(ranks[-1])]
    return {
        "count": sum(row["steps"] for row in rows),
        "median_ms": statistics.median([row["step_ms"] for row in rows]) if rows else None,
        "step": [bucket[-1]["step"] for bucket in buckets],
        "time": [bucket[-1]["time"] for bucket in buckets],
        "slowest_ms": [max(row["step_ms"] for row in bucket) for bucket in buckets],
        **{name: [_mean(row.get(name) for row in bucket) for bucket in buckets]
           for name in ("loss", "step_ms", "tokens_per_s", "data_ms")},
        "rank_ms": [statistics.median(column) for column in zip(*ranks, strict=True)],
        "rank_rows": len(ranks),
    }  # fmt: skip


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) in (int, float) for item in value)


def _mean(values: Iterable[Any]) -> float | None:
    found = [value for value in values if type(value) in (int, float)]
    return sum(found) / len(found) if found else None


def read_node(lines: Sequence[str]) -> dict[str, Any] | None:
    """Return the facts about a node and a summary of its samples, or None if the file is damaged."""
    try:
        facts: dict[str, Any] = json.loads(lines[0])
        facts["boot_id"] + facts["node"]
    except (IndexError, ValueError, KeyError, TypeError):
        return None
    samples = []
    for line in lines[1:]:
        with suppress(ValueError, TypeError):
            when, cpu, gpus, *_ = json.loads(line)
            # Instead of the values of a GPU that does not answer, nvidia-smi prints a message.
            gpus = [_LOST if gpu == [None] else gpu for gpu in gpus]
            if all(len(gpu) == len(_SAMPLED) and _is_numbers([0, *filter(None, gpu)]) for gpu in gpus):
                samples.append((when, cpu, gpus))
    size = -(-len(samples) // MOST_CELLS) or 1
    buckets = [samples[at : at + size] for at in range(0, len(samples), size)]
    facts["time"] = [bucket[0][0] for bucket in buckets]
    facts["cpu"] = [_mean(cpu for _, cpu, _ in bucket) for bucket in buckets]
    count = min((len(gpus) for *_, gpus in samples), default=0)
    facts["gpus"] = [_gpu([[row[2][at] for row in bucket] for bucket in buckets]) for at in range(count)]
    return facts


def _gpu(buckets: Sequence[Sequence[Sequence[Any]]]) -> dict[str, Any]:
    """Return a GPU's mean use and power in each bucket, and what its samples under load have in common."""
    rows = [row for bucket in buckets for row in bucket]
    busy = [row for row in rows if (row[0] or 0) >= BUSY_PERCENT]
    reasons = {text: sum(bool(int(row[4] or 0) & bit) for row in busy) for bit, text in THROTTLE.items()}
    clocks, hottest = [row[2] for row in busy if row[2] is not None], [row[3] for row in rows if row[3] is not None]
    return {
        "use": [_mean(row[0] for row in bucket) for bucket in buckets],
        "power": [_mean(row[1] for row in bucket) for bucket in buckets],
        "mean_use": _mean(row[0] for row in rows), "mean_power": _mean(row[1] for row in rows),
        "memory": max((row[5] for row in rows if row[5] is not None), default=None),
        "temperature": max(hottest, default=None), "clock": statistics.median(clocks) if clocks else None,
        "busy": len(busy), "throttled": {text: count for text, count in reasons.items() if count},
    }  # fmt: skip


def read_nccl(folder: Path) -> dict[str, dict[str, str]]:
    """Return what NCCL's newest log of each host says. The files have the names HOST.PID."""
    found: dict[str, dict[str, str]] = {}
    files = [path for path in folder.glob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: -path.stat().st_mtime):
        host = path.name.rpartition(".")[0]
        if host not in found and len(found) < MOST_FILES:
            text = _text(path)
            matches = ((name, re.search(pattern, text)) for name, pattern in _NCCL.items())
            found[host] = _clipped({name: match[1].strip() for name, match in matches if match})
    return found


def bandwidths(record: Mapping[str, Any], boots: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the gate's measurements, in GB/s and with NCCL's algorithm, that no node has rebooted since."""

    def all_found() -> Iterator[dict[str, Any]]:
        for group in record.get("groups", {}).values():
            valid = {node for node, boot in boots.items() if group["boots"].get(node) == boot}
            rows = [*({"nodes": [node], **row} for node, row in group["alone"].items()), *group["pairs"]]
            for row in rows:
                if valid.issuperset(row["nodes"]) and row["busbw"] is not None:
                    floor = group["floors"][len(row["nodes"]) - 1]
                    # Older records have no algorithm.
                    yield {name: row.get(name, "") for name in ("nodes", "busbw", "algorithm")} | {"floor": floor}

    with suppress(KeyError, TypeError, AttributeError, IndexError):
        return list(all_found())
    return []


def main(words: Sequence[str]) -> None:
    if words[0] == "watch":
        watch(int(words[1]), os.environ)
        return
    if words[0] == "now":
        folders = {job: Path(run_dir) for job, _, run_dir in (word.partition("=") for word in words[1:])}
        sys.stdout.write(json.dumps({job: now(run_dir) for job, run_dir in folders.items()}) + "\n")
        return
    state = Path(words[1])
    for job, _, run_dir in (word.partition("=") for word in words[2:]):
        try:
            found = read(Path(run_dir), state)
        except Exception as error:  # the job's owner can change the files, and other jobs' records must be read
            found = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps({"id": int(job), **found}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
