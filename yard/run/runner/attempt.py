"""Starts a job once: reserves nodes, and runs an agent on each of them until the ranks end or must be stopped.

Each node runs one job at a time, and waiting jobs get nodes in the order of their numbers. A reservation is a lock on
a file on the head. The kernel releases the lock when the runner ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .agent import AGENT_MARK, BEAT_SECONDS, NODE_MARK, RANK_MARK, TICK
from .job import EventLog, Host, JobRequest

VERDICT = "/run/trainyard/health/verdict"
"""File with the severity and reason of a node's worst fault. It is empty if the node has no fault, and its modification
time is the time of the fault. The daemon in cloud-init/files/usr/local/lib/trainyard/health writes it."""
_READ_VERDICT = f'[ ! -s {VERDICT} ] || echo $(($(date +%s) - $(stat -c %Y {VERDICT}))) "$(cat {VERDICT})"'
_PROBE_SECONDS = 15.0
_SWEEP_SECONDS = 8.0
_BUSY_SECONDS, _UNUSABLE_SECONDS = 0.5, 3.0
"""Seconds until the next attempt to reserve nodes: if too few nodes are free, and if some nodes are unusable."""
PATIENCE_SECONDS = 600.0
"""Maximum number of seconds that a job waits until nodes are usable again."""
LEASE_SECONDS = 20
"""Number of seconds without a message from the head after which an agent stops its tasks."""
SILENT_SECONDS = 15.0
"""Number of seconds without a message from a node's agent after which the node counts as lost."""
_HASTE, _GRACE = 2.0, 20.0
"""Seconds between SIGTERM and SIGKILL: after a failure, and after a cancellation or time limit."""
_EXAMINATION_SECONDS = 65.0
"""Maximum number of seconds for which the head waits for a part of the examination of ranks that hang."""
_LAST_SECONDS = 8.0
"""Number of seconds after SIGKILL before the head closes the connections to the agents."""


@dataclass(frozen=True)
class Outcome:
    """An attempt's result. `node` is the name of the node that caused a failure."""

    how: Literal["completed", "failed", "frozen", "lost", "faulty", "time", "cancelled"]
    code: int = 0
    node: str = ""
    message: str = ""


@dataclass
class NodeAgent:
    """The connection to a node's agent. `input` and `output` are the pipes to and from the process `ssh`."""

    host: Host
    ranks: list[tuple[int, int]]
    """The rank and local rank of each task that the agent starts."""
    ssh: subprocess.Popen[bytes]
    input: int
    output: int
    last_received: float = field(default_factory=time.monotonic)
    ended: set[int] = field(default_factory=set)
    rest: bytes = b""
    """The beginning of a line that has not been received completely."""
    said_bye: bool = False
    examined: bool = False
    open: bool = True

    def send(self, line: str) -> None:
        """Send a line to the agent, unless the connection is closed."""
        with suppress(OSError):
            os.write(self.input, line.encode() + b"\n")


def unusable(ssh: Sequence[str], hosts: Sequence[Host]) -> dict[str, str]:
    """Return a mapping from node name to reason for nodes that have a fault or do not respond over SSH within 15 s."""
    return {name: reason for name, (_, reason) in faults(ssh, hosts).items()}


def faults(ssh: Sequence[str], hosts: Sequence[Host]) -> dict[str, tuple[int, str]]:
    """Return the age of the fault in seconds and the reason for each node that `unusable` returns."""
    found: dict[str, tuple[int, str]] = {}
    for name, printed in _run_on(ssh, hosts, _READ_VERDICT, _PROBE_SECONDS).items():
        match ("0 fatal not responding" if printed is None else printed.strip()).split(" ", 2):
            # The age is negative if the node's clock was set back.
            case [age, _, reason] if age.removeprefix("-").isdigit():
                found[name] = (max(0, int(age)), reason)
    return found


def _run_on(ssh: Sequence[str], hosts: Sequence[Host], line: str, seconds: float) -> dict[str, str | None]:
    """Run a shell command on several nodes. Return each node's output, or None if the command failed or timed out."""
    processes = {
        host.name: subprocess.Popen(
            [*ssh, host.name, line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
        )
        for host in hosts
    }
    deadline = time.monotonic() + seconds
    found: dict[str, str | None] = {}
    for name, process in processes.items():
        try:
            output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        found[name] = None if process.returncode else output
    return found


class TooFewNodes(Exception):
    """Too few nodes are usable. The message contains the reason for each unusable node."""


class Claim:
    """Nodes that are reserved for a job. `excluded` maps the names of free but unusable nodes to reasons."""

    def __init__(self) -> None:
        self._locks: dict[Host, int] = {}
        self.excluded: dict[str, str] = {}

    @property
    def hosts(self) -> list[Host]:
        """The reserved nodes."""
        return list(self._locks)

    def take(self, folder: Path, host: Host) -> None:
        """Reserve a node, unless another job has reserved it."""
        lock = _lock(folder / f"node-{host.name}")
        if lock is not None:
            self._locks[host] = lock

    def release(self, *, keep: Collection[Host] = ()) -> None:
        """Release all nodes, except those in `keep`."""
        for host in self.hosts:
            if host not in keep:
                os.close(self._locks.pop(host))


def claim(
    request: JobRequest, number: int, folder: Path, avoid: Collection[str], cancelled: Callable[[], bool]
) -> Claim:
    """Wait for free and usable nodes, and reserve them. The claim is empty if the job is cancelled.

    The nodes named in `avoid` are used only if the group has too few other nodes. Raises TooFewNodes if nodes have been
    unusable for PATIENCE_SECONDS.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ticket = folder / f"waits-{request.group}-{number:09}"
    ticket_lock = _lock(ticket)
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while not cancelled():
            found = _attempt(request, folder, ticket, avoid)
            if found.hosts:
                return found
            if not found.excluded:
                deadline = time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() > deadline:
                raise TooFewNodes("; ".join(f"{name}: {reason}" for name, reason in found.excluded.items()))
            time.sleep(_UNUSABLE_SECONDS if found.excluded else _BUSY_SECONDS)
        return Claim()
    finally:
        ticket.unlink(missing_ok=True)
        if ticket_lock is not None:
            os.close(ticket_lock)


def _attempt(request: JobRequest, folder: Path, ticket: Path, avoid: Collection[str]) -> Claim:
    """Reserve as many nodes as the job needs, or none."""
    claimed = Claim()
    if any(_is_locked(other) for other in folder.glob(f"waits-{request.group}-*") if other.name < ticket.name):
        # A job with a lower number is waiting for nodes in this group.
        return claimed
    preferred = [host for host in request.hosts if host.name not in avoid]
    for host in preferred if len(preferred) >= request.nodes else request.hosts:
        claimed.take(folder, host)
    free = claimed.hosts
    answering: list[Host] = []
    while len(answering) < request.nodes <= len(answering) + len(free):
        missing = request.nodes - len(answering)
        probed, free = free[:missing], free[missing:]
        reasons = unusable(request.ssh, probed)
        answering += [host for host in probed if host.name not in reasons]
        claimed.excluded |= reasons
    claimed.release(keep=answering if len(answering) == request.nodes else ())
    return claimed


def _lock(path: Path) -> int | None:
    """Lock a file. Return its file descriptor, or None if another process has locked it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _is_locked(path: Path) -> bool:
    file = _lock(path)
    if file is not None:
        os.close(file)
    return file is None


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
        self.stall = self._watch_progress() if request.stall_minutes is not None else None
        """The program that ends when the job has stalled (stall.py)."""

    def run(self, cancelled: Callable[[], bool]) -> Outcome:
        """Wait for the outcome, and then stop all ranks. `cancelled` returns whether the job must stop."""
        outcome: Outcome | None = None
        while outcome is None:
            for key, _ in self.selector.select(TICK):
                outcome = self._receive(key.data) or outcome
            outcome = outcome or self._judge(cancelled())
            if time.monotonic() - self.last_beat > BEAT_SECONDS:
                self.last_beat = time.monotonic()
                self._send("beat")
        if outcome.how == "frozen":
            self._collect_stacks()
        self._end(_GRACE if outcome.how in {"time", "cancelled"} else _HASTE)
        self.log.close()
        return outcome

    def _start(self, host: Host, index: int) -> NodeAgent:
        request, per_node = self.request, self.request.tasks_per_node
        first = index * per_node
        ranks = [(first + local, local) for local in range(per_node)] if request.tasks == "rank" else [(first, 0)]
        if request.tasks == "first" and index and not request.others:
            ranks = []
        folder = shlex.quote(str(self.run_dir))
        line = f"cd {folder} && exec env {AGENT_MARK}{folder} python3 -m runner agent {VERDICT}"
        command = [*request.ssh, host.name, line]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log)
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018  (for the type checker)
        node = NodeAgent(host, ranks, process, process.stdin.fileno(), process.stdout.fileno())
        node.send(json.dumps(self._part(host, index, ranks)))
        os.set_blocking(node.input, False)
        self.selector.register(node.output, selectors.EVENT_READ, node)
        return node

    def _watch_progress(self) -> subprocess.Popen[str]:
        words = [str(self.run_dir), self.env.get("CHECKPOINT_DIR", ""), str(self.request.stall_minutes)]
        command = [sys.executable, "stall.py", *words]
        return subprocess.Popen(command, cwd=self.run_dir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    def _part(self, host: Host, index: int, ranks: list[tuple[int, int]]) -> dict[str, Any]:
        per_node = self.request.tasks_per_node
        mark = f"{NODE_MARK}{self.run_dir}@{host.name}"
        name, _, value = mark.partition("=")
        return {
            "env": {**self.env, name: value},
            # Ranks that a launcher starts on other nodes inherit the mark of the first node, where the launcher runs.
            "mark": f"{RANK_MARK}{self.run_dir}" if self.request.tasks == "first" else mark,
            "node_rank": index,
            "ranks": ranks,
            "leaves": self.request.leaves,
            "lease_seconds": LEASE_SECONDS,
            "heartbeat_seconds": self.request.heartbeat_seconds,
            "heartbeat_dir": self.env.get("CHECKPOINT_DIR", self.env["RUN_DIR"]),
            # The agent also watches ranks on its node that a launcher on the first node has started.
            "beating": list(range(index * per_node, (index + 1) * per_node)),
        }

    def _send(self, line: str) -> None:
        for node in self.nodes:
            if node.open:
                node.send(line)

    def _receive(self, node: NodeAgent) -> Outcome | None:
        """Read an agent's events. Return the attempt's outcome if an event determines it."""
        got = os.read(node.output, 65536)
        if not got:
            return self._close(node, f"the connection to {node.host.name} ended")
        node.last_received = time.monotonic()
        *lines, node.rest = (node.rest + got).split(b"\n")
        for line in lines:
            if (outcome := self._event(node, line)) is not None:
                return outcome
        return None

    def _event(self, node: NodeAgent, line: bytes) -> Outcome | None:
        name = node.host.name
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            # The line is output from a login script.
            return None
        match event["event"]:
            case "bye":
                node.said_bye = True
            case "examined":
                node.examined = True
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

    def _close(self, node: NodeAgent, message: str) -> Outcome | None:
        """Close the connection to an agent. If the agent has not announced its end, its node counts as lost."""
        node.open = False
        self.selector.unregister(node.output)
        if node.said_bye or self.ending:
            return None
        return self._fail(node, Outcome("lost", 1, node.host.name, message))

    def _fail(self, node: NodeAgent, outcome: Outcome) -> Outcome | None:
        """Return the outcome, or None if the job continues without this node."""
        left = [other for other in self.nodes if other.open and other is not node]
        # The first node hosts the rendezvous.
        if node is self.nodes[0] or len(left) < self.request.min_nodes:
            return outcome
        self.events.say(f"{outcome.message}; the job continues without this node")
        node.ended.update(rank for rank, _ in node.ranks)
        node.send(f"stop {_HASTE}")
        return None

    def _collect_stacks(self) -> None:
        """End all ranks after they have printed their stacks, which hang.py explains."""
        self._examine("hang dump . MARK")
        # All nodes begin at the same time, because torchrun ends all ranks when it learns of the first ended rank.
        self._examine(f"hang stacks MARK {time.time() + 1:.1f}")

    def _examine(self, line: str) -> None:
        """Send a line to all agents, and wait until they have examined their ranks."""
        for node in self.nodes:
            node.examined = False
        self._send(line)
        deadline = time.monotonic() + _EXAMINATION_SECONDS
        while time.monotonic() < deadline and any(node.open and not node.examined for node in self.nodes):
            for key, _ in self.selector.select(TICK):
                self._receive(key.data)

    def _judge(self, cancelled: bool) -> Outcome | None:
        if cancelled:
            return Outcome("cancelled", 143)
        deciding = self.nodes[:1] if self.request.tasks == "first" else self.nodes
        if all(node.ended.issuperset(rank for rank, _ in node.ranks) for node in deciding):
            return Outcome("time" if self.warned else "completed")
        if self.stall is not None and self.stall.poll() is not None:
            message, self.stall = self.stall.communicate()[0].strip(), None
            if message:
                return Outcome("frozen", 1, message=message)
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
        """Stop all ranks. Afterwards, no rank is running on any node that still responds."""
        self.ending = True
        if self.stall is not None:
            self.stall.kill()
            self.stall.communicate()
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
        folder = shlex.quote(str(self.run_dir))
        sweep = f"cd {folder} && exec python3 -m runner sweep {folder}"
        for name, output in _run_on(self.request.ssh, failed, sweep, _SWEEP_SECONDS).items():
            if output is None:
                self.events.say(f"{name} does not respond; its processes end automatically within {LEASE_SECONDS} s")
