"""torchrun with a static rendezvous: every rank and address is given, so neither DNS nor host names matter."""

from __future__ import annotations

from jobs.launcher import Launcher, Program, Tasks


def _lines(program: Program) -> list[str]:
    return [
        "start_torchrun \\",
        '  --nnodes="$NNODES" --nproc-per-node="$TASKS_PER_NODE" --node-rank="$NODE_RANK" \\',
        # A static rendezvous cannot meet again after a failure: yard starts the whole job anew instead.
        '  --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --max-restarts=0 \\',
        f"  {program.file}",
    ]


LAUNCHER = Launcher(title="torchrun", tasks=Tasks.NODE, lines=_lines)
