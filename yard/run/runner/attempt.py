"""One start of a job: runs an agent on each node until all ranks end, a rank fails or the time limit is reached."""

from __future__ import annotations

import json
import os
import selectors
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .agent import BEAT_SECONDS, TICK
from .job import EventLog, Host, JobRequest
from .node import Node, Outcome, start_agent, sweep_nodes
from .processes import NODE_MARK, RANK_MARK

LEASE_SECONDS = 20
"""An agent stops its tasks if it receives no line from the head for this number of seconds."""
SILENT_SECONDS = 15.0
"""A node is considered lost if its agent sends no event for this number of seconds."""
_HASTE, _GRACE = 2.0, 20.0
"""Seconds between SIGTERM and SIGKILL: after a failure, and after a cancellation or time limit."""
_LAST_SECONDS = 8.0
"""Additional seconds before the head closes the connections to the agents."""


class Attempt:
    """One start of the job. The constructor starts the agents."""

    def __init__(self, request: JobRequest, run_dir: Path, hosts: list[Host], restart: int, port: int) -> None:
        self.request, self.run_dir = request, run_dir
        self.env = request.environment(run_dir, hosts, restart, port)
        self.began = self.last_beat = time.monotonic()
        self.warned = self.ending = False
        self.events = EventLog(run_dir)
        self.selector = selectors.DefaultSelector()
        self.log = (run_dir / "job.log").open("ab")
        self.nodes = [self._start(host, index) for index, host in enumerate(hosts)]

    def run(self, cancelled: Callable[[], bool]) -> Outcome:
        """Wait for the result, and then stop all ranks. `cancelled` returns whether the job must stop."""
        outcome: Outcome | None = None
        while outcome is None:
            for key, _ in self.selector.select(TICK):
                outcome = self._receive(key.data) or outcome
            outcome = outcome or self._judge(cancelled())
            if time.monotonic() - self.last_beat > BEAT_SECONDS:
                self.last_beat = time.monotonic()
                self._send("beat")
        self._end(_GRACE if outcome.how in {"time", "cancelled"} else _HASTE)
        self.log.close()
        return outcome

    def _start(self, host: Host, index: int) -> Node:
        request, per_node = self.request, self.request.tasks_per_node
        first = index * per_node
        ranks = [(first + local, local) for local in range(per_node)] if request.tasks == "rank" else [(first, 0)]
        if request.tasks == "first" and index and not request.others:
            ranks = []
        node = start_agent(request.ssh, self.run_dir, host, ranks, self.log)
        node.send(json.dumps(self._part(host, index, ranks)))
        os.set_blocking(node.input, False)
        self.selector.register(node.output, selectors.EVENT_READ, node)
        return node

    def _part(self, host: Host, index: int, ranks: list[tuple[int, int]]) -> dict[str, Any]:
        """Return the request for a node's agent."""
        per_node = self.request.tasks_per_node
        mark = f"{NODE_MARK}{self.run_dir}@{host.name}"
        name, _, value = mark.partition("=")
        return {
            "env": {**self.env, name: value},
            # Ranks that a launcher on the first node starts on other nodes inherit the first node's marker.
            "mark": f"{RANK_MARK}{self.run_dir}" if self.request.tasks == "first" else mark,
            "node_rank": index,
            "ranks": ranks,
            "leaves": self.request.leaves,
            "lease_seconds": LEASE_SECONDS,
            "heartbeat_seconds": self.request.heartbeat_seconds,
            "heartbeat_dir": self.env.get("CHECKPOINT_DIR", self.env["RUN_DIR"]),
            # All ranks on this node, including ranks started by a launcher on the first node.
            "beating": list(range(index * per_node, (index + 1) * per_node)),
        }

    def _send(self, line: str) -> None:
        for node in self.nodes:
            if node.open:
                node.send(line)

    def _receive(self, node: Node) -> Outcome | None:
        """Read events from an agent. Returns the outcome of the attempt if an event determines it."""
        got = os.read(node.output, 65536)
        if not got:
            return self._close(node, f"the connection to {node.host.name} ended")
        node.last_received = time.monotonic()
        *lines, node.rest = (node.rest + got).split(b"\n")
        for line in lines:
            if (outcome := self._event(node, line)) is not None:
                return outcome
        return None

    def _event(self, node: Node, line: bytes) -> Outcome | None:
        name = node.host.name
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            # The line is output from a login script.
            return None
        match event["event"]:
            case "bye":
                node.said_bye = True
            case "swept":
                self.events.say(f"killed {event['count']} processes from an earlier start on {name}")
            case "frozen":
                message = f"rank {event['rank']} on {name} has written no heartbeat for {event['seconds']} s"
                return Outcome("frozen", 1, name, message)
            case "faulty":
                return self._fail(node, Outcome("faulty", 1, name, f"{name} has a fault: {event['reason']}"))
            case "ended":
                node.ended.add(event["rank"])
                if event["code"]:
                    message = f"rank {event['rank']} on {name} ended with exit code {event['code']}"
                    return self._fail(node, Outcome("failed", event["code"], name, message))
        return None

    def _close(self, node: Node, message: str) -> Outcome | None:
        """Close the connection to an agent. If the agent has not reported that it is exiting, the node is lost."""
        node.open = False
        self.selector.unregister(node.output)
        if node.said_bye or self.ending:
            return None
        return self._fail(node, Outcome("lost", 1, node.host.name, message))

    def _fail(self, node: Node, outcome: Outcome) -> Outcome | None:
        """Return the outcome, or None if the job can continue without the node."""
        left = [other for other in self.nodes if other.open and other is not node]
        # The first node hosts the rendezvous.
        if node is self.nodes[0] or len(left) < self.request.min_nodes:
            return outcome
        self.events.say(f"{outcome.message}; the job continues without this node")
        node.ended.update(rank for rank, _ in node.ranks)
        node.send(f"stop {_HASTE}")
        return None

    def _judge(self, cancelled: bool) -> Outcome | None:
        if cancelled:
            return Outcome("cancelled", 143)
        deciding = self.nodes[:1] if self.request.tasks == "first" else self.nodes
        if all(node.ended.issuperset(rank for rank, _ in node.ranks) for node in deciding):
            return Outcome("time" if self.warned else "completed")
        now = time.monotonic()
        for node in self.nodes:
            if node.open and now - node.last_received > SILENT_SECONDS:
                message = f"{node.host.name} has sent nothing for {SILENT_SECONDS:.0f} s"
                if outcome := self._close(node, message):
                    return outcome
        age = now - self.began
        if not self.warned and age > self.request.seconds - self.request.warn_seconds:
            self.warned = True
            self._send("signal SIGUSR2")
        return Outcome("time", 1) if age > self.request.seconds else None

    def _end(self, grace: float) -> None:
        """Stop all ranks. Afterwards, no rank is running on any node that responds."""
        self.ending = True
        self._send(f"stop {grace}")
        deadline = time.monotonic() + grace + _LAST_SECONDS
        while time.monotonic() < deadline and any(node.open for node in self.nodes):
            for key, _ in self.selector.select(TICK):
                self._receive(key.data)
        self.selector.close()
        for node in self.nodes:
            node.ssh.kill()
            node.ssh.communicate()
        failed = [node.host for node in self.nodes if not node.said_bye]
        for name in sweep_nodes(self.request.ssh, self.run_dir, failed):
            self.events.say(f"{name} does not respond; its processes end automatically within {LEASE_SECONDS} s")
