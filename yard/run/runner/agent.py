"""Runs on a node: starts the tasks of one attempt, reports their states, and stops them.

The first line on stdin is a request in JSON. Each further line is a command: `signal NAME`, `hang ARGUMENT...`, `stop
SECONDS`, or `beat`, which the head sends every two seconds. If no line arrives for `lease_seconds`, the agent stops the
tasks, because the head or the connection has failed. The agent prints one event per line in JSON. The tasks write to
the agent's stderr, which the head appends to the job's log.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

RANK_MARK = "RUN_DIR="
"""Environment variable that is set for all of a job's processes. Its value is the run folder."""
NODE_MARK = "YARD_NODE="
"""Environment variable that is set for all of an agent's child processes. Its value has the form RUN_FOLDER@NODE."""
AGENT_MARK = "YARD_AGENT="
"""Environment variable that is set for every agent. Its value is the run folder."""
TICK = 0.3
BEAT_SECONDS = 2.0


def marked(marks: Sequence[str]) -> Iterator[int]:
    """Yield the PIDs of all other processes that were started with one of `marks` (NAME=VALUE) in their environment."""
    wanted = {mark.encode() for mark in marks}
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        # Reading fails if the process belongs to another user or has ended.
        with suppress(OSError):
            if pid != os.getpid() and wanted.intersection((folder / "environ").read_bytes().split(b"\0")):
                yield pid


def sweep(marks: Sequence[str]) -> int:
    """Kill the processes that `marked` finds, and return their number."""
    killed: set[int] = set()
    # A later pass finds processes that started during an earlier pass.
    for _ in range(3):
        found = list(marked(marks))
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(found)
        if not found:
            break
    return len(killed)


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a process group, unless the group has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


class Agent:
    """The tasks of one attempt on one node."""

    def __init__(self, request: dict[str, Any], verdict: Path) -> None:
        self.request, self.verdict = request, verdict
        self.run_dir: str = request["env"]["RUN_DIR"]
        self.tasks: dict[int, subprocess.Popen[bytes]] = {}
        self.last_received = self.last_sent = time.monotonic()
        self.grace = 2.0
        self.leaving = self.faulty = False
        self.began = time.time()
        self.frozen: set[int] = set()
        self.rest = b""

    def run(self) -> None:
        """Run the tasks until the head stops them or the connection fails."""
        # If an earlier attempt's agent was killed, its tasks can still be running.
        if self.request["env"]["RESTART_COUNT"] != "0" and (found := sweep([self.request["mark"]])):
            self.report(event="swept", count=found)
        self.remove_containers()
        try:
            for rank, local in self.request["ranks"]:
                self.start(rank, local)
            with selectors.DefaultSelector() as selector:
                selector.register(0, selectors.EVENT_READ)
                os.set_blocking(0, False)
                while not self.leaving:
                    if selector.select(TICK):
                        self.receive()
                    self.check_tasks()
        finally:
            self.leave()

    def start(self, rank: int, local: int) -> None:
        self.tasks[rank] = subprocess.Popen(
            ["bash", f"{self.run_dir}/job.sh", "task"],
            env=self.environment(rank, local),
            cwd=self.run_dir,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            stderr=sys.stderr,
            start_new_session=True,
        )

    def environment(self, rank: int, local: int) -> dict[str, str]:
        place = {"RANK": str(rank), "LOCAL_RANK": str(local), "NODE_RANK": str(self.request["node_rank"])}
        return {**os.environ, **self.request["env"], **place}

    def receive(self) -> None:
        """Read and perform commands from the head."""
        try:
            got = os.read(0, 65536)
        except BlockingIOError:
            return
        if not got:
            # stdin is closed, because the head or the connection has failed.
            self.leaving = True
        *lines, self.rest = (self.rest + got).split(b"\n")
        for line in lines:
            self.last_received = time.monotonic()
            word, _, value = line.decode().partition(" ")
            if word == "signal":
                for task in self.tasks.values():
                    signal_group(task.pid, signal.Signals[value])
            elif word == "hang":
                self.run_hang(value.split())
            elif word == "stop":
                self.grace, self.leaving = float(value), True

    def run_hang(self, arguments: Sequence[str]) -> None:
        """Run hang.py, with this agent's mark in place of the argument MARK."""
        line = [self.request["mark"] if word == "MARK" else word for word in arguments]
        with suppress(subprocess.TimeoutExpired):
            # stdin and stdout are the connection to the head.
            subprocess.run(
                [sys.executable, "hang.py", *line], cwd=self.run_dir, stdin=subprocess.DEVNULL, stdout=2, timeout=60,
                check=False,
            )  # fmt: skip
        self.last_received = time.monotonic()
        self.report(event="examined")

    def check_tasks(self) -> None:
        """Report ended tasks. Every two seconds, report `alive`, and look for frozen ranks and faults."""
        now = time.monotonic()
        for rank, task in list(self.tasks.items()):
            if (code := task.poll()) is not None:
                del self.tasks[rank]
                self.report(event="ended", rank=rank, code=code if code >= 0 else 128 - code)
        if now - self.last_sent >= BEAT_SECONDS:
            self.last_sent = now
            self.report(event="alive")
            self.check_heartbeats()
            self.check_health()
        if now - self.last_received > self.request["lease_seconds"]:
            self.leaving = True
            text = f"yard: no message from the head for {self.request['lease_seconds']} s; stopping tasks\n"
            # If this node was frozen, the head has closed the connection, so that writing to stderr fails.
            with suppress(OSError):
                os.write(2, text.encode())

    def check_heartbeats(self) -> None:
        limit = self.request["heartbeat_seconds"]
        if limit is None or not self.tasks:
            return
        for rank in self.request["beating"]:
            # A rank without a heartbeat can still be loading data, or its program writes no heartbeats.
            with suppress(OSError):
                beat = Path(self.request["heartbeat_dir"], f"heartbeat-{rank}").stat().st_mtime
                age = time.time() - beat
                if beat >= self.began and age > limit and rank not in self.frozen:
                    self.frozen.add(rank)
                    self.report(event="frozen", rank=rank, seconds=round(age))

    def check_health(self) -> None:
        """Report a fatal fault of this node, but only once. Other faults do not end a running job."""
        # Nodes without health checks have no file `verdict`.
        with suppress(OSError):
            severity, _, reason = self.verdict.read_text(errors="replace").strip().partition(" ")
            if severity == "fatal" and not self.faulty:
                self.faulty = True
                self.report(event="faulty", reason=reason)

    def leave(self) -> None:
        """Stop all tasks with SIGTERM and then SIGKILL, and kill the job's other processes on this node."""
        for task in self.tasks.values():
            signal_group(task.pid, signal.SIGTERM)
        deadline = time.monotonic() + self.grace
        for task in self.tasks.values():
            with suppress(subprocess.TimeoutExpired):
                task.wait(max(0.0, deadline - time.monotonic()))
        for task in self.tasks.values():
            signal_group(task.pid, signal.SIGKILL)
        self.remove_containers()
        self.report(event="bye", swept=sweep([self.request["mark"]]))

    def remove_containers(self) -> None:
        if not self.request["leaves"]:
            return
        for rank, local in self.request["ranks"]:
            line = ["bash", f"{self.run_dir}/job.sh", "leave"]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(line, env=self.environment(rank, local), timeout=30, check=False)

    def report(self, **event: Any) -> None:
        """Send an event to the head, unless the connection is closed."""
        with suppress(OSError):
            os.write(1, (json.dumps(event) + "\n").encode())


def run_agent(verdict: Path) -> None:
    """Read a request from stdin and run its tasks. The node's health checks write the file `verdict`."""
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
        # A signal must not end the agent while its tasks are running. Tasks would inherit SIG_IGN, but not a handler.
        signal.signal(number, lambda *_: None)
    line = b""
    while not line.endswith(b"\n"):
        got = os.read(0, 1)
        if not got:
            return
        line += got
    os.set_blocking(1, False)
    Agent(json.loads(line), verdict).run()
