"""DeepSpeed's launcher on the first node, which starts the ranks by a step of its own in the job's allocation."""

from __future__ import annotations

from jobs.launcher import Launcher, Program, Tasks


def _lines(program: Program) -> list[str]:
    return [
        # Its srun hands on all that is here, and every rank would take this one's place.
        "unset RANK LOCAL_RANK NODE_RANK",
        'exec deepspeed --hostfile "$HOSTFILE" --launcher slurm \\',
        '  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\',
        f"  {program.file}",
    ]


LAUNCHER = Launcher(
    title="deepspeed over srun",
    tasks=Tasks.FIRST,
    lines=_lines,
    schedulers=frozenset({"slurm"}),
    runtimes=frozenset(),
)
