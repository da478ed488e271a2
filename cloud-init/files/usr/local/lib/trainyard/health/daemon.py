"""The daemon follows the kernel log, runs the periodic checks, and keeps the node's state in Slurm up to date.

The main thread waits for kernel messages, events and results, and calls scontrol. A second thread runs the checks, so
that a slow check does not delay the drain after an Xid.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time
from collections.abc import Callable

from health import fabric, gpu, system
from health.gpu import fatal_xid, load_xids, records, xid_in
from health.idle import IdleGpus
from health.node import FAIL, SEVERITIES, Check, Node, Outcome, checks_for, load_checks, unknown
from health.slurm import apply, requeue_jobs, warn_jobs
from health.verdicts import Ledger, load, save, write
from trainyard.faults import EVENT
from trainyard.idle_gpus import FOLDER

CACHE = "/run/trainyard/health"
LEDGER = "/var/lib/trainyard/health.json"
SUSPECT_SECONDS = 5.0
"""The time after which a failed check runs again."""
_LOOK_SECONDS = 10.0
"""How often the node's state in Slurm is compared with the verdicts. The node itself does not notice when someone else
resumes it, or when slurmctld sets it down while it is frozen."""
_SAVE_SECONDS = 600.0
"""How often the ledger is written to the disk while no verdict changes."""
_PIPE_BYTES = 4096
_XID = "gpu-xid"


def function_for(check: str) -> Callable[[Node, Check], Outcome]:
    """Return the function that runs a check, for example `gpu_count` in gpu.py for gpu-count."""
    name = check.replace("-", "_")
    module = next(module for module in (system, gpu, fabric) if hasattr(module, name))
    found: Callable[[Node, Check], Outcome] = getattr(module, name)
    return found


def run_check(node: Node, check: Check) -> Outcome:
    """Run a check. If the check raises an exception, the result is UNKNOWN."""
    try:
        return function_for(check.id)(node, check)
    except Exception as error:
        return unknown(f"the check failed: {type(error).__name__}: {error}")


def report(node: Node) -> list[str]:
    """Run all of this node's checks once, and return a tab-separated line for each check that failed.

    The fields are id, severity, text, cause and fix. A check counts as failed after a single failure.
    """
    read_kernel_log(node)
    lines = []
    checks = {check.id: check for context in ("boot", "periodic") for check in checks_for(node, context)}
    for check in checks.values():
        outcome = run_check(node, check)
        if outcome.state == FAIL:
            lines.append("\t".join((check.id, check.severity, outcome.text, check.cause, check.fix)))
    return lines


def read_kernel_log(node: Node) -> None:
    """Add the last fatal Xid in the kernel log to the node's events."""
    log = open_kernel_log(node)
    if log is None:
        return
    codes = load_xids()
    for _, line in records(log):
        if (text := fatal_xid(line, codes)) is not None:
            node.events[_XID] = text
    os.close(log)


def open_kernel_log(node: Node) -> int | None:
    try:
        return os.open(node.path("/dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None


class Daemon:
    """The daemon's state. `lock` guards the ledger and its files."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.cache = node.path(CACHE)
        self.checks: dict[str, Check] = {check.id: check for check in checks_for(node, "periodic")}
        self.due = dict.fromkeys(self.checks, 0.0)
        self.ledger: Ledger = load(node.path(LEDGER), node.boot_id)
        self.ledger.retain(self.checks, time.time())
        node.baseline = self.ledger.baseline
        verdict = self.ledger.verdicts.get(_XID)
        if verdict is not None and verdict.boot_id == self.ledger.boot_id:
            node.events[_XID] = verdict.text
        self.codes = load_xids()
        self.lock = threading.Lock()
        self.kicked = threading.Event()
        """Wakes the thread that runs the checks."""
        self.clears = dict.fromkeys(self.checks, 0)
        """How often an operator has cleared each check's verdict."""
        self.requeued = self.ledger.worst
        """The last verdict for which jobs were requeued. An earlier daemon has already handled a stored verdict."""
        self.warned = self.ledger.verdicts.get(EVENT)
        """The last event about which the jobs were warned."""
        self.idle_gpus = IdleGpus(node)
        self.saved = 0.0
        self._woken, self._wake = os.pipe()

    def run(self) -> None:
        """Run until the process ends."""
        self.cache.mkdir(mode=0o755, parents=True, exist_ok=True)
        # The prolog starts no process to create this folder.
        self.node.path(FOLDER).mkdir(mode=0o755, exist_ok=True)
        with self.lock:
            self.publish()
        log, events = open_kernel_log(self.node), self._open_events()
        sources = [source for source in (log, events, self._woken) if source is not None]
        threading.Thread(target=self._check_for_ever, daemon=True).start()
        while True:
            self.settle()
            if self.node.has_slurm:
                self.idle_gpus.report(time.monotonic(), time.time())
            ready, _, _ = select.select(sources, [], [], _LOOK_SECONDS)
            if log is not None and log in ready:
                self.read_log(log)
            if events in ready:
                self.read_events(os.read(events, _PIPE_BYTES).decode(errors="replace"))
            if self._woken in ready:
                os.read(self._woken, _PIPE_BYTES)

    def settle(self) -> None:
        """Drain or resume the node if its state in Slurm may differ from the verdicts."""
        with self.lock:
            worst, proved, event = self.ledger.worst, self._proved(), self.ledger.verdicts.get(EVENT)
            # Without a verdict, the node is resumed only after the bootstrap has finished.
            if not self.node.has_slurm or (worst is None and not proved):
                return
        done = apply(self.node, worst.reason if worst else None, load_checks(), proved)
        drained = self.cache / "drained"
        if worst is None:
            drained.unlink(missing_ok=True)
        elif done:
            drained.touch()
            if worst.severity == SEVERITIES[0] and worst != self.requeued and requeue_jobs(self.node):
                self.requeued = worst
            if event is not None and event != self.warned and warn_jobs(self.node):
                self.warned = event

    def read_log(self, log: int) -> None:
        """Read the new records of the kernel log."""
        for number, line in records(log, self.ledger.kmsg):
            found = xid_in(line)
            with self.lock:
                self.ledger.kmsg = number
                if found is not None:
                    self.ledger.count_xid(*found)
            text = fatal_xid(line, self.codes)
            if text is not None and _XID in self.checks:
                self.node.events[_XID] = text
                self.examine(self.checks[_XID])

    def read_events(self, text: str) -> None:
        """Handle lines from the pipe: "event CHECK TEXT" from the epilog, or "clear CHECK" from an operator."""
        for line in text.splitlines():
            word, check, detail = (*line.split(" ", 2), "", "")[:3]
            if check not in self.checks:
                continue
            if word == "event":
                self.node.events[check] = detail
            elif word == "clear":
                with self.lock:
                    self.node.events.pop(check, None)
                    self.clears[check] += 1
                    self.ledger.clear(check, time.time())
                    self._changed()
            self.due[check] = 0.0
            self.kicked.set()

    def run_due(self, now: float) -> None:
        """Run the checks that are due. `now` comes from time.monotonic()."""
        due = [check for check in self.checks.values() if self.due[check.id] <= now]
        for check in due:
            suspect = self.examine(check)
            self.due[check.id] = now + (min(SUSPECT_SECONDS, check.every) if suspect else check.every)
        if due:
            with self.lock:
                self.publish()

    def examine(self, check: Check) -> bool:
        """Run a check, add its result to the ledger, and return whether the check must run again soon.

        If an operator clears the check while it is running, the result is discarded because it may describe the cleared
        fault.
        """
        clears = self.clears[check.id]
        outcome = run_check(self.node, check)
        with self.lock:
            if clears != self.clears[check.id]:
                return True
            if self.ledger.record(check, outcome, time.time()):
                self._changed()
            return self.ledger.is_suspect(check.id)

    def publish(self) -> None:
        """Write the cache. Also write the ledger if its last write was more than _SAVE_SECONDS ago."""
        worst = self.ledger.worst
        # A failed job reads the age of the fault from the file's modification time.
        verdict = f"{worst.severity} {worst.reason}" if worst else ""
        write(self.cache / "verdict", verdict, worst.since if worst else None)
        results = {name: [outcome.state, outcome.text] for name, outcome in self.ledger.outcomes.items()}
        shown = {"time": time.time(), "results": results, "xids": self.ledger.xids}
        write(self.cache / "results.json", json.dumps(shown))
        if time.monotonic() - self.saved > _SAVE_SECONDS:
            save(self.node.path(LEDGER), self.ledger)
            self.saved = time.monotonic()

    def _check_for_ever(self) -> None:
        while True:
            self.run_due(time.monotonic())
            self.idle_gpus.sample(time.monotonic())
            self.kicked.wait(max(min(*self.due.values(), self.idle_gpus.due) - time.monotonic(), 0.1))
            self.kicked.clear()

    def _changed(self) -> None:
        """Store a changed verdict, and wake the main thread."""
        self.saved = float("-inf")
        self.publish()
        os.write(self._wake, b"x")

    def _proved(self) -> frozenset[str]:
        """Return the checks that have passed often enough or do not apply to this node.

        Return an empty set until the bootstrap has finished.
        """
        try:
            status = json.loads(self.node.read("/var/lib/trainyard/status.json"))
        except ValueError:
            return frozenset()
        if status.get("state") != "ready" or status.get("boot_id") != self.ledger.boot_id:
            return frozenset()
        return frozenset(name for name in load_checks() if name not in self.checks or self._has_passed(name))

    def _has_passed(self, name: str) -> bool:
        return name not in self.ledger.verdicts and self.ledger.passes.get(name, 0) >= self.checks[name].passes

    def _open_events(self) -> int:
        path = self.cache / "events"
        if not path.is_fifo():
            path.unlink(missing_ok=True)
            os.mkfifo(path, 0o600)
        # The pipe is also opened for writing, because reads would return end-of-file if the pipe had no writer.
        return os.open(path, os.O_RDWR | os.O_NONBLOCK)
