"""`yard roll`: replaces the machines in a node group in batches, without ending jobs."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard import checkout
from trainyard.errors import RemoteError, StackError
from yard.roll.machines import machines, replace_machines, wait_for_pulumi
from yard.roll.nodes import (
    REASON,
    States,
    checkpoint_command,
    drain_command,
    is_free,
    is_in_service,
    jobs_command,
    next_batch,
    parse_jobs,
    resume_command,
)
from yard.roll.progress import Roll, new_roll, read_roll, write_roll
from yard.run.schedulers import Slurm
from yard.show import INTERRUPTED, say, say_json, warn
from yard.stack.load import load_stack
from yard.stack.remote import Remote

_POLL_SECONDS = 5.0
_HANDLER_SECONDS = 120
"""Minimum run time of a job before the job is signalled. SIGUSR2 would end a rank that has no signal handler yet."""
_SERVICE_SECONDS = 300.0
"""Time limit for the replaced nodes to return to service. `pulumi up` has already run a task on each node."""


@dataclass(frozen=True, kw_only=True)
class RollRequest:
    """The arguments of `yard roll`. `idle_seconds` limits the wait for the jobs of one batch; None means no limit."""

    group: str
    max_unavailable: int
    idle_seconds: float | None = None
    checkpoint: bool = False


def record_of(remote: Remote) -> Path:
    """Return the path to the record of a stack's unfinished roll."""
    return checkout.state() / "roll" / f"{remote.stack.name.replace('/', '-')}.json"


def show_plan(remote: Remote, request: RollRequest, as_json: bool) -> None:
    """Print the nodes that would be replaced, and the first batch. Changes nothing."""
    roll = read_roll(record_of(remote)) or new_roll(remote.stack.cluster, request.group)
    _check(remote, request, roll)
    pending = roll.pending(remote.stack.cluster)
    batch = next_batch(pending, roll.keys, _states(remote), request.max_unavailable)
    if as_json:
        say_json({"group": request.group, "pending": pending, "first": batch})
        return
    say(f"{len(pending)} nodes in group {request.group} would be replaced: {', '.join(pending)}")
    say(f"first: {', '.join(batch) or 'none, because too many other nodes are out of service'}")


def abandon(remote: Remote) -> None:
    """Resume the nodes drained by a roll, and remove the roll's record."""
    drained = [name for name, (_, reason) in _states(remote).items() if reason.startswith(REASON)]
    if drained:
        _admin(remote, resume_command(drained))
        say(f"returned to service: {', '.join(drained)}")
    record_of(remote).unlink(missing_ok=True)
    say("no roll is in progress")


def run_roll(remote: Remote, request: RollRequest) -> int:
    """Replace all machines in the group. Return 0 on success, 130 after an interrupt, or the code of a failed `up`."""
    file = record_of(remote)
    roll = read_roll(file) or new_roll(remote.stack.cluster, request.group)
    _check(remote, request, roll)
    write_roll(file, roll)
    total = len(roll.keys)
    try:
        if roll.replacing:
            say(f"finishing the interrupted replacement of {', '.join(roll.replacing)}")
            if code := _replace(remote, file, roll):
                return code
        while pending := roll.pending(remote.stack.cluster):
            say(f"{total - len(pending)} of {total} nodes are replaced")
            batch = next_batch(pending, roll.keys, _states(remote), request.max_unavailable)
            if not batch:
                raise StackError(_too_many(remote, roll, request))
            _drain(remote, batch, request)
            roll = replace(roll, replacing=_creation_times(remote, batch))
            write_roll(file, roll)
            if code := _replace(remote, file, roll):
                return code
            roll = replace(roll, replacing={})
    except KeyboardInterrupt:
        warn(
            f"interrupted. To continue, run `yard roll {request.group}`. To return the drained nodes to service, run "
            f"`yard roll {request.group} --abandon`"
        )
        return INTERRUPTED
    file.unlink(missing_ok=True)
    say(f"all {total} nodes in group {request.group} are replaced and in service")
    return 0


def _check(remote: Remote, request: RollRequest, roll: Roll) -> None:
    cluster = remote.stack.cluster
    groups = sorted({node.group for node in cluster.nodes})
    problems = []
    if request.group not in groups:
        problems.append(f"there is no group '{request.group}'; the groups are {', '.join(groups)}")
    elif request.group != roll.group:
        problems.append(
            f"the roll of group {roll.group} is not finished; finish it with `yard roll {roll.group}`, or return its "
            f"nodes to service with `yard roll {roll.group} --abandon`"
        )
    if cluster.provider == "hosts":
        problems.append("existing hosts cannot be replaced; `pulumi up` changes them in place")
    if cluster.scheduler != "slurm":
        problems.append(
            "without Slurm, nodes cannot be drained; wait until no jobs are running (`yard ps`), then run `pulumi up` "
            "with --replace and the URNs of the machines"
        )
    if remote.stack.outputs is not None:
        problems.append("a roll runs `pulumi up`, so it needs Pulumi's backend instead of --outputs")
    if problems:
        raise StackError("; ".join(problems) + "; nothing was changed")


def _drain(remote: Remote, batch: Collection[str], request: RollRequest) -> None:
    """Drain the nodes and wait until they run no jobs. Raises StackError if the time limit expires."""
    states = _states(remote)
    # A node that another user drained keeps its drain reason, and stays out of service after its replacement.
    if ours := [name for name in batch if name not in states or is_in_service(states[name][0])]:
        _admin(remote, drain_command(ours))
    say(f"drained: {', '.join(batch)}")
    deadline = None if request.idle_seconds is None else time.monotonic() + request.idle_seconds
    signalled: set[str] = set()
    shown: list[str] = []
    while not all(is_free(_states(remote).get(name, ("unknown", ""))[0]) for name in batch):
        jobs = parse_jobs(_admin(remote, jobs_command(batch)))
        lines = [job.line for job in jobs]
        if lines and lines != shown:
            say("waiting for jobs: " + "; ".join(lines))
            shown = lines
        ready = {job.id for job in jobs if job.seconds >= _HANDLER_SECONDS} - signalled
        if request.checkpoint and ready:
            _admin(remote, checkpoint_command(ready))
            signalled |= ready
        if deadline is not None and time.monotonic() > deadline:
            raise StackError(
                f"{', '.join(batch)} still run jobs after {request.idle_seconds:.0f} s: {'; '.join(lines)}. The nodes "
                f"stay drained. Fix: run `yard roll {request.group}` again later or with --checkpoint, or cancel the "
                f"jobs; `yard roll {request.group} --abandon` returns the nodes to service"
            )
        time.sleep(_POLL_SECONDS)


def _creation_times(remote: Remote, batch: Collection[str]) -> dict[str, str]:
    wait_for_pulumi(remote.stack.name)
    found = machines(remote.stack.name, batch)
    if missing := sorted(set(batch) - found.keys()):
        raise StackError(
            f"stack {remote.stack.name} has no machine for {', '.join(missing)}. Fix: run `pulumi refresh` and "
            "`pulumi up`"
        )
    return {name: found[name].created for name in batch}


def _replace(remote: Remote, file: Path, roll: Roll) -> int:
    """Run `pulumi up` for the batch and wait until the nodes are in service. Return pulumi's exit code.

    Machines that an interrupted `pulumi up` has already replaced or deleted are not replaced again.
    """
    batch = tuple(roll.replacing)
    stack = remote.stack.name
    wait_for_pulumi(stack)
    old = [machine.urn for name, machine in machines(stack, batch).items() if machine.created == roll.replacing[name]]
    if code := replace_machines(stack, batch, old):
        warn(
            f"`pulumi up` ended with exit code {code} before it had replaced {', '.join(batch)}; its message is above. "
            f"Fix: correct the cause if there was an error, then run `yard roll {roll.group}` to continue"
        )
        return code
    write_roll(file, replace(roll, replacing={}))
    remote.stack = load_stack(stack, refresh=True)
    _wait_for_service(remote, batch)
    return 0


def _wait_for_service(remote: Remote, batch: Collection[str]) -> None:
    deadline = time.monotonic() + _SERVICE_SECONDS
    while True:
        states = _states(remote)
        waiting = [name for name in batch if states.get(name, ("", REASON))[1].startswith(REASON) or name not in states]
        if not waiting:
            break
        if time.monotonic() > deadline:
            raise StackError(
                f"{', '.join(waiting)} did not return to service. Fix: find the reason with `yard doctor`, and then "
                "run `yard roll` again"
            )
        time.sleep(_POLL_SECONDS)
    for name in batch:
        state, reason = states[name]
        if not is_in_service(state):
            warn(f"{name} has a new machine, but stays '{state}' for another reason: {reason}")


def _too_many(remote: Remote, roll: Roll, request: RollRequest) -> str:
    states = _states(remote)
    out = [
        f"{name} ({state}: {reason})"
        for name in roll.keys
        for state, reason in [states.get(name, ("unknown", "Slurm does not list this node"))]
        if not is_in_service(state)
    ]
    return (
        f"--max-unavailable is {request.max_unavailable}, and these nodes in group {roll.group} are out of service: "
        f"{', '.join(out)}. Fix: repair them, or use a larger --max-unavailable"
    )


def _states(remote: Remote) -> States:
    return Slurm().nodes(remote)


def _admin(remote: Remote, command: str) -> str:
    try:
        return remote.run(command, admin=True)
    except RemoteError as error:
        raise RemoteError(f"{error}; a roll needs the admin's key (stack output admin_private_key)") from error
