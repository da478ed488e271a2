"""A hook on the platform component that refuses a `pulumi up` that would end running jobs.

The component is the parent of all machines. The engine runs the hook before it registers the component, so nothing
changes if the hook fails. Hooks on the machines are no alternative, because only the `before_delete` hook runs for a
replaced machine. With such a hook in the state, `pulumi destroy` fails without --run-program
(pulumi/pulumi@v3.250.0:pkg/resource/deploy/step.go, DeleteStep.Apply; pkg/engine/destroy.go, newDestroySource; read
2026-11-22).

During `pulumi destroy`, nothing warns about running jobs. A delete command on the gate could list the jobs, but with an
unreachable head, `destroy` would retry for minutes and then fail. The head is unreachable, for example, if only the
program opens its tunnel. Adding the command would also run existing gates again
(pulumi/pulumi-command@1355b24:provider/pkg/provider/remote/commandController.go, Update and Delete; read 2026-11-24).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pulumi

from components.cluster.tunnel import RELAY
from components.node.parameters import birth_env
from components.plan.plan import ClusterPlan, HostPlan
from components.platforms.base import MACHINES
from trainyard.errors import ContractError, PlatformError
from trainyard.machines import END_JOBS
from trainyard.outputs import Cluster, Head, read_outputs

_DIGITS = 16
VERSION = "2"
"""Prefix of each digest. Change VERSION if digests cover other facts; otherwise unchanged machines look changed."""


def machine_digests(plan: ClusterPlan) -> dict[str, str]:
    """Return a mapping from host name to digest. A change that replaces or restarts a machine changes its digest.

    Existing hosts are changed in place, so their digests cover only their roles. Digests omit the image, because a new
    image replaces no machine, and facts that are not known yet: the access keys and the address of managed storage.
    """
    if plan.uses_existing_hosts:
        return {host.name: _digest(host.role.value) for host in plan.hosts}
    common = [
        plan.platform.model_dump(mode="json", exclude=set(plan.platform.beside_machines)),
        [plan.storage.kind, plan.storage.address, plan.storage.path],
        # Removing Slurm ends its jobs.
        plan.scheduler,
    ]

    def facts(host: HostPlan) -> list[object]:
        capacity = plan.groups[host.group].capacity.model_dump(mode="json") if host.group is not None else None
        return [birth_env(plan, host), host.machine.name, host.placement, capacity]

    return {host.name: _digest([*common, facts(host)]) for host in plan.hosts}


def changed_or_removed_hosts(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts that are missing or different in `after`. Digests of other versions are not compared."""
    return tuple(
        name
        for name, digest in before.items()
        if name not in after or (digest.startswith(f"{VERSION}-") and digest != after[name])
    )


def _digest(facts: object) -> str:
    return f"{VERSION}-" + hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_DIGITS]


LIST_JOBS = "! command -v squeue >/dev/null || sudo -n squeue -h -a -t R,CF,CG,S -o '%i|%u|%N'"
"""Prints one line for each job that holds nodes, that is, each running, configuring, completing or suspended job.
Prints nothing without Slurm. With `-w`, squeue would fail for a node that slurmctld does not know, for example a
machine that could not be created (SchedMD/slurm@284c3b9:src/squeue/opts.c, _filter_nodes; read 2026-11-22). The names
are not listed, because users choose them, and they can contain line breaks."""

_SHOWN = 20
_PART = re.compile(r"(?P<prefix>[^,\[\]]+)(?:\[(?P<ranges>[0-9,-]+)\])?(?:,|$)")


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """A job that holds nodes. `nodes` is a Slurm host list ("yard-gpu-[0-3]"), or empty while the job starts."""

    id: str
    user: str
    nodes: str


def parse_jobs(text: str) -> tuple[RunningJob, ...]:
    """Parse the output of LIST_JOBS. Raises ValueError if a line is malformed."""
    jobs = []
    for line in filter(None, text.splitlines()):
        number, user, nodes = line.split("|")
        jobs.append(RunningJob(id=number, user=user, nodes=nodes))
    return tuple(jobs)


def hosts_of(nodes: str) -> Iterator[str]:
    """Yield the hosts in a Slurm host list such as "a-0,b-[0-2,07-08]"."""
    for part in _PART.finditer(nodes):
        if part["ranges"] is None:
            yield part["prefix"]
            continue
        for span in part["ranges"].split(","):
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{part['prefix']}{number:0{len(first)}}"


def ended_jobs(jobs: Sequence[RunningJob], machines: Collection[str], head: str) -> tuple[RunningJob, ...]:
    """Return the jobs that end if `machines` are replaced. Replacing the head ends all jobs."""
    if head in machines:
        return tuple(jobs)
    return tuple(job for job in jobs if not set(machines).isdisjoint(hosts_of(job.nodes)))


def busy_message(jobs: Sequence[RunningJob], machines: Sequence[str]) -> str:
    shown = [f"  job {job.id} of {job.user} on {job.nodes}" for job in jobs[:_SHOWN]]
    more = [f"  and {len(jobs) - _SHOWN} more"] if len(jobs) > _SHOWN else []
    return "\n".join(
        [
            f"this change replaces, restarts or removes {listed(machines)}, and running jobs would end:",
            *shown,
            *more,
            "Nothing was changed. Fix: wait until the jobs have ended (`yard ps`) or cancel them (`yard cancel JOB`), "
            "then run `pulumi up` again. To make the change and end exactly these jobs, run `pulumi up --config "
            f"{END_JOBS}={','.join(job.id for job in jobs)}`",
        ]
    )


def listed(names: Sequence[str]) -> str:
    """Return the names as text, and shorten a long list."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


_CONNECT_SECONDS = 10
_SECONDS, _TUNNEL_SECONDS = 30.0, 60.0
"""Time limits for listing the jobs. The second limit applies if there is a tunnel or a jump host. A cloud's CLI needs
up to 40 seconds to open a tunnel (relay.py)."""
_END_SECONDS = 15.0
"""The relay needs up to 12 seconds to stop the cloud's CLI (relay.py)."""


class UnknownError(Exception):
    """The running jobs are unknown. The message states why."""


def refuse_to_end_jobs(authority: pulumi.Output[str], permitted: Collection[str]) -> pulumi.ResourceOptions:
    """Return resource options that contain the hook. The hook permits ending the jobs whose IDs are in `permitted`."""

    def hook(name: str, machines: Callable[[pulumi.ResourceHookArgs, Cluster], Sequence[str]]) -> Any:
        async def check(args: pulumi.ResourceHookArgs) -> None:
            await _check(authority, permitted, partial(machines, args))

        return pulumi.ResourceHook(f"trainyard-busy-{name}", check, pulumi.ResourceHookOptions(on_dry_run=True))

    # There are two hooks, because `old_inputs` is empty for new components and for components without inputs. If the
    # stack already has outputs, a new component means that the cluster's name or platform has changed.
    return pulumi.ResourceOptions(
        hooks=pulumi.ResourceHookBinding(
            before_create=[hook("create", lambda _, cluster: tuple(cluster.addresses))],
            before_update=[hook("update", _changed_machines)],
        )
    )


async def _check(
    authority: pulumi.Output[str], permitted: Collection[str], machines_of: Callable[[Cluster], Sequence[str]]
) -> None:
    """Raise PlatformError if the change would end jobs. In a preview, only log a warning.

    If the head does not answer, `up` continues with a warning, because the change might repair the head.
    """
    machines: Sequence[str] = ()
    try:
        cluster = last_cluster(await last_cluster_output())
        if cluster is None or cluster.scheduler != "slurm" or not (machines := machines_of(cluster)):
            return
        jobs = ended_jobs(await running_jobs(cluster.head, await authority.future() or ""), machines, cluster.head.name)
    except UnknownError as error:
        pulumi.log.warn(
            f"cannot check whether this change ends running jobs on {listed(machines) or 'the machines'}: {error}. "
            "`pulumi up` makes the change without this check"
        )
        return
    refused = [job for job in jobs if job.id not in permitted]
    if not refused:
        return
    message = busy_message(jobs, machines)
    if not pulumi.runtime.is_dry_run():
        raise PlatformError(message)
    pulumi.log.warn(f"`pulumi up` will refuse this: {message}")


def _changed_machines(args: pulumi.ResourceHookArgs, cluster: Cluster) -> tuple[str, ...]:
    """Return the machines that the change replaces, restarts or removes.

    A component from an older version of this project has no digests, so only its removed machines are returned.
    """
    before, after = ((inputs or {}).get(MACHINES) or {} for inputs in (args.old_inputs, args.new_inputs))
    if not before:
        return tuple(name for name in cluster.addresses if name not in after)
    return changed_or_removed_hosts(before, after)


async def last_cluster_output() -> Any:
    """Return the stack's `cluster` output, or None if there is none. Raises UnknownError if the output cannot be read.

    The stack is read, not the component, because the engine keeps the stack's outputs if an `up` fails
    (pulumi/pulumi@v3.250.0:pkg/resource/deploy/step_executor.go, executeRegisterResourceOutputs; read 2026-11-22).
    """
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    try:
        found: Mapping[str, Any] = await pulumi.runtime.invoke_async("pulumi:pulumi:readStackOutputs", {"name": name})
    except Exception as error:  # the SDK raises a plain Exception
        raise UnknownError(f"the stack's outputs cannot be read ({error})") from error
    return found["outputs"].get("cluster")


def last_cluster(outputs: Any) -> Cluster | None:
    """Parse the `cluster` output, or return None if there is none. Raises UnknownError for another version's output."""
    if outputs is None:
        return None
    try:
        return read_outputs(outputs)
    except ContractError as error:
        raise UnknownError("the stack's outputs were written by a different version of this project") from error


def require_awake() -> pulumi.ResourceHookBinding:
    """Return a hook that fails before the update of a resource on the head, if the head is off because of `idle`.

    Without it, `up` would try to connect for 15 minutes.
    """

    async def check(_args: pulumi.ResourceHookArgs) -> None:
        try:
            cluster = last_cluster(await last_cluster_output())
        except UnknownError:
            return
        head = None if cluster is None else cluster.head
        if head is None or head.wake is None or head.tunnel is not None:
            return
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(head.address, head.port), _CONNECT_SECONDS)
        except (OSError, TimeoutError) as error:
            raise PlatformError(
                f"{head.name} cannot be reached ({error or 'no answer'}), so `up` cannot configure it. Fix: if the "
                f"cluster sleeps, run `yard wake -s {pulumi.get_stack()}`, and then `pulumi up` again"
            ) from error
        writer.close()

    return pulumi.ResourceHookBinding(before_update=[pulumi.ResourceHook("trainyard-awake", check)])


async def warn_about_removed_people(plan: ClusterPlan) -> None:
    """Warn about the people of the last `pulumi up` who are not in the plan, in a preview and during `up`."""
    try:
        before = last_cluster(await last_cluster_output())
    except UnknownError:
        return
    removed = sorted((before.users if before else {}).keys() - {user.name for user in plan.users})
    for name in removed:
        pulumi.log.warn(
            f"the user {name} is removed from the stack file: `pulumi up` locks the account, and ends all sessions and "
            f"jobs of {name}. It keeps the files in /shared/people/{name}"
        )


async def running_jobs(head: Head, key: str) -> tuple[RunningJob, ...]:
    """Return the jobs that hold nodes, according to Slurm on the head. Raises UnknownError."""
    with tempfile.TemporaryDirectory(prefix="trainyard-busy-") as folder:
        seconds = _TUNNEL_SECONDS if head.tunnel or head.proxy_jump else _SECONDS
        code, out, errors = await _run(ssh_command(head, key, Path(folder)), seconds)
    if code:
        raise UnknownError(errors.strip().replace("\n", "; ") or f"ssh ended with exit code {code}")
    try:
        return parse_jobs(out)
    except ValueError as error:
        raise UnknownError("the head's output is not a list of jobs") from error


def ssh_command(head: Head, key: str, folder: Path) -> list[str]:
    """Return the SSH command that lists the jobs, and write its private key and known hosts to `folder`."""
    (folder / "key").touch(mode=0o600)
    (folder / "key").write_text(key)
    (folder / "known_hosts").write_text(f"{head.name} {head.host_key}\n")
    options = {
        "BatchMode": "yes",
        # Through a tunnel, only the time limit of the whole command applies, so that it is always reported in one way.
        "ConnectTimeout": "none" if head.tunnel or head.proxy_jump else str(_CONNECT_SECONDS),
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlias": head.name,
        "IdentitiesOnly": "yes",
        "LogLevel": "ERROR",
        "PreferredAuthentications": "publickey",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "UserKnownHostsFile": str(folder / "known_hosts"),
        **_proxy_options(head, folder),
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    target = ["-p", str(head.port), "-l", head.admin_user, "--", head.address]
    return ["ssh", "-F", "none", "-i", str(folder / "key"), *words, *target, LIST_JOBS]


def _proxy_options(head: Head, folder: Path) -> dict[str, str]:
    if head.tunnel:
        relay = [sys.executable, "-I", str(RELAY), "stdio", str(folder / "log"), *head.tunnel]
        return {"ProxyCommand": shlex.join(relay).replace("%", "%%")}
    if head.proxy_jump:
        # The jump host is not in the cluster, so SSH connects to it with the operator's keys and known hosts.
        return {"ProxyCommand": f"ssh -W [%h]:%p ssh://{head.proxy_jump}"}
    return {}


async def _run(command: Sequence[str], seconds: float) -> tuple[int, str, str]:
    """Return the command's exit code, standard output and standard error. Raises UnknownError."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise UnknownError("ssh is missing on this machine; install the openssh-client package") from error
    try:
        out, errors = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError as error:
        # The whole process group gets SIGTERM, so that the tunnel's relay stops the cloud's CLI.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.communicate(), _END_SECONDS)
        raise UnknownError(f"the head did not answer within {seconds:.0f} seconds") from error
    return process.returncode or 0, out.decode(errors="replace"), errors.decode(errors="replace")
