"""`yard heal`: plans and performs the repair of faulty nodes, on request or from a timer."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from trainyard import project
from trainyard.errors import RemoteError, StackError
from trainyard.faults import HISTORY, QUARANTINE, reason_for
from yard.repair.drain import update
from yard.repair.steps import (
    STRIKES,
    Action,
    Case,
    Decision,
    Limits,
    Phase,
    Step,
    cases,
    decide,
    limit,
    parse_actions,
    strikes,
    with_stopped,
)
from yard.run.queue import explain_node, parse_authors
from yard.run.schedulers import Slurm
from yard.show import say, say_json, table
from yard.stack.remote import Remote, stopped_machines
from yard.stack.workspace import machines, replace_resources, wait_for_pulumi

NEEDS_A_PERSON = 3
"""The exit code of `yard heal --auto` if a stack with `repair: ask` needs repairs, or if there is an epidemic."""
_RECORD, _LOCK = "heal.jsonl", "heal.lock"
"""Files in the head's state folder: the record of all repairs, and the lock held during a repair."""
_LOCKED = 9
_SEPARATOR = "===heal==="
_SECONDS = 60
_SERVICE = """[Unit]
Description=Repair of the nodes of stack {stack} (yard heal --auto)

[Service]
Type=oneshot
WorkingDirectory={folder}
Environment="PATH={path}"
EnvironmentFile=-%E/trainyard-heal.env
ExecStart={command}
"""
_TIMER = """[Unit]
Description=Repair of the nodes of stack {stack}

[Timer]
OnActiveSec=1min
OnUnitInactiveSec=5min

[Install]
WantedBy=timers.target
"""


@dataclass(frozen=True, kw_only=True)
class HealRequest:
    """Options of `yard heal`. `auto` performs the steps only if the stack file contains `repair: auto`."""

    perform: bool = False
    auto: bool = False
    max_usd_per_hour: float | None = None


def heal(remote: Remote, request: HealRequest, as_json: bool) -> int:
    """Print the plan, and perform the steps that the request allows.

    Returns 0, NEEDS_A_PERSON, or the exit code of a failed `pulumi up`.
    """
    performs = request.perform or (request.auto and remote.stack.cluster.repair == "auto")
    with lock(remote) if performs else nullcontext(True) as is_ours:
        if not is_ours:
            text = "another `yard heal` is repairing this cluster"
            if request.perform:
                raise StackError(f"{text}; nothing was changed. Fix: wait until it has ended")
            say(text)
            return 0
        found, decisions = _plan(remote, request.max_usd_per_hour)
        if as_json:
            say_json([asdict(decision) for decision in decisions])
        else:
            _show(found, decisions)
        steps = [decision for decision in decisions if decision.step not in {Step.NONE, Step.WAIT, Step.START}]
        for decision in steps if performs else ():
            _record(remote, decision, next(case for case in found if case.name == decision.node))
            if code := _perform(remote, decision):
                return code
    if steps and not performs and not as_json:
        ask = "the stack file contains `repair: ask`; " if request.auto else ""
        say(f"nothing was changed; {ask}`yard heal --perform` performs the steps")
    is_blocked = (steps and not performs) or any(decision.epidemic for decision in decisions)
    return NEEDS_A_PERSON if request.auto and is_blocked else 0


def explain(remote: Remote, node: str, as_json: bool) -> None:
    """Print a node's history and repairs, and its next step with the reason. Raises RemoteError."""
    found, decisions = _plan(remote, None)
    case = next((case for case in found if case.name == remote.host(node)), None)
    if case is None:
        raise StackError(f"{node} is the head, which runs no jobs and is not repaired by yard")
    decision = next(decision for decision in decisions if decision.node == node)
    count = strikes(case, time.time())
    if as_json:
        say_json({**asdict(case), **asdict(decision), "strikes": count})
        return
    events = [(change.time, change.reason or "in service") for change in case.changes]
    events += [(action.time, f"repair: {action.step}") for action in case.actions]
    for when, text in sorted(events):
        say(f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M:%S} UTC  {text}")
    say(f"{node} is {case.state}, phase {decision.phase}, {count} of {STRIKES} strikes in the last week")
    say(f"next: {decision.step}, because: {decision.why}")


@contextmanager
def lock(remote: Remote) -> Iterator[bool]:
    """Hold the cluster's lock to prevent overlapping repairs from several computers. Yields False if the lock is taken.

    The head releases the lock when the command's stdin is closed. This also happens if this process is killed.
    """
    remote.run("true", admin=True)  # reports the reason if the head cannot be reached
    path = shlex.quote(f"{remote.stack.cluster.state_dir}/{_LOCK}")
    # Every user who can read a file can also lock it.
    create = f"umask 077; : >>{path}; chmod 0600 {path}"
    line = f"{create}; exec flock -n -E {_LOCKED} {path} sh -c 'echo locked; exec cat >/dev/null'"
    command = f"sudo -n sh -c {shlex.quote(line)}"
    # ssh runs in a new session, so that Ctrl-C does not end it while pulumi finishes its running operations.
    with subprocess.Popen(
        remote.argv(command, remote.host(None, admin=True)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        is_ours = bool(process.stdout and process.stdout.readline() == "locked\n")
        if not is_ours and process.wait(_SECONDS) != _LOCKED:
            raise RemoteError("the lock of `yard heal` on the head cannot be taken. Fix: run `yard doctor`")
        yield is_ours


def _plan(remote: Remote, max_usd_per_hour: float | None) -> tuple[list[Case], list[Decision]]:
    cluster = remote.stack.cluster
    if cluster.scheduler != "slurm":
        raise StackError("yard heal needs Slurm, which this cluster does not run; run `yard doctor`")
    folder = shlex.quote(cluster.state_dir)
    text = remote.run(
        f"cd {folder}; cat {HISTORY} 2>/dev/null || echo '{{}}'; "
        f"echo {_SEPARATOR}; cat {_RECORD} 2>/dev/null || true; "
        f"echo {_SEPARATOR}; sinfo -a -h -N -o '%N|%u|%H'"
    )
    history, record, authors = text.split(_SEPARATOR)
    groups = {node.name: node.group for node in cluster.nodes if node.name != cluster.head.name}
    found = cases(groups, Slurm().nodes(remote), json.loads(history), parse_actions(record), parse_authors(authors))
    now, start = time.time(), cluster.way_to_start(remote.stack.name)
    decisions = [decide(case, now, can_replace=cluster.provider != "hosts", start=start) for case in found]
    limited = limit(decisions, found, Limits(max_usd_per_hour, cluster.usd_per_hour), now)
    return found, with_stopped(limited, stopped_machines(remote.stack, {case.name: case.state for case in found}))


def _show(found: Sequence[Case], decisions: Sequence[Decision]) -> None:
    rows = [
        (
            case.name,
            # Slurm notices a stopped machine later.
            "off" if decision.step is Step.START else case.state,
            str(decision.phase),
            str(decision.step),
            explain_node(case.state, case.reason, case.set_by),
            decision.why,
        )
        for case, decision in zip(found, decisions, strict=True)
        if case.reason or decision.phase not in {Phase.HEALTHY, Phase.PROBATION}
    ]
    if rows:
        table(("NODE", "STATE", "PHASE", "STEP", "REASON", "BECAUSE"), rows)
    else:
        # slurmctld asks an idle node's slurmd only once a minute (HealthCheckInterval in components/node/slurm.py).
        say(f"all {len(found)} nodes are in service, according to their last checks. To check them now: `yard doctor`")


def _record(remote: Remote, decision: Decision, case: Case) -> None:
    """Add a repair to the record before the repair begins, so that interrupted repairs are counted."""
    line = json.dumps(asdict(Action(time.time(), decision.node, decision.step.value, case.fault or "")))
    path = shlex.quote(f"{remote.stack.cluster.state_dir}/{_RECORD}")
    remote.run(f"echo {shlex.quote(line)} | sudo -n tee -a {path} >/dev/null", admin=True)


def _perform(remote: Remote, decision: Decision) -> int:
    say(f"{decision.node}: {decision.step}")
    if decision.step is Step.REPLACE:
        stack = remote.stack.name
        wait_for_pulumi(stack)
        urns = [machine.urn for machine in machines(stack, [decision.node]).values()]
        return replace_resources(stack, urns)
    if decision.step is Step.REBOOT:
        argv = remote.argv("sudo -n systemctl reboot", remote.host(decision.node, admin=True))
        # The connection can end before the command does, so the exit code is ignored.
        subprocess.run(argv, capture_output=True, timeout=_SECONDS, check=False)
        return 0
    reason = shlex.quote(reason_for(QUARANTINE, decision.why))
    update(remote, [decision.node], "state=drain", f"reason={reason}")
    return 0


def install_timer(stack: str, max_usd_per_hour: float | None) -> None:
    """Start a timer in the user's systemd that runs `yard heal --auto` every five minutes. Raises StackError."""
    unit = f"trainyard-heal-{stack.replace('/', '-')}"
    limits = [] if max_usd_per_hour is None else ["--max-usd-per-hour", f"{max_usd_per_hour:g}"]
    command = [sys.executable, "-m", "yard", "heal", "--auto", "--stack", stack, *limits]
    facts = {"stack": stack, "folder": str(project.ROOT), "path": os.environ["PATH"]}
    # systemd replaces "%x" in all values, and "$x" in commands (systemd.unit(5) and systemd.service(5) of version 257,
    # read 2026-11-24).
    values = {name: value.replace("%", "%%") for name, value in facts.items()}
    values["command"] = " ".join(f'"{word}"' for word in command).replace("%", "%%").replace("$", "$$")
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{unit}.service").write_text(_SERVICE.format(**values))
    (folder / f"{unit}.timer").write_text(_TIMER.format(**values))
    for words in (["daemon-reload"], ["enable", "--now", f"{unit}.timer"]):
        done = subprocess.run(["systemctl", "--user", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise StackError(
                f"`systemctl --user {' '.join(words)}` failed: {done.stderr.strip()}. The units are in {folder}. Fix: "
                "log in to a session with systemd, then run the command again"
            )
    say(
        f"{unit}.timer runs `yard heal --auto` every five minutes. To run it while you are logged out, run `loginctl "
        f"enable-linger`. `journalctl --user -u {unit}` shows its output, and `systemctl --user disable --now "
        f"{unit}.timer` stops it"
    )
