"""Plans a stack file's cluster for `yard submit --dry-run`. This needs a stack file, but no cluster."""

from __future__ import annotations

from components.cluster.outputs import Reach, cluster_outputs
from components.node.user_data import JOB_USER
from components.stackfile.read import read_stack
from trainyard import project
from trainyard.outputs import Head
from yard.preview.printing import costs
from yard.run.submit import Rehearsal
from yard.stack.workspace import committed_text, short_name

_NOWHERE = "192.0.2.1"
"""An address that belongs to no machine (RFC 5737)."""


def rehearse(stack: str, reason: str) -> Rehearsal:
    """Return the cluster that a stack file describes. `reason` says why the stack has no outputs.

    Raises StackError if the file does not exist, and StackFileError if it breaks rules.
    """
    stack = short_name(stack)
    committed_text(stack)
    file = project.stack_file(stack)
    plan = read_stack(project.ROOT / file).plan
    head = Head(
        name=plan.head.name,
        address=_NOWHERE,
        port=22,
        private_ip=str(plan.head.private_ip),
        user=JOB_USER,
        admin_user="",
        host_key="",
    )
    workers = {host.name: Reach(host_key="", address=None, port=22) for host in plan.nodes}
    return Rehearsal(
        file=file,
        reason=reason,
        cluster=cluster_outputs(plan, head, workers),
        costs=tuple(costs(plan)),
    )
