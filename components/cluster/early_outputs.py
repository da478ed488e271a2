"""The stack output `cluster` before the cluster is ready.

If a step of `pulumi up` fails or the user interrupts it, the outputs then describe the machines that exist. The engine
stores the last outputs that the program has registered, also if the update fails, and keeps older outputs with other
names (pulumi/pulumi@v3.250.0:pkg/resource/deploy/step_executor.go, executeRegisterResourceOutputs, and
deployment_executor.go, Execute; read 2026-11-24). tests/components/cluster/test_early_outputs.py checks this.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pulumi

from components.cluster.bringup import NO_TUNNEL, Registered
from components.cluster.busy import UnknownError, last_cluster_output
from components.cluster.cluster import Cluster

NO_MACHINES = "`pulumi up` ended before all machines and their SSH host keys were known"


async def early_outputs(cluster: Cluster) -> AsyncIterator[pulumi.Output[dict[str, Any]]]:
    """Yield the output when the head is known, when all machines are known, and after each step of the bring-up.

    The caller registers each output with the engine before it requests the next one. If an earlier `up` has made the
    cluster ready, `unready` stays None, because jobs can run on the other nodes after a failed step. Outputs of an
    earlier `up` remain until all machines are known.
    """
    bringup = cluster.bringup
    registered = bringup.registered = Registered()
    try:
        before = await last_cluster_output()
    except UnknownError:
        before = {}
    if before is None:
        yield cluster.described(bringup.head_host_key, NO_MACHINES)
    registered.head.set()
    is_new = before is None or before.get("unready") is not None
    for unready, done in bringup.steps.items():
        yield cluster.described(bringup.host_keys, unready if is_new else None)
        # A command that fails at once must not end the program while the outputs still name the tunnel.
        if unready != NO_TUNNEL:
            registered.machines.set()
        await done.future()
