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
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pulumi

from components.cluster.machine_digests import changed_or_removed_hosts
from components.cluster.running_jobs import LIST_JOBS, REPLACE, RunningJob, busy_message, ended_jobs, listed, parse_jobs
from components.cluster.tunnel import RELAY
from components.platforms.base import MACHINES, ROLLED
from trainyard.errors import ContractError, PlatformError
from trainyard.outputs import Head, read_head

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


def refuse_to_end_jobs(admin_key: pulumi.Output[str]) -> pulumi.ResourceOptions | None:
    """Return the resource options that install the hook, or None on simulated clouds."""
    if os.environ.get("TRAINYARD_OFFLINE_COMMANDS") == "record":
        return None

    # If the stack already has outputs, the component is new because the cluster name or the platform has changed.
    async def created(_args: pulumi.ResourceHookArgs) -> None:
        await _check(admin_key, lambda cluster: cluster.machines)

    async def updated(args: pulumi.ResourceHookArgs) -> None:
        await _check(admin_key, partial(_changed_machines, args))

    options = pulumi.ResourceHookOptions(on_dry_run=True)
    # There are two hooks, because `old_inputs` is empty both for a new component and for a component without inputs.
    binding = pulumi.ResourceHookBinding(
        before_create=[pulumi.ResourceHook("trainyard-busy-create", created, options)],
        before_update=[pulumi.ResourceHook("trainyard-busy-update", updated, options)],
    )
    return pulumi.ResourceOptions(hooks=binding)


async def _check(admin_key: pulumi.Output[str], machines_of: Callable[[LastCluster], tuple[str, ...]]) -> None:
    """Raise PlatformError if the change would end jobs. In a preview, log a warning instead.

    If the head does not answer, only log a warning, because the change may repair the head.
    """
    if os.environ.get(REPLACE) == "yes":
        return
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
    if not jobs:
        return
    message = busy_message(jobs, machines)
    if not pulumi.runtime.is_dry_run():
        raise PlatformError(message)
    pulumi.log.warn(f"`pulumi up` will refuse this: {message}")


def _changed_machines(args: pulumi.ResourceHookArgs, cluster: LastCluster) -> tuple[str, ...]:
    """Return the machines that the change replaces, restarts or removes.

    Components created by older versions of this project have no digests. For such a component, only machines that are
    removed or rolled are returned.
    """
    before, after = ((inputs or {}).get(MACHINES) or {} for inputs in (args.old_inputs, args.new_inputs))
    rolled = (args.new_inputs or {}).get(ROLLED) or ()
    if not before:
        return tuple(name for name in cluster.machines if name not in after or name in rolled)
    changed = {*changed_or_removed_hosts(before, after), *rolled}
    return tuple(name for name in before if name in changed)


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
