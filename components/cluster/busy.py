"""A hook on the platform component that refuses a `pulumi up` that would end running jobs.

The engine runs the hook before it registers the component, even in previews. The component is the parent of all
machines, so nothing changes if the hook fails. Hooks on the machines are not an alternative. Before a replaced machine
is deleted, only its `before_delete` hook runs. With a `before_delete` hook in the state, `pulumi destroy` fails without
--run-program (pulumi/pulumi@v3.250.0:pkg/resource/deploy/step.go, DeleteStep.Apply; pkg/engine/destroy.go,
newDestroySource; read 2026-11-22).

During `pulumi destroy`, nothing warns about running jobs. The gate's remote.Command could list them in its delete
command. But with an unreachable head, `destroy` would then retry for minutes and fail, and a program that does not run
opens no tunnel. Adding the command to an existing gate would also run the gate again (pulumi/pulumi-command@1355b24:
provider/pkg/provider/remote/commandController.go, Update and Delete; read 2026-11-24).
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
from trainyard.outputs import Head, read_head

_DIGITS = 16
VERSION = "2"
"""Prefix of each digest. If a release computes digests from other facts, unchanged machines get new digests, so the
prefix must also change."""


def machine_digests(plan: ClusterPlan) -> dict[str, str]:
    """Return the digest of each host by name.

    Existing hosts are changed in place, so their digests contain only their roles. The digests do not cover the image,
    because a new image replaces no machine. They do not cover the access keys or the address of the shared storage,
    because these are known only after the corresponding resources have been created.
    """
    if plan.uses_existing_hosts:
        return {host.name: _digest(host.role.value) for host in plan.hosts}
    common = [
        plan.platform.model_dump(mode="json", exclude=set(plan.platform.beside_machines)),
        [plan.storage.kind, plan.storage.address, plan.storage.path],
        # Removing Slurm ends Slurm's jobs.
        plan.scheduler,
    ]
    return {host.name: _digest([*common, _host_facts(plan, host)]) for host in plan.hosts}


def changed_or_removed_hosts(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts that are missing from `after` or have a different digest there, in the order of `before`.

    Digests from another VERSION are not compared. Added hosts are not returned.
    """
    return tuple(
        name
        for name, digest in before.items()
        if name not in after or (_version(digest) == VERSION and digest != after[name])
    )


def _host_facts(plan: ClusterPlan, host: HostPlan) -> list[object]:
    group = plan.groups[host.group] if host.group is not None else None
    return [
        birth_env(plan, host),
        host.machine.name,
        host.placement,
        group.capacity.model_dump(mode="json") if group else None,
    ]


def _version(digest: str) -> str:
    return digest.partition("-")[0]


def _digest(facts: object) -> str:
    return f"{VERSION}-" + hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_DIGITS]


LIST_JOBS = "! command -v squeue >/dev/null || sudo -n squeue -h -a -t R,CF,CG,S -o '%i|%u|%N|%j'"
"""Shell command that prints one line for each job that holds nodes. Such a job is running, configuring, completing or
suspended. The command prints nothing if Slurm is not installed. It does not use `-w`, because squeue then fails if the
list includes a node that is unknown to slurmctld, for example a machine that could not be created
(SchedMD/slurm@284c3b9:src/squeue/opts.c, _filter_nodes; read 2026-11-22)."""

_SHOWN = 20
_PART = re.compile(r"(?P<prefix>[^,\[\]]+)(?:\[(?P<ranges>[0-9,-]+)\])?(?:,|$)")


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """A job that holds nodes. `nodes` is a Slurm host list ("yard-gpu-[0-3]"), or "" while the job is configuring."""

    id: str
    user: str
    name: str
    nodes: str

    @property
    def line(self) -> str:
        """The job as one line of the message."""
        return f"  job {self.id} ({self.name}) of {self.user} on {self.nodes}"


def parse_jobs(text: str) -> tuple[RunningJob, ...]:
    """Parse the output of LIST_JOBS. Raises ValueError for a malformed line."""
    jobs = []
    for line in filter(None, text.splitlines()):
        # A job name can contain control characters and also the separator.
        number, user, nodes, name = "".join(c if c.isprintable() else "?" for c in line).split("|", 3)
        jobs.append(RunningJob(id=number, user=user, name=name, nodes=nodes))
    return tuple(jobs)


def hosts_of(nodes: str) -> Iterator[str]:
    """Yield the host names in a Slurm host list such as "a-0,b-[0-2,07-08]"."""
    for part in _PART.finditer(nodes):
        if part["ranges"] is None:
            yield part["prefix"]
            continue
        for span in part["ranges"].split(","):
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{part['prefix']}{number:0{len(first)}}"


def ended_jobs(jobs: Sequence[RunningJob], machines: Collection[str], head: str) -> tuple[RunningJob, ...]:
    """Return the jobs that end if `machines` are replaced. A replacement of the head ends all jobs."""
    if head in machines:
        return tuple(jobs)
    return tuple(job for job in jobs if not set(machines).isdisjoint(hosts_of(job.nodes)))


def busy_message(jobs: Sequence[RunningJob], machines: Sequence[str]) -> str:
    """Return the error message with the machines, the jobs that would end, and the fix."""
    shown = [job.line for job in jobs[:_SHOWN]]
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
    """Return the names as text. A long list is shortened to its first names and the number of remaining names."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


_CONNECT_SECONDS = 10
_SECONDS, _TUNNEL_SECONDS = 30.0, 60.0
"""Time limits for listing the jobs, without and with a tunnel or jump host. A cloud's CLI takes up to 40 seconds to
open a tunnel (relay.py)."""
_END_SECONDS = 15.0
"""Time limit for the relay to stop the cloud's CLI. Stopping it takes up to 12 seconds (relay.py)."""


class UnknownError(Exception):
    """The running jobs could not be determined. The message states the reason."""


@dataclass(frozen=True, kw_only=True)
class LastCluster:
    """The cluster after the last `up` that knew its machines. `workers` can include the head."""

    scheduler: str
    head: Head
    workers: tuple[str, ...]

    @property
    def machines(self) -> tuple[str, ...]:
        """Names of all hosts, starting with the head."""
        return tuple(dict.fromkeys((self.head.name, *self.workers)))


def refuse_to_end_jobs(admin_key: pulumi.Output[str], permitted: Collection[str]) -> pulumi.ResourceOptions:
    """Return the resource options that install the hook. The change may end the jobs whose ids are in `permitted`."""

    # If the stack already has outputs, the component is new because the cluster name or the platform has changed.
    async def created(_args: pulumi.ResourceHookArgs) -> None:
        await _check(admin_key, permitted, lambda cluster: cluster.machines)

    async def updated(args: pulumi.ResourceHookArgs) -> None:
        await _check(admin_key, permitted, partial(_changed_machines, args))

    options = pulumi.ResourceHookOptions(on_dry_run=True)
    # There are two hooks, because `old_inputs` is empty both for a new component and for a component without inputs.
    binding = pulumi.ResourceHookBinding(
        before_create=[pulumi.ResourceHook("trainyard-busy-create", created, options)],
        before_update=[pulumi.ResourceHook("trainyard-busy-update", updated, options)],
    )
    return pulumi.ResourceOptions(hooks=binding)


async def _check(
    admin_key: pulumi.Output[str], permitted: Collection[str], machines_of: Callable[[LastCluster], tuple[str, ...]]
) -> None:
    """Raise PlatformError if the change would end jobs. In a preview, log a warning instead.

    If the head does not answer, only log a warning, because the change may repair the head.
    """
    machines: tuple[str, ...] = ()
    try:
        cluster = last_cluster(await last_cluster_output())
        if cluster is None or cluster.scheduler != "slurm" or not (machines := machines_of(cluster)):
            return
        jobs = ended_jobs(await running_jobs(cluster.head, await admin_key.future() or ""), machines, cluster.head.name)
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


def _changed_machines(args: pulumi.ResourceHookArgs, cluster: LastCluster) -> tuple[str, ...]:
    """Return the machines that the change replaces, restarts or removes.

    Components created by older versions of this project have no digests. For such a component, only removed machines
    are returned.
    """
    before, after = ((inputs or {}).get(MACHINES) or {} for inputs in (args.old_inputs, args.new_inputs))
    if not before:
        return tuple(name for name in cluster.machines if name not in after)
    return changed_or_removed_hosts(before, after)


async def last_cluster_output() -> Any:
    """Return the stack output `cluster` of the last `up`, or None if the stack has no such output.

    Raises UnknownError if the outputs cannot be read. The stack's outputs are used instead of the component's outputs,
    because the engine keeps the stack's outputs if an `up` fails
    (pulumi/pulumi@v3.250.0:pkg/resource/deploy/step_executor.go, executeRegisterResourceOutputs; read 2026-11-22).
    """
    name = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    try:
        found: Mapping[str, Any] = await pulumi.runtime.invoke_async("pulumi:pulumi:readStackOutputs", {"name": name})
    except Exception as error:  # the SDK raises a plain Exception
        raise UnknownError(f"the stack's outputs cannot be read ({error})") from error
    return found["outputs"].get("cluster")


def last_cluster(outputs: Any) -> LastCluster | None:
    """Parse the stack output `cluster`, or return None if the stack has no outputs.

    Raises UnknownError if the output does not match this version's format. ClusterOutputs cannot parse the output,
    because the engine omits null values.
    """
    if outputs is None:
        return None
    try:
        head = read_head(outputs["head"])
        return LastCluster(
            scheduler=outputs["scheduler"], head=head, workers=tuple(node["name"] for node in outputs["nodes"])
        )
    except (ContractError, KeyError, TypeError) as error:
        raise UnknownError("the stack's outputs were written by a different version of this project") from error


async def running_jobs(head: Head, key: str) -> tuple[RunningJob, ...]:
    """Return the jobs that hold nodes, as listed by Slurm on the head. Raises UnknownError with the reason."""
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
    """Return the SSH command that lists the jobs. The private key and the known hosts are written to `folder`."""
    (folder / "key").touch(mode=0o600)
    (folder / "key").write_text(key)
    (folder / "known_hosts").write_text(f"{head.name} {head.host_key}\n")
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(int(_TUNNEL_SECONDS) if head.tunnel or head.proxy_jump else _CONNECT_SECONDS),
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
        # The jump host is not part of the cluster, so SSH connects to it with the operator's keys and known hosts.
        return {"ProxyCommand": f"ssh -W [%h]:%p ssh://{head.proxy_jump}"}
    return {}


async def _run(command: Sequence[str], seconds: float) -> tuple[int, str, str]:
    """Return the exit code, standard output and standard error of a command.

    Raises UnknownError if the command takes longer than `seconds`, or if ssh is not installed.
    """
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
        # SIGTERM is sent to the process group, so that the tunnel's relay stops the cloud's CLI.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.communicate(), _END_SECONDS)
        raise UnknownError(f"the head did not answer within {seconds:.0f} seconds") from error
    return process.returncode or 0, out.decode(errors="replace"), errors.decode(errors="replace")
