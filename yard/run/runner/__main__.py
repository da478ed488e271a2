"""The runner's commands, which are started in the job's run folder."""

from __future__ import annotations

import getpass
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from .agent import AGENT_MARK, RANK_MARK, run_agent, sweep
from .attempt import Attempt, Claim, Outcome, TooFewNodes, claim, faults, unusable
from .job import EventLog, JobRequest, State, identity

_RESULT_SECONDS = 3600.0
"""Number of seconds for which the runner tries to write the job's result, for example if the disk is full."""
_FAULT_SECONDS, _FAULT_ROUNDS, _FAULT_AGE = 10.0, 6, 600
"""After a failure, the runner looks for faults of the job's nodes at this interval and this many times, because a
health check can notice a fault after the job has failed. Faults above this age are probably not the cause."""
_NO_CHECKPOINT = ("heartbeat-", "metrics")
"""Prefixes of files in the checkpoint folder that are not checkpoints."""


def submit(run_dir: Path) -> int:
    """Start a job's runner in the background, and return the job's number."""
    ids = run_dir.parent / ".ids"
    ids.mkdir(exist_ok=True)
    number = max((int(path.name) for path in ids.iterdir() if path.name.isdigit()), default=0) + 1
    while True:
        try:
            (ids / str(number)).symlink_to(f"../{run_dir.name}")
            break
        except FileExistsError:
            # Another submission has just taken this number.
            number += 1
    request = JobRequest.read(run_dir)
    State(
        id=number,
        name=request.name,
        user=getpass.getuser(),
        group=request.group,
        nodes=request.nodes,
        run_dir=str(run_dir),
        submitted=time.time(),
    ).write()
    launch(run_dir)
    return number


def resume(run_dir: Path) -> None:
    """Start a new runner for a job that has ended. All retries are available again."""
    state = State.read(run_dir)
    state.state, state.runner, state.restarts = "PENDING", None, state.restarts + 1
    state.submitted, state.ended, state.exit_code = time.time(), 0.0, 0
    state.write()
    EventLog(run_dir).note("resume")
    launch(run_dir)


def launch(run_dir: Path) -> None:
    """Start the `run` command in a new session."""
    with (run_dir / "runner.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "runner", "run", str(run_dir)],
            cwd=run_dir,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


class Run:
    """A job, including all its restarts."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.request = run_dir, JobRequest.read(run_dir)
        self.state, self.events = State.read(run_dir), EventLog(run_dir)
        self.stopped_by = 0
        """The signal that stops the job, or 0. `yard cancel` sends SIGINT, and the head sends SIGTERM when it shuts
        down."""
        self.faulty: set[str] = set()
        """The nodes of the last start whose faults are recorded."""
        signal.signal(signal.SIGHUP, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda received, _: setattr(self, "stopped_by", received))
        self.update("PENDING", "Resources", runner=identity())

    def update(self, state: str, reason: str = "None", **more: object) -> None:
        """Change the job's state, and write it to state.json."""
        self.state.state, self.state.reason = state, reason
        for name, value in more.items():
            setattr(self.state, name, value)
        try:
            self.state.write()
        except OSError as error:
            # A full disk does not end the job. The next update writes the state again.
            sys.stderr.write(f"state not written: {error}\n")

    def run(self) -> None:
        """Start the job repeatedly until it completes, times out, is cancelled, or has no retries left."""
        while reason := self.judge(self.start()):
            self.events.note(f"requeue {reason}")
            self.events.say(f"{reason}: restarting the job")
            self.update("PENDING", "Resources", restarts=self.state.restarts + 1)

    def start(self) -> Outcome:
        """Reserve nodes, and run the job on them once."""
        failures = self.events.failures()
        # The job avoids a node on which it has failed twice.
        avoid = {node for node in failures if node and failures.count(node) > 1}
        try:
            claimed = claim(self.request, self.state.id, self.run_dir.parent / ".nodes", avoid, self.stopped)
        except TooFewNodes as error:
            return Outcome("failed", 1, message=f"the group has too few usable nodes: {error}")
        try:
            return Outcome("cancelled", 143) if self.stopped() else self.attempt(claimed)
        finally:
            claimed.release()

    def attempt(self, claimed: Claim) -> Outcome:
        restart, names = self.state.restarts, ",".join(host.name for host in claimed.hosts)
        (self.run_dir / ".started").touch()
        shutil.rmtree(self.run_dir / "hang", ignore_errors=True)
        (self.run_dir / "hang").mkdir(exist_ok=True)
        if (folder := self.request.checkpoints(self.run_dir)) is not None:
            self.events.note(f"saves {folder}")
        self.events.note(f"start {restart} {names}")
        for name, reason in claimed.excluded.items():
            self.events.say(f"{name} is not used: {reason}")
        self.events.say(f"job {self.state.id}, start {restart}, on {names}")
        started = self.state.started or time.time()
        self.update("RUNNING", node_list=names, nodes=len(claimed.hosts), started=started)
        # The port is below the ephemeral range. It changes with each start, because old ranks can still use it.
        port = 20000 + (self.state.id * 10 + restart) % 12000
        outcome = Attempt(self.request, self.run_dir, claimed.hosts, restart, port).run(self.stopped)
        if outcome.message:
            self.events.say(outcome.message)
        if outcome.how in {"frozen", "failed"}:
            self.explain_hang()
        return outcome

    def explain_hang(self) -> None:
        """Print where the ranks were, if they have printed their stacks or PyTorch has recorded their collectives."""
        line = [sys.executable, "hang.py", "explain", str(self.run_dir), str(self.state.restarts)]
        done = subprocess.run(line, cwd=self.run_dir, capture_output=True, text=True, check=False)
        for text in done.stdout.splitlines():
            self.events.say(text.removeprefix("yard: "))

    def stopped(self) -> bool:
        return self.stopped_by != 0

    def judge(self, outcome: Outcome) -> str:
        """Return the reason for a restart, or record the job's result and return ''."""
        if outcome.how == "cancelled":
            return self.end("LOST" if self.stopped_by == signal.SIGTERM else "CANCELLED", outcome.code)
        if outcome.how == "time" and self.has_new_checkpoint():
            return "time limit, checkpoint written"
        if outcome.how in {"completed", "time"}:
            return self.end("TIMEOUT" if outcome.code else "COMPLETED", outcome.code)
        if outcome.how in {"lost", "faulty"}:
            # If the node is usable again, the restart counts as a retry, because only the job has failed.
            lost = [host for host in self.request.hosts if host.name == outcome.node]
            if unusable(self.request.ssh, lost):
                return f"{outcome.how} {outcome.node}"
        self.events.note(f"failed {outcome.code} {outcome.node}".rstrip())
        self.faulty.clear()
        self.record_faults()
        count = len(self.events.failures())
        if count > self.request.retries:
            return self.end("FAILED", outcome.code)
        return f"failure {count} of at most {self.request.retries}"

    def has_new_checkpoint(self) -> bool:
        folder = self.request.checkpoints(self.run_dir)
        since = (self.run_dir / ".started").stat().st_mtime
        files = (path for path in folder.rglob("*") if not path.name.startswith(_NO_CHECKPOINT)) if folder else ()
        return any(path.stat().st_mtime > since for path in files)

    def end(self, state: str, code: int) -> str:
        """Record the job's result, and return '', because there is no reason for a restart."""
        self.update(state, exit_code=code, ended=time.time())
        deadline = time.monotonic() + _RESULT_SECONDS
        while State.read(self.run_dir).state != state and time.monotonic() < deadline:
            time.sleep(5)
            self.update(state)
        self.report_goodput()
        self.events.note(f"end {code}")
        for _ in range(_FAULT_ROUNDS if state == "FAILED" else 0):
            time.sleep(_FAULT_SECONDS)
            # `yard resume` starts another runner.
            if self.stopped() or State.read(self.run_dir).runner != self.state.runner:
                break
            self.record_faults()
        return ""

    def record_faults(self) -> None:
        """Record the faults of the nodes on which the job failed, except those that are already recorded."""
        names = self.state.node_list.split(",")
        hosts = [host for host in self.request.hosts if host.name in names and host.name not in self.faulty]
        for name, (age, reason) in faults(self.request.ssh, hosts).items():
            self.faulty.add(name)
            if age <= _FAULT_AGE:
                self.events.note(f"fault {name} {int(time.time() - age)} {reason}")
                self.events.say(f"{name} has had a fault for {age} s: {reason}")

    def report_goodput(self) -> None:
        """Append the job's goodput to its log, if the job writes checkpoints and its program has recorded steps."""
        if (program := self.run_dir / "goodput.py").exists():
            command = [sys.executable, str(program), "--line", f"{self.state.id}={self.run_dir}"]
            line = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
            if line:
                self.events.say(line)


def main() -> None:
    match sys.argv[1:]:
        case ["submit", folder]:
            print(submit(Path(folder)))  # noqa: T201  (yard reads it)
        case ["resume", folder]:
            resume(Path(folder))
        case ["run", folder]:
            Run(Path(folder)).run()
        case ["agent", verdict]:
            run_agent(Path(verdict))
        case ["sweep", folder]:
            sweep([f"{RANK_MARK}{folder}", f"{AGENT_MARK}{folder}"])
        case _:
            sys.exit("Usage: python3 -m runner agent FILE | submit FOLDER | resume FOLDER | run FOLDER | sweep FOLDER")


main()
