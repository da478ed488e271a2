"""torchrun with a c10d rendezvous: the ranks meet again after a failure, and go on with fewer nodes when some are lost.

The first node is told that it is the host, and every node its own address: where a host's name resolves to loopback,
torch would otherwise look for the rendezvous until it times out.
"""

from __future__ import annotations

from jobs.launcher import Launcher, Program, Tasks


def _lines(program: Program) -> list[str]:
    return [
        # Else the agent's one store serves every attempt (seen with torch 2.11), and ranks of the next find
        # NCCL's addresses of the last: github.com/pytorch/pytorch/issues/167288.
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
        "start_torchrun \\",
        # Once the agents of two nodes are out of step, a failure costs two restarts: so more than one or two.
        f'  --nnodes={program.min_nodes}:"$NNODES" --nproc-per-node="$TASKS_PER_NODE" --max-restarts=3 \\',
        '  --rdzv-backend=c10d --rdzv-id="$JOB_NAME-$RESTART_COUNT" --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" \\',
        '  --rdzv-conf="is_host=$((NODE_RANK == 0))" --local-addr="$NODE_IP" \\',
        f"  {program.file}",
    ]


LAUNCHER = Launcher(title="elastic torchrun", tasks=Tasks.NODE, lines=_lines, elastic=True)
