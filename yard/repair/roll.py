"""`yard roll` and `yard replace`: replace a node group's machines in batches, or one machine, without ending jobs."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from trainyard import project
from trainyard.errors import StackError
from trainyard.faults import ROLL, fault, is_free, is_in_service, is_own
from trainyard.outputs import Cluster, Node
from yard.repair.drain import States, update
from yard.run.schedulers import Slurm
from yard.show import INTERRUPTED, say, say_json, warn
from yard.stack.load import load_stack
from yard.stack.remote import Remote
from yard.stack.workspace import machines, replace_resources, wait_for_pulumi

_POLL_SECONDS = 5.0
_HANDLER_SECONDS = 120
"""Only jobs that have run this long are signalled, because SIGUSR2 ends ranks that have no handler yet."""
_SERVICE_SECONDS = 300.0
"""Time limit for new nodes to return to service after `pulumi up` has succeeded."""


@dataclass(frozen=True, kw_only=True)
class RollRequest:
    """The arguments of `yard roll GROUP` or `yard replace NODE`.

    `idle_seconds` limits the wait for a batch's jobs, unless it is None.
    """

    verb: Literal["roll", "replace"] = "roll"
    target: str
    max_unavailable: int = 1
    idle_seconds: float | None = None
    checkpoint: bool = False

    @property
    def command(self) -> str:
        """The command that continues this roll."""
        return f"yard {self.verb} {self.target}"

    def nodes(self, cluster: Cluster) -> list[Node]:
        """Return the nodes to replace. The list is empty if the target does not exist or is the head."""
        return [node for node in cluster.nodes if self.target == (node.group if self.verb == "roll" else node.name)]


@dataclass(frozen=True, kw_only=True)
class Roll:
    """The record of an unfinished roll. The same command continues from this record.

    `keys` maps each node to its SSH host key before the roll. Every new machine creates its own key, so a node counts
    as replaced if its key in the stack's outputs has changed. The outputs change only after `pulumi up` has checked the
    new nodes. `replacing` maps the nodes of an unfinished `pulumi up` to the creation times of their old machines.
    """

    command: str
    keys: Mapping[str, str]
    replacing: Mapping[str, str] = field(default_factory=dict)

    def pending(self, cluster: Cluster) -> tuple[str, ...]:
        """Return the nodes that have not been replaced, in the order of the outputs."""
        return tuple(node.name for node in cluster.nodes if self.keys.get(node.name) == node.host_key)

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        new.replace(file)


@dataclass(frozen=True, kw_only=True)
class HoldingJob:
    """A job that holds nodes. `seconds` is its run time since its last start."""

    id: str
    seconds: int
    line: str


def record_of(remote: Remote) -> Path:
    """Return the path of the file that records the stack's roll."""
    return project.state() / "roll" / f"{remote.stack.name.replace('/', '-')}.json"


def read_roll(remote: Remote, request: RollRequest) -> Roll:
    """Return the stack's unfinished roll, or a new one. Raises StackError if the record is damaged."""
    file = record_of(remote)
    try:
        return Roll(**json.loads(file.read_text()))
    except FileNotFoundError:
        keys = {node.name: node.host_key for node in request.nodes(remote.stack.cluster)}
        return Roll(command=request.command, keys=keys)
    except (ValueError, TypeError):
        raise StackError(
            f"the record of an unfinished roll, {file}, cannot be read. Fix: remove it, and check with `yard nodes` "
            f"that no node is drained with the reason {ROLL}"
        ) from None


def next_batch(pending: Sequence[str], group: Collection[str], states: States, max_unavailable: int) -> tuple[str, ...]:
    """Return the nodes to replace next, or () if too many other nodes of the group are out of service.

    Nodes that are out of service come first, because their replacement does not reduce capacity.
    """
    out = {name for name in group if name not in states or not is_in_service(states[name][0])}
    room = max_unavailable - len(out.difference(pending))
    return tuple(sorted(pending, key=lambda name: name not in out)[: max(room, 0)])


def parse_jobs(text: str) -> list[HoldingJob]:
    """Parse squeue's output, whose lines have the form `number|run time|user`."""
    jobs = []
    for row in filter(None, text.splitlines()):
        number, elapsed, user = row.split("|")
        days, _, clock = elapsed.rpartition("-")
        seconds = int(days or 0) * 86400
        for power, part in enumerate(reversed(clock.split(":"))):
            seconds += int(part) * 60**power
        jobs.append(HoldingJob(id=number, seconds=seconds, line=f"{number} of {user}"))
    return jobs


def show_plan(remote: Remote, request: RollRequest, as_json: bool) -> None:
    """Print the nodes that would be replaced, the first batch, and the steps."""
    roll = read_roll(remote, request)
    _check(remote, request, roll)
    pending = roll.pending(remote.stack.cluster)
    states = Slurm().nodes(remote)
    batch = next_batch(pending, roll.keys, states, request.max_unavailable)
    if as_json:
        say_json({"group": request.nodes(remote.stack.cluster)[0].group, "pending": pending, "first": batch})
        return
    found = {name: states.get(name, ("unknown", "")) for name in pending}
    shown = ", ".join(f"{name} ({state}{f': {reason}' if reason else ''})" for name, (state, reason) in found.items())
    stay = [name for name, (state, reason) in found.items() if not is_in_service(state) and not is_own(reason)]
    jobs = "; ".join(job.line for job in _jobs(remote, batch)) if batch else ""
    first = ", ".join(batch) or "none, because too many other nodes are out of service"
    kept = f". Until `yard undrain`, these stay drained: {', '.join(stay)}" if stay else ""
    say(f"these nodes get new machines, and lose their local files: {shown or 'none'}")
    say(f"  1. drain the first nodes ({first}), and wait for their jobs: {jobs or 'none'}")
    say("  2. `pulumi up` with --replace for these machines, with the user-data and the image of this version")
    say(f"  3. return the nodes to service after their tests, and continue with the next nodes{kept}")


def abandon(remote: Remote) -> None:
    """Resume the nodes that a roll has drained, and remove its record."""
    drained = [name for name, (_, reason) in Slurm().nodes(remote).items() if reason.startswith(ROLL)]
    if drained:
        update(remote, drained, "state=resume")
        say(f"returned to service: {', '.join(drained)}")
    record_of(remote).unlink(missing_ok=True)
    say("no roll is in progress")


def run_roll(remote: Remote, request: RollRequest) -> int:
    """Replace the group's machines. Returns 0, INTERRUPTED, or the exit code of a failed `pulumi up`."""
    file = record_of(remote)
    roll = read_roll(remote, request)
    _check(remote, request, roll)
    roll.write(file)
    total = len(roll.keys)
    try:
        if roll.replacing:
            say(f"finishing the interrupted replacement of {', '.join(roll.replacing)}")
            if code := _replace(remote, file, roll):
                return code
        while pending := roll.pending(remote.stack.cluster):
            say(f"{total - len(pending)} of {total} nodes are replaced")
            batch = next_batch(pending, roll.keys, Slurm().nodes(remote), request.max_unavailable)
            if not batch:
                raise StackError(_too_many(remote, roll, request))
            _drain(remote, batch, request)
            roll = replace(roll, replacing=_creation_times(remote, batch))
            roll.write(file)
            if code := _replace(remote, file, roll):
                return code
            roll = replace(roll, replacing={})
    except KeyboardInterrupt:
        warn(
            f"interrupted. To continue, run `{roll.command}`. To return the drained nodes to service, run "
            f"`{roll.command} --abandon`"
        )
        return INTERRUPTED
    file.unlink(missing_ok=True)
    say(f"`{roll.command}` has replaced {total} of {total} nodes")
    return 0


def _check(remote: Remote, request: RollRequest, roll: Roll) -> None:
    cluster = remote.stack.cluster
    problems = []
    if not request.nodes(cluster):
        problems.append(_unknown(request, cluster))
    elif request.command != roll.command:
        problems.append(
            f"`{roll.command}` is not finished; finish it, or return its nodes to service with `{roll.command} "
            "--abandon`"
        )
    if cluster.provider == "hosts":
        problems.append(
            "existing hosts cannot be replaced; repair or reinstall the host, and run `pulumi up`, which changes hosts "
            "in place"
        )
    if cluster.scheduler != "slurm":
        problems.append(
            "without Slurm, nodes cannot be drained; wait until no jobs are running (`yard ps`), then run `pulumi up` "
            "with --replace and the URNs of the machines"
        )
    if problems:
        raise StackError("; ".join(problems) + "; nothing was changed")


def _unknown(request: RollRequest, cluster: Cluster) -> str:
    if request.verb == "roll":
        groups = sorted({node.group for node in cluster.nodes})
        return f"there is no group '{request.target}'; the groups are {', '.join(groups)}"
    if request.target == cluster.head.name:
        return (
            f"{request.target} is the head, and its replacement interrupts all jobs; wait until `yard ps` lists no "
            "jobs, then run `pulumi up --replace URN` (docs/health.md, section By hand)"
        )
    return f"no worker has the name {request.target}; the workers are {', '.join(node.name for node in cluster.nodes)}"


def _drain(remote: Remote, batch: Collection[str], request: RollRequest) -> None:
    """Drain the nodes and wait until they run no jobs. Raises StackError if the wait exceeds the time limit."""
    states = Slurm().nodes(remote)
    # A node that somebody else has drained keeps its reason, and stays out of service after its replacement.
    if ours := [name for name in batch if name not in states or is_in_service(states[name][0])]:
        update(remote, ours, "state=drain", f"reason={ROLL}")
    say(f"drained: {', '.join(batch)}")
    deadline = None if request.idle_seconds is None else time.monotonic() + request.idle_seconds
    signalled: set[str] = set()
    shown: list[str] = []
    while not all(is_free(Slurm().nodes(remote).get(name, ("unknown", ""))[0]) for name in batch):
        jobs = _jobs(remote, batch)
        lines = [job.line for job in jobs]
        if lines and lines != shown:
            say("waiting for jobs: " + "; ".join(lines))
            shown = lines
        ready = {job.id for job in jobs if job.seconds >= _HANDLER_SECONDS} - signalled
        if request.checkpoint and ready:
            # Slurm also sends this signal before a job's time limit. If a job of `yard submit` has a `checkpoint_dir`,
            # it then writes a checkpoint and is requeued with the same number.
            remote.run(f"sudo -n scancel --batch --signal=USR2 {shlex.join(sorted(ready))}", admin=True)
            signalled |= ready
        if deadline is not None and time.monotonic() > deadline:
            raise StackError(
                f"{', '.join(batch)} still run jobs after {request.idle_seconds:.0f} s: {'; '.join(lines)}. The nodes "
                f"stay drained. Fix: run `{request.command}` again later or with --checkpoint, or cancel the jobs; "
                f"`{request.command} --abandon` returns the nodes to service"
            )
        time.sleep(_POLL_SECONDS)


def _jobs(remote: Remote, nodes: Collection[str]) -> list[HoldingJob]:
    names = shlex.quote(",".join(nodes))
    # Users choose the jobs' names, which can contain line breaks, so the names are not listed.
    return parse_jobs(remote.run(f"sudo -n squeue -h -a -t R,CF,CG,S -w {names} -o '%i|%M|%u'", admin=True))


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
    """Replace the batch, wait until its nodes are in service, and return the exit code of `pulumi up`.

    Machines that an interrupted `pulumi up` has already replaced or deleted are not replaced again.
    """
    batch = tuple(roll.replacing)
    stack = remote.stack.name
    wait_for_pulumi(stack)
    old = [machine.urn for name, machine in machines(stack, batch).items() if machine.created == roll.replacing[name]]
    if code := replace_resources(stack, old):
        warn(
            f"`pulumi up` ended with exit code {code} before it had replaced {', '.join(batch)}; its message is above. "
            f"Fix: correct the cause if there was an error, then run `{roll.command}` to continue"
        )
        return code
    replace(roll, replacing={}).write(file)
    remote.stack = load_stack(stack, refresh=True)
    _wait_for_service(remote, batch)
    return 0


def _wait_for_service(remote: Remote, batch: Collection[str]) -> None:
    deadline = time.monotonic() + _SERVICE_SECONDS
    while True:
        states = Slurm().nodes(remote)
        # On a new machine, the health service clears the reason of a fault when its checks have passed.
        reasons = {name: states.get(name, ("", ROLL))[1] for name in batch}
        waiting = [name for name, reason in reasons.items() if reason == ROLL or (is_own(reason) and fault(reason))]
        if not waiting:
            break
        if time.monotonic() > deadline:
            raise StackError(
                f"{', '.join(waiting)} did not return to service. Fix: find the reason with `yard doctor`, and then "
                "run the same command again"
            )
        time.sleep(_POLL_SECONDS)
    for name in batch:
        state, reason = states[name]
        if not is_in_service(state):
            warn(
                f"{name} has a new machine, but stays '{state}' for another reason: {reason}; to return it to service, "
                f"run `yard undrain {name}`"
            )


def _too_many(remote: Remote, roll: Roll, request: RollRequest) -> str:
    states = Slurm().nodes(remote)
    out = [
        f"{name} ({state}: {reason})"
        for name in roll.keys
        for state, reason in [states.get(name, ("unknown", "Slurm does not list this node"))]
        if not is_in_service(state)
    ]
    return (
        f"--max-unavailable is {request.max_unavailable}, and these nodes are out of service: "
        f"{', '.join(out)}. Fix: repair them, or use a larger --max-unavailable"
    )
