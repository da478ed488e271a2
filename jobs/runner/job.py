"""A job as files of its run folder: job.json is what yard asked for, state.json where the job is, events its story."""

from __future__ import annotations

import getpass
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
class Order:
    """job.json. `tasks`: 'rank', 'node' or 'first', where the script's tasks run; times in seconds."""

    name: str
    group: str
    hosts: tuple[Host, ...]
    nodes: int
    min_nodes: int
    """With how few nodes a start goes on when it loses some."""
    tasks: str
    others: bool
    """Tasks on the first node only: whether the script has something to do on the other nodes, too."""
    leaves: bool
    """Whether the script must be called to end what is no process of the job's, as a container is."""
    tasks_per_node: int
    gpus_per_node: int
    retries: int
    seconds: int
    warn_seconds: int
    heartbeat_seconds: int | None
    checkpoint_dir: str
    ssh: tuple[str, ...]
    """How a node is reached; its name and a shell line follow."""

    @classmethod
    def read(cls, run_dir: Path) -> Order:
        """Return what yard asked for."""
        found = json.loads((run_dir / "job.json").read_text())
        hosts = tuple(Host(**host) for host in found.pop("hosts"))
        return cls(hosts=hosts, ssh=tuple(found.pop("ssh")), **found)

    def checkpoints(self, run_dir: Path) -> Path | None:
        """Return the folder of the checkpoints, if the job has one."""
        return run_dir / self.checkpoint_dir if self.checkpoint_dir else None

    def environment(self, run_dir: Path, hosts: list[Host], restart: int, port: int) -> dict[str, str]:
        """Return what every rank finds in its environment, and write the host file."""
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
    """state.json. `state` is a word of Slurm's, so that whoever reads it needs to know one language only."""

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
    """Who it is that keeps this up to date; a head that was restarted may have given its number to another."""

    @classmethod
    def new(cls, number: int, order: Order, run_dir: Path) -> State:
        """Return the state of a job that has just come in."""
        return cls(
            id=number,
            name=order.name,
            user=getpass.getuser(),
            group=order.group,
            nodes=order.nodes,
            run_dir=str(run_dir),
            submitted=time.time(),
        )

    @classmethod
    def read(cls, run_dir: Path) -> State:
        """Return the state as it was last written."""
        return cls(**json.loads((run_dir / "state.json").read_text()))

    def write(self) -> None:
        """Put the state in place at once: whoever reads finds the old one or the new one."""
        place = Path(self.run_dir) / "state.json"
        fresh = place.with_name(f".state.{os.getpid()}")
        with fresh.open("w") as file:
            file.write(json.dumps(asdict(self)) + "\n")
            file.flush()
            # A head that loses power must not come back to an empty file.
            os.fsync(file.fileno())
        fresh.replace(place)


def identity() -> dict[str, Any]:
    """Return what tells this process from every other one, over restarts of the machine."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return {"pid": os.getpid(), "ticks": ticks, "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}


class Diary:
    """What people read: the job's log and its events, both appended to on the head alone."""

    def __init__(self, run_dir: Path) -> None:
        self._log, self._events = run_dir / "job.log", run_dir / "events"

    def say(self, text: str) -> None:
        """Add a line to the log, among what rank 0 says."""
        # Words may be lost on a full disk; the job goes on.
        with suppress(OSError), self._log.open("a") as file:
            file.write(f"yard: {text}\n")

    def note(self, text: str) -> None:
        """Add an event: a time, a word, and what belongs to it."""
        with suppress(OSError), self._events.open("a") as file:
            file.write(f"{time.time():.0f} {text}\n")

    def failures(self) -> list[str]:
        """Return the node of each failure since somebody last resumed the job, '' where none is to blame."""
        found: list[str] = []
        for line in self._events.read_text().splitlines() if self._events.exists() else ():
            words = line.split()
            if words[1:2] == ["resume"]:
                found = []
            if words[1:2] == ["failed"]:
                found.append(words[3] if len(words) > 3 else "")  # noqa: PLR2004  (time, word, code, node)
        return found
