"""The ways in. On the head `submit` takes a job in and prints its number, and `run` sees it through all its starts."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from .agent import run_agent
from .attempt import Attempt
from .claim import PROBE_SECONDS, Claim, Unreachable, claim
from .job import Diary, Host, Order, State, identity
from .node import Outcome, silent
from .processes import AGENT_MARK, RANK_MARK, sweep

_TIMES_TO_AVOID = 2
"""A node where this many failures began is left out, where there are enough others."""
_LAST_WORD_SECONDS = 3600.0
"""How long a runner tries to write down how its job ended, when the disk is full."""
_NO_CHECKPOINT = ("heartbeat-", "metrics")


def submit(run_dir: Path) -> int:
    """Take the job in: give it a number, and start its runner, which outlives whoever called. Returns the number."""
    ids = run_dir.parent / ".ids"
    ids.mkdir(exist_ok=True)
    number = max((int(path.name) for path in ids.iterdir() if path.name.isdigit()), default=0) + 1
    while True:
        try:
            (ids / str(number)).symlink_to(f"../{run_dir.name}")
            break
        except FileExistsError:
            number += 1
    State.new(number, Order.read(run_dir), run_dir).write()
    launch(run_dir)
    return number


def resume(run_dir: Path) -> None:
    """Start an ended job again, with all its retries, so that it goes on from its last checkpoint."""
    state = State.read(run_dir)
    state.state, state.runner, state.restarts = "PENDING", None, state.restarts + 1
    state.submitted, state.ended, state.exit_code = time.time(), 0.0, 0
    state.write()
    Diary(run_dir).note("resume")
    launch(run_dir)


def launch(run_dir: Path) -> None:
    """Start the runner of a job, apart from this process."""
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
    """A job from its first start to its last."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.order = run_dir, Order.read(run_dir)
        self.state, self.diary = State.read(run_dir), Diary(run_dir)
        self.stopped_by = 0
        """The signal that ended it; 0: none. `yard cancel` interrupts, and a head that goes down terminates."""
        signal.signal(signal.SIGHUP, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda told, _: setattr(self, "stopped_by", told))
        self.update("PENDING", "Resources", runner=identity())

    def update(self, state: str, reason: str = "None", **more: object) -> None:
        """Write down where the job is."""
        self.state.state, self.state.reason = state, reason
        for name, value in more.items():
            setattr(self.state, name, value)
        try:
            self.state.write()
        except OSError as error:
            # A full disk must not end ranks that can go on; the next change is written again.
            sys.stderr.write(f"state not written: {error}\n")

    def run(self) -> None:
        """Start the job until it is done, cancelled, or out of retries."""
        while True:
            outcome = self.start()
            again = self.judge(outcome)
            if not again:
                return
            self.diary.note(f"requeue {again}")
            self.diary.say(f"{again}: the job is started again")
            self.update("PENDING", "Resources", restarts=self.state.restarts + 1)

    def start(self) -> Outcome:
        """Get nodes, and run the job on them once."""
        try:
            held = claim(self.order, self.state.id, self.run_dir.parent / ".nodes", self.avoid(), self.stopped)
        except Unreachable as error:
            return Outcome("failed", 1, words=f"{error} do not answer, and the group has too few others")
        try:
            return Outcome("cancelled", 143) if self.stopped() else self.attempt(held)
        finally:
            held.release()

    def attempt(self, held: Claim) -> Outcome:
        """Run the job once on nodes that are its own."""
        restart, names = self.state.restarts, ",".join(host.name for host in held.hosts)
        (self.run_dir / ".started").touch()
        self.diary.note(f"start {restart} {names}")
        self.diary.say(f"job {self.state.id}, start {restart}, on {names}")
        started = self.state.started or time.time()
        self.update("RUNNING", node_list=names, nodes=len(held.hosts), started=started)
        # Below the ephemeral ports, and another one after a restart: the old one may still be held by a dying rank.
        port = 20000 + (self.state.id * 10 + restart) % 12000
        outcome = Attempt(self.order, self.run_dir, held.hosts, restart, port).run(self.stopped)
        if outcome.words:
            self.diary.say(outcome.words)
        return outcome

    def stopped(self) -> bool:
        """Tell whether the job shall end now."""
        return self.stopped_by != 0

    def avoid(self) -> set[str]:
        """Return the nodes where too many failures began."""
        nodes = [node for node in self.diary.failures() if node]
        return {node for node in nodes if nodes.count(node) >= _TIMES_TO_AVOID}

    def judge(self, outcome: Outcome) -> str:
        """Return why the job shall be started again; '' after it was written down how it ended."""
        if outcome.how == "cancelled":
            return self.end("LOST" if self.stopped_by == signal.SIGTERM else "CANCELLED", outcome.code)
        if outcome.how == "time" and self.has_new_checkpoint():
            return "time limit, checkpoint written"
        if outcome.how in {"completed", "time"}:
            return self.end("TIMEOUT" if outcome.code else "COMPLETED", outcome.code)
        # A node that answers again has failed the job; one that does not is lost, which is nobody's mistake.
        if outcome.how == "lost" and silent(self.order.ssh, [self.host(outcome.node)], PROBE_SECONDS):
            return f"lost {outcome.node}"
        self.diary.note(f"failed {outcome.code} {outcome.node}".rstrip())
        count = len(self.diary.failures())
        if count > self.order.retries:
            return self.end("FAILED", outcome.code)
        return f"failure {count} of at most {self.order.retries}"

    def host(self, name: str) -> Host:
        """Return the node of that name."""
        return next(host for host in self.order.hosts if host.name == name)

    def has_new_checkpoint(self) -> bool:
        """Tell whether this start has left a checkpoint, so that another one gets further."""
        folder = self.order.checkpoints(self.run_dir)
        since = (self.run_dir / ".started").stat().st_mtime
        files = (path for path in folder.rglob("*") if not path.name.startswith(_NO_CHECKPOINT)) if folder else ()
        return any(path.stat().st_mtime > since for path in files)

    def end(self, state: str, code: int) -> str:
        """Write down the end; nothing starts again."""
        self.update(state, exit_code=code, ended=time.time())
        deadline = time.monotonic() + _LAST_WORD_SECONDS
        while State.read(self.run_dir).state != state and time.monotonic() < deadline:
            time.sleep(5)
            self.update(state)
        self.diary.note(f"end {code}")
        return ""


def main() -> None:
    """Do what the arguments say, in the run folder."""
    match sys.argv[1:]:
        case ["submit", folder]:
            print(submit(Path(folder)))  # noqa: T201  (the answer to yard)
        case ["resume", folder]:
            resume(Path(folder))
        case ["run", folder]:
            Run(Path(folder)).run()
        case ["agent"]:
            run_agent()
        case ["sweep", folder]:
            sweep([f"{RANK_MARK}{folder}", f"{AGENT_MARK}{folder}"])
        case _:
            sys.exit("python3 -m runner agent, or submit|resume|run|sweep FOLDER, in a job's run folder")


main()
