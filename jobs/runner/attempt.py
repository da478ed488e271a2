"""One start of a job: an agent on every node, watched until all ranks have ended, one has failed, or time is up."""

from __future__ import annotations

import json
import os
import selectors
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .job import Diary, Host, Order
from .node import Node, Outcome, start_agent, sweep_nodes
from .processes import NODE_MARK, RANK_MARK

_TICK = 0.3
_BEAT_SECONDS = 2.0
LEASE_SECONDS = 20
"""How long an agent goes on when it hears nothing from the head."""
SILENT_SECONDS = 15.0
"""How long an agent may be silent before its node counts as lost."""
_HASTE, _GRACE = 2.0, 20.0
"""How long ranks may take to end: after a failure, when their peers hang anyway, and when they were asked to stop."""
_LAST_SECONDS = 8.0


class Attempt:
    """Run it once with `run`. `asked` tells whether somebody wants the job to stop."""

    def __init__(self, order: Order, run_dir: Path, hosts: list[Host], restart: int, port: int) -> None:
        self.order, self.run_dir, self.restart = order, run_dir, restart
        self.env = order.environment(run_dir, hosts, restart, port)
        self.began = time.monotonic()
        self.warned = self.ending = False
        self.beaten = self.began
        self.selector = selectors.DefaultSelector()
        self.log = (run_dir / "job.log").open("ab")
        self.nodes = [self._start(host, index) for index, host in enumerate(hosts)]

    def run(self, asked: Callable[[], bool]) -> Outcome:
        """Watch until the end, and end what is left. Returns only when no rank runs on a node that answers."""
        outcome: Outcome | None = None
        while outcome is None:
            for key, _ in self.selector.select(_TICK):
                outcome = self._hear(key.data) or outcome
            outcome = outcome or self._judge(asked())
            if time.monotonic() - self.beaten > _BEAT_SECONDS:
                self.beaten = time.monotonic()
                self._tell("beat")
        self._end(_GRACE if outcome.how in {"time", "cancelled"} else _HASTE)
        self.log.close()
        return outcome

    def _start(self, host: Host, index: int) -> Node:
        order, per_node = self.order, self.order.tasks_per_node
        first = index * per_node
        ranks = [(first + local, local) for local in range(per_node)] if order.tasks == "rank" else [(first, 0)]
        if order.tasks == "first" and index and not order.others:
            ranks = []
        node = start_agent(order.ssh, self.run_dir, host, ranks, self.log)
        node.send(json.dumps(self._part(host, index, ranks)))
        os.set_blocking(node.input, False)
        self.selector.register(node.output, selectors.EVENT_READ, node)
        return node

    def _part(self, host: Host, index: int, ranks: list[tuple[int, int]]) -> dict[str, Any]:
        per_node = self.order.tasks_per_node
        mark = f"{NODE_MARK}{self.run_dir}@{host.name}"
        name, _, value = mark.partition("=")
        return {
            "env": {**self.env, name: value},
            # A launcher that leads starts ranks where no agent hands them its node's mark.
            "mark": f"{RANK_MARK}{self.run_dir}" if self.order.tasks == "first" else mark,
            "node_rank": index,
            "ranks": ranks,
            "leaves": self.order.leaves,
            "lease_seconds": LEASE_SECONDS,
            "heartbeat_seconds": self.order.heartbeat_seconds,
            "heartbeat_dir": self.env.get("CHECKPOINT_DIR", self.env["RUN_DIR"]),
            # A launcher that leads starts the ranks of other nodes, which beat there all the same.
            "beating": list(range(index * per_node, (index + 1) * per_node)),
        }

    def _tell(self, line: str) -> None:
        for node in self.nodes:
            if node.open:
                node.send(line)

    def _hear(self, node: Node) -> Outcome | None:
        got = os.read(node.output, 65536)
        if not got:
            return self._closed(node)
        node.heard = time.monotonic()
        *lines, node.rest = (node.rest + got).split(b"\n")
        for line in lines:
            if (outcome := self._event(node, line)) is not None:
                return outcome
        return None

    def _closed(self, node: Node) -> Outcome | None:
        node.open = False
        self.selector.unregister(node.output)
        if node.said_bye or self.ending:
            return None
        return self._lost(node, f"the connection to {node.host.name} ended")

    def _event(self, node: Node, line: bytes) -> Outcome | None:
        name = node.host.name
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            # A login script that prints; it is no event of ours.
            return None
        if event["event"] == "bye":
            node.said_bye = True
        elif event["event"] == "swept":
            Diary(self.run_dir).say(f"ended {event['count']} processes of an earlier start on {name}")
        elif event["event"] == "frozen":
            words = f"rank {event['rank']} on {name} has not moved for {event['seconds']} s"
            return Outcome("frozen", 1, name, words)
        elif event["event"] == "ended":
            node.ended.add(event["rank"])
            if event["code"]:
                words = f"rank {event['rank']} on {name} ended with exit code {event['code']}"
                if self._can_lose(node):
                    return self._go_on(node, words)
                return Outcome("failed", event["code"], name, words)
        return None

    def _lost(self, node: Node, words: str) -> Outcome | None:
        if self._can_lose(node):
            return self._go_on(node, words)
        return Outcome("lost", 1, node.host.name, words)

    def _can_lose(self, node: Node) -> bool:
        # The first node holds the rendezvous of all.
        left = [other for other in self.nodes if other.open and other is not node]
        return node is not self.nodes[0] and len(left) >= self.order.min_nodes

    def _go_on(self, node: Node, words: str) -> Outcome | None:
        Diary(self.run_dir).say(f"{words}; the job goes on without this node")
        node.ended.update(rank for rank, _ in node.ranks)
        node.send(f"stop {_HASTE}")
        return None

    def _judge(self, asked: bool) -> Outcome | None:
        if asked:
            return Outcome("cancelled", 143)
        if all(node.ended.issuperset(rank for rank, _ in node.ranks) for node in self._deciding()):
            return Outcome("time" if self.warned else "completed")
        now = time.monotonic()
        for node in self.nodes:
            if node.open and now - node.heard > SILENT_SECONDS:
                node.open = False
                self.selector.unregister(node.output)
                if outcome := self._lost(node, f"{node.host.name} has said nothing for {SILENT_SECONDS:.0f} s"):
                    return outcome
        age = now - self.began
        if not self.warned and age > self.order.seconds - self.order.warn_seconds:
            self.warned = True
            self._tell("signal SIGUSR2")
        return Outcome("time", 1) if age > self.order.seconds else None

    def _deciding(self) -> list[Node]:
        return self.nodes[:1] if self.order.tasks == "first" else self.nodes

    def _end(self, grace: float) -> None:
        self.ending = True
        self._tell(f"stop {grace}")
        deadline = time.monotonic() + grace + _LAST_SECONDS
        while time.monotonic() < deadline and any(node.open for node in self.nodes):
            for key, _ in self.selector.select(_TICK):
                self._hear(key.data)
        self.selector.close()
        for node in self.nodes:
            node.ssh.kill()
            node.ssh.communicate()
        for name in sweep_nodes(self.order.ssh, self.run_dir, [node.host for node in self.nodes if not node.said_bye]):
            words = f"{name} does not answer; what runs there ends within {LEASE_SECONDS} s by itself"
            Diary(self.run_dir).say(words)
