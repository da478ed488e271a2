"""`yard drain` and `yard undrain`: an operator takes nodes out of service, and returns them.

The reason in Slurm begins with the operator's name, so it never has the form of this project's own reasons
(trainyard/faults.py). Therefore neither the nodes' health service nor `yard heal` returns such a node to service.
"""

from __future__ import annotations

import getpass
import json
import shlex
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence

from trainyard.errors import StackError
from trainyard.faults import POWER, QUARANTINE, ROLL, cause_of, fault, is_in_service, is_own, operator_reason
from yard.run.queue import power_state
from yard.run.schedulers import Slurm
from yard.show import say, say_json
from yard.stack.remote import Remote

States = Mapping[str, tuple[str, str]]
"""Each node's state and reason, as sinfo prints them."""

_SECONDS = 90


def drain(remote: Remote, names: Sequence[str], text: str, as_json: bool) -> None:
    """Drain the nodes. Their running jobs continue. Raises StackError before any change if an argument is wrong."""
    problems = _problems(remote, names)
    if not text.strip() or not text.isprintable():
        problems.append("--reason must be one line of printable text")
    _refuse(problems)
    reason = operator_reason(getpass.getuser(), socket.gethostname(), text.strip())
    before = _states(remote, names)
    changing = [node for node in names if is_in_service(before[node][0]) or before[node][1] != reason]
    if changing:
        update(remote, changing, "state=drain", f"reason={shlex.quote(reason)}")
    _show(Slurm().nodes(remote), before, changing, as_json)


def undrain(remote: Remote, names: Sequence[str], as_json: bool, *, force: bool) -> None:
    """Return the nodes to service. Raises StackError before any change if a node has a fault, unless `force` is set."""
    _refuse(_problems(remote, names))
    before = _states(remote, names)
    changing = [node for node in names if not is_in_service(before[node][0])]
    if not force:
        faults = [text for node in changing for text in _faults(remote, node, *before[node])]
        _refuse(faults, " (`yard undrain --force` returns nodes regardless of these faults)")
    if changing:
        update(remote, changing, "state=resume")
    # Until slurmd answers again, sinfo marks the node with "*" and prints the old reason.
    states = {name: (state.rstrip("*"), "") for name, (state, _) in Slurm().nodes(remote).items()}
    _show(states, before, changing, as_json)


def update(remote: Remote, names: Collection[str], *changes: str) -> None:
    """Change nodes in Slurm. `changes` are words for the shell."""
    nodes = shlex.quote(",".join(names))
    remote.run(f"sudo -n scontrol update nodename={nodes} {' '.join(changes)}", admin=True)


def _problems(remote: Remote, names: Sequence[str]) -> list[str]:
    cluster = remote.stack.cluster
    known = [node.name for node in cluster.nodes]
    problems = []
    if cluster.scheduler != "slurm":
        problems.append(
            "without Slurm, nodes cannot be drained; a node with a fault gets no jobs, and `yard ps` lists the nodes "
            "that run jobs"
        )
    if unknown := [name for name in names if name not in known]:
        problems.append(f"no worker has the name {', '.join(unknown)}; the workers are {', '.join(known)}")
    return problems


def _refuse(problems: Sequence[str], fix: str = "") -> None:
    if problems:
        raise StackError("; ".join(problems) + "; nothing was changed" + fix)


def _states(remote: Remote, names: Collection[str]) -> dict[str, tuple[str, str]]:
    states = Slurm().nodes(remote)
    _refuse([f"Slurm does not list {name}; run `pulumi up`" for name in names if name not in states])
    return {name: states[name] for name in names}


def _faults(remote: Remote, node: str, state: str, reason: str) -> list[str]:
    """Return the reasons why a node must stay out of service.

    An operator's reason replaces that of a fault, so the node's health service is asked if Slurm names no fault. A
    machine that is off cannot be asked. Its node is tested when the machine starts.
    """
    if reason == ROLL:
        return [f"`yard roll` or `yard replace` has drained {node}; finish it, or use its option --abandon"]
    if fault(reason):
        return [f"{node} has the fault '{reason}'; repair it with `yard heal --perform`"]
    if power_state(state) and cause_of(reason) in {None, POWER, QUARANTINE}:
        return []
    if is_own(reason) and cause_of(reason) != QUARANTINE:
        return [f"{node} is drained with the reason '{reason}' and returns automatically"]
    argv = remote.argv("sudo -n trainyard-health status", remote.host(node, admin=True))
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_SECONDS, check=False)
        verdicts = json.loads(done.stdout)["verdicts"].values()
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return [f"the health service of {node} does not answer; run `yard doctor`"]
    return [
        f"the check {verdict['check']} of {node} fails: {verdict['text']}; correct the cause, or clear the verdict "
        f"with `yard ssh {node} --admin -- sudo trainyard-health clear {verdict['check']}`"
        for verdict in verdicts
        if verdict["severity"] != "note"
    ]


def _show(states: States, before: States, changed: Collection[str], as_json: bool) -> None:
    rows = [{"name": name, "state": states[name][0], "reason": states[name][1]} for name in before]
    if as_json:
        say_json([{**row, "changed": row["name"] in changed} for row in rows])
        return
    for name, (_, earlier) in before.items():
        state, reason = states[name]
        jobs = "; its running jobs continue (`yard ps`)" if state.startswith("draining") else ""
        replaced = f" (the earlier reason was: {earlier})" if earlier not in {"", reason} else ""
        say(f"{name} is {state}{f': {reason}' if reason else ''}{jobs}{replaced}")
