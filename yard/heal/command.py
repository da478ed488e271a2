"""`yard heal`: plans and performs the repair of faulty nodes."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from trainyard.errors import StackError
from yard.heal.brakes import Limits, brake
from yard.heal.case import Action, Case, cases, parse_actions, parse_authors
from yard.heal.ladder import STRIKES, Decision, Step, decide, strikes
from yard.roll.machines import machines, replace_machines, wait_for_pulumi
from yard.run.schedulers import Slurm
from yard.show import say, say_json, table
from yard.stack.remote import Remote

_RECORD = "heal.jsonl"
"""File in the head's state folder that records all repairs."""
_SEPARATOR = "===heal==="
_SECONDS = 60


@dataclass(frozen=True)
class HealRequest:
    """Options. Without `perform`, nothing is changed."""

    perform: bool
    max_usd_per_hour: float | None


def heal(remote: Remote, request: HealRequest, as_json: bool) -> int:
    """Print the plan and, if requested, perform the steps. Return the exit code of `pulumi up`, or 0."""
    found, decisions = _plan(remote, request.max_usd_per_hour)
    if as_json:
        say_json([asdict(decision) for decision in decisions])
    else:
        _show(found, decisions)
    steps = [decision for decision in decisions if decision.step not in {Step.NONE, Step.WAIT}]
    if not request.perform:
        if steps and not as_json:
            say("nothing was changed; `yard heal --perform` performs the steps")
        return 0
    for decision in steps:
        _record(remote, decision)
        if code := _perform(remote, decision):
            return code
    return 0


def explain(remote: Remote, node: str, as_json: bool) -> None:
    """Print the history of a node, its repairs, and the next step with its reason. Raises RemoteError."""
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


def _plan(remote: Remote, max_usd_per_hour: float | None) -> tuple[list[Case], list[Decision]]:
    cluster = remote.stack.cluster
    if cluster.scheduler != "slurm":
        raise StackError("yard heal needs Slurm, which this cluster does not run; run `yard doctor`")
    folder = shlex.quote(cluster.state_dir)
    text = remote.run(
        f"cd {folder}; cat repair.json 2>/dev/null || echo '{{}}'; "
        f"echo {_SEPARATOR}; cat {_RECORD} 2>/dev/null || true; "
        f"echo {_SEPARATOR}; sinfo -a -h -N -o '%N|%u|%H'"
    )
    history, record, authors = text.split(_SEPARATOR)
    groups = {node.name: node.group for node in cluster.nodes if node.name != cluster.head.name}
    found = cases(groups, Slurm().nodes(remote), json.loads(history), parse_actions(record), parse_authors(authors))
    now, can_replace = time.time(), cluster.provider != "hosts"
    decisions = [decide(case, now, can_replace=can_replace) for case in found]
    return found, brake(decisions, found, Limits(max_usd_per_hour, cluster.usd_per_hour), now)


def _show(found: Sequence[Case], decisions: Sequence[Decision]) -> None:
    rows = [
        (case.name, case.state, str(decision.phase), str(decision.step), case.reason, decision.why)
        for case, decision in zip(found, decisions, strict=True)
        if decision.step is not Step.NONE or case.reason
    ]
    if rows:
        table(("NODE", "STATE", "PHASE", "STEP", "REASON", "BECAUSE"), rows)
    else:
        say(f"all {len(found)} nodes are in service")


def _record(remote: Remote, decision: Decision) -> None:
    """Add a repair to the record before the repair begins, so that interrupted repairs are counted."""
    line = json.dumps(asdict(Action(time.time(), decision.node, decision.step.value)))
    path = shlex.quote(f"{remote.stack.cluster.state_dir}/{_RECORD}")
    remote.run(f"echo {shlex.quote(line)} | sudo -n tee -a {path} >/dev/null", admin=True)


def _perform(remote: Remote, decision: Decision) -> int:
    say(f"{decision.node}: {decision.step}")
    if decision.step is Step.REPLACE:
        stack = remote.stack.name
        wait_for_pulumi(stack)
        urns = [machine.urn for machine in machines(stack, [decision.node]).values()]
        return replace_machines(stack, [decision.node], urns)
    if decision.step is Step.REBOOT:
        argv = remote.argv("sudo -n systemctl reboot", remote.host(decision.node, admin=True))
        # The exit code is ignored, because the connection can end before the command does.
        subprocess.run(argv, capture_output=True, timeout=_SECONDS, check=False)
        return 0
    reason = shlex.quote(f"TY:quarantine: {decision.why}")
    node = shlex.quote(decision.node)
    remote.run(f"sudo -n scontrol update nodename={node} state=drain reason={reason}", admin=True)
    return 0
