"""Reads and writes the files in the run folder: job.json (yard's request), state.json, events and job.log."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Host:
    """A node that a job is allowed to use."""

    name: str
    ip: str


@dataclass(frozen=True)
class JobRequest:
    """The contents of job.json. `tasks` is a value of Tasks in yard/job/launcher.py."""

    name: str
    group: str
    hosts: tuple[Host, ...]
    nodes: int
    min_nodes: int
    """A job that loses nodes continues while at least this many nodes remain."""
    tasks: str
    others: bool
    """Whether the script also runs on the other nodes if `tasks` is 'first'."""
    leaves: bool
    """Whether to run the script's `leave` part, which removes docker containers."""
    tasks_per_node: int
    gpus_per_node: int
    retries: int
    seconds: int
    warn_seconds: int
    heartbeat_seconds: int | None
    stall_minutes: int | None
    checkpoint_dir: str
    ssh: tuple[str, ...]
    """The ssh command, to which the runner appends a node's name and a shell command."""

    @classmethod
    def read(cls, run_dir: Path) -> JobRequest:
        found = json.loads((run_dir / "job.json").read_text())
        hosts = tuple(Host(**host) for host in found.pop("hosts"))
        return cls(hosts=hosts, ssh=tuple(found.pop("ssh")), **found)

    def checkpoints(self, run_dir: Path) -> Path | None:
        return run_dir / self.checkpoint_dir if self.checkpoint_dir else None

    def environment(self, run_dir: Path, hosts: list[Host], restart: int, port: int) -> dict[str, str]:
        """Write the host file, and return the environment variables that all ranks share."""
        file = run_dir / "hostfile"
        file.write_text("".join(f"{host.name} slots={self.tasks_per_node}\n" for host in hosts))
        env = {
            "RUN_DIR": str(run_dir),
            "JOB_NAME": self.name,
            "RESTART_COUNT": str(restart),
            "NNODES": str(len(hosts)),
            "NODE_IPS": ",".join(host.ip for host in hosts),
            "GPUS_PER_NODE": str(self.gpus_per_node),
            "TASKS_PER_NODE": str(self.tasks_per_node),
            "WORLD_SIZE": str(len(hosts) * self.tasks_per_node),
            "MASTER_ADDR": hosts[0].ip,
            "MASTER_PORT": str(port),
            "HOSTFILE": str(file),
            "MPI_HOSTFILE": str(file),
        }
        if (folder := self.checkpoints(run_dir)) is not None:
            folder.mkdir(parents=True, exist_ok=True)
            env["CHECKPOINT_DIR"] = str(folder)
        return env


@dataclass
class State:
    """The contents of state.json. `state` is a Slurm job state or LOST. Times are in seconds since 1970."""

    id: int
    name: str
    user: str
    group: str
    nodes: int
    run_dir: str
    state: str = "PENDING"
    reason: str = "None"
    node_list: str = ""
    restarts: int = 0
    exit_code: int = 0
    submitted: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    runner: dict[str, Any] | None = None
    """The runner's `identity`, or None if the runner has not started yet."""

    @classmethod
    def read(cls, run_dir: Path) -> State:
        return cls(**json.loads((run_dir / "state.json").read_text()))

    def write(self) -> None:
        """Replace state.json atomically."""
        path = Path(self.run_dir) / "state.json"
        fresh = path.with_name(f".state.{os.getpid()}")
        with fresh.open("w") as file:
            file.write(json.dumps(asdict(self)) + "\n")
            file.flush()
            # Without fsync, the file could be empty after a power failure.
            os.fsync(file.fileno())
        fresh.replace(path)


def identity() -> dict[str, Any]:
    """Return this process's PID and start time and the boot ID, which together identify the process."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return {"pid": os.getpid(), "ticks": ticks, "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}


class EventLog:
    """Appends to a job's log and to its file `events`."""

    def __init__(self, run_dir: Path) -> None:
        self._log, self._events = run_dir / "job.log", run_dir / "events"

    def say(self, text: str) -> None:
        """Append a line to the job's log, which also contains rank 0's output."""
        # If the disk is full, the job continues without this line.
        with suppress(OSError), self._log.open("a") as file:
            file.write(f"yard: {text}\n")

    def note(self, text: str) -> None:
        """Append an event with the current time. `text` contains the event's kind and values."""
        with suppress(OSError), self._events.open("a") as file:
            # Rounded down, as in faults and in the shell's events, because times are compared.
            file.write(f"{int(time.time())} {text}\n")

    def failures(self) -> list[str]:
        """For each failure since the last resume, return the name of the node that caused it, or '' if unknown."""
        found: list[str] = []
        for line in self._events.read_text().splitlines() if self._events.exists() else ():
            match line.split():
                case [_, "resume"]:
                    found = []
                case [_, "failed", _, *node]:
                    found.append("".join(node))
        return found
