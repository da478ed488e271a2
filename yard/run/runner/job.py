"""Files in the run folder: job.json (the request from yard), state.json (the job's state), events and job.log."""

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
    """A node that a job may use."""

    name: str
    ip: str


@dataclass(frozen=True)
class JobRequest:
    """Contents of job.json. `tasks` is one of the values of Tasks in yard/job/launcher.py."""

    name: str
    group: str
    hosts: tuple[Host, ...]
    nodes: int
    min_nodes: int
    """If the job loses nodes, it continues as long as this number of nodes remains."""
    tasks: str
    others: bool
    """Whether the script also runs on the other nodes if `tasks` is 'first'."""
    leaves: bool
    """Whether to run the `leave` part of the script, which removes docker containers."""
    tasks_per_node: int
    gpus_per_node: int
    retries: int
    seconds: int
    warn_seconds: int
    heartbeat_seconds: int | None
    checkpoint_dir: str
    ssh: tuple[str, ...]
    """SSH command, to which the runner appends the node's name and a shell command."""

    @classmethod
    def read(cls, run_dir: Path) -> JobRequest:
        """Read job.json."""
        found = json.loads((run_dir / "job.json").read_text())
        hosts = tuple(Host(**host) for host in found.pop("hosts"))
        return cls(hosts=hosts, ssh=tuple(found.pop("ssh")), **found)

    def checkpoints(self, run_dir: Path) -> Path | None:
        """Return the checkpoint folder, or None if the job writes no checkpoints."""
        return run_dir / self.checkpoint_dir if self.checkpoint_dir else None

    def environment(self, run_dir: Path, hosts: list[Host], restart: int, port: int) -> dict[str, str]:
        """Write the host file and return the environment that all ranks share."""
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
    """Contents of state.json. `state` is a Slurm job state or LOST. Times are seconds since the epoch."""

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
    """Result of `identity` for the job's runner, or None before the runner has started."""

    @classmethod
    def read(cls, run_dir: Path) -> State:
        """Read state.json."""
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
    """Return the process id, start time and boot id. No other process has the same three values."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return {"pid": os.getpid(), "ticks": ticks, "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}


class EventLog:
    """The job's log and its events."""

    def __init__(self, run_dir: Path) -> None:
        self._log, self._events = run_dir / "job.log", run_dir / "events"

    def say(self, text: str) -> None:
        """Add a line to the job's log, which also contains the output of rank 0."""
        # If the disk is full, the job continues without the line.
        with suppress(OSError), self._log.open("a") as file:
            file.write(f"yard: {text}\n")

    def note(self, text: str) -> None:
        """Add an event with the current time. `text`: the kind of event and its values."""
        with suppress(OSError), self._events.open("a") as file:
            file.write(f"{time.time():.0f} {text}\n")

    def failures(self) -> list[str]:
        """Return the nodes that caused the failures since the last resume. An unknown node is ''."""
        found: list[str] = []
        for line in self._events.read_text().splitlines() if self._events.exists() else ():
            match line.split():
                case [_, "resume"]:
                    found = []
                case [_, "failed", _, *node]:
                    found.append("".join(node))
        return found
