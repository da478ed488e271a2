"""On a node: starts the tasks of one attempt, tells how they fare, and sees to it that none outlives it.

The order comes as one line of JSON on stdin, and after it a line every other second: `beat`, or `signal NAME`, or `stop
SECONDS`. When the lines stop coming, because the head went away or the connection did, the tasks are ended all the
same. What happens goes to stdout as JSON, a line each. The tasks speak on this process's stderr: rank 0's words
reach the job's log that way.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from .processes import signal_group, sweep

TICK = 0.3
BEAT_SECONDS = 2.0


class Agent:
    """One node's part of one attempt."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.run_dir: str = order["env"]["RUN_DIR"]
        self.tasks: dict[int, subprocess.Popen[bytes]] = {}
        self.heard = self.told = time.monotonic()
        self.grace = 2.0
        self.leaving = False
        self.began = time.time()
        self.frozen: set[int] = set()
        self.rest = b""

    def run(self) -> None:
        """Do all of it."""
        # An attempt before this one may have lost its agent, and so left something behind.
        if self.order["env"]["RESTART_COUNT"] != "0" and (found := sweep([self.order["mark"]])):
            self.tell(event="swept", count=found)
        self.call("leave")
        for rank, local in self.order["ranks"]:
            self.start(rank, local)
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            os.set_blocking(0, False)
            while not self.leaving:
                if selector.select(TICK):
                    self.listen()
                self.look()
        self.leave()

    def start(self, rank: int, local: int) -> None:
        """Start a task in a session of its own."""
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
        """Return what a task is started with."""
        place = {"RANK": str(rank), "LOCAL_RANK": str(local), "NODE_RANK": str(self.order["node_rank"])}
        return {**os.environ, **self.order["env"], **place}

    def listen(self) -> None:
        """Read what the head says; an end of it means that the head is gone."""
        try:
            got = os.read(0, 65536)
        except BlockingIOError:
            return
        if not got:
            self.leaving = True
        *lines, self.rest = (self.rest + got).split(b"\n")
        for line in lines:
            self.heard = time.monotonic()
            word, _, value = line.decode().partition(" ")
            if word == "signal":
                for task in self.tasks.values():
                    signal_group(task.pid, signal.Signals[value])
            elif word == "stop":
                self.grace, self.leaving = float(value), True

    def look(self) -> None:
        """Tell of tasks that have ended and of ranks that no longer move, and that this agent is there."""
        now = time.monotonic()
        for rank, task in list(self.tasks.items()):
            if (code := task.poll()) is not None:
                del self.tasks[rank]
                self.tell(event="ended", rank=rank, code=code if code >= 0 else 128 - code)
        if now - self.told >= BEAT_SECONDS:
            self.told = now
            self.tell(event="alive")
            self.check_heartbeats()
        if now - self.heard > self.order["lease_seconds"]:
            sys.stderr.write(f"yard: nobody has asked for {self.order['lease_seconds']} s; the tasks end\n")
            self.leaving = True

    def check_heartbeats(self) -> None:
        """Tell of ranks that began to beat in this attempt and have not for too long."""
        limit = self.order["heartbeat_seconds"]
        if limit is None or not self.tasks:
            return
        for rank in self.order["beating"]:
            # A rank that has never written one may be loading data, or may not know of heartbeats.
            with suppress(OSError):
                beat = Path(self.order["heartbeat_dir"], f"heartbeat-{rank}").stat().st_mtime
                age = time.time() - beat
                if beat >= self.began and age > limit and rank not in self.frozen:
                    self.frozen.add(rank)
                    self.tell(event="frozen", rank=rank, seconds=round(age))

    def leave(self) -> None:
        """End every task: politely, then not, then whatever they started elsewhere."""
        for task in self.tasks.values():
            signal_group(task.pid, signal.SIGTERM)
        deadline = time.monotonic() + self.grace
        for task in self.tasks.values():
            with suppress(subprocess.TimeoutExpired):
                task.wait(max(0.0, deadline - time.monotonic()))
        for task in self.tasks.values():
            signal_group(task.pid, signal.SIGKILL)
        self.call("leave")
        self.tell(event="bye", swept=sweep([self.order["mark"]]))

    def call(self, part: str) -> None:
        """Run a part of the job's script for each task here, where the script has that part."""
        if not self.order["leaves"]:
            return
        for rank, local in self.order["ranks"]:
            line = ["bash", f"{self.run_dir}/job.sh", part]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(line, env=self.environment(rank, local), timeout=30, check=False)

    def tell(self, **event: Any) -> None:
        """Tell the head, if it is there: nobody waits for it here."""
        with suppress(OSError):
            os.write(1, (json.dumps(event) + "\n").encode())


def run_agent() -> None:
    """Read the order and carry it out."""
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
        # Its end is when the lines stop, so that it never leaves before its tasks have.
        # A handler, since what is ignored would be ignored by the tasks as well.
        signal.signal(number, lambda *_: None)
    line = b""
    while not line.endswith(b"\n"):
        got = os.read(0, 1)
        if not got:
            return
        line += got
    os.set_blocking(1, False)
    Agent(json.loads(line)).run()
