"""DeepSpeed's launcher on every node, told who it is: needs neither pdsh nor sshd, so it suits containers and Slurm."""

from __future__ import annotations

from jobs.launcher import Launcher, Program, Tasks


def _lines(program: Program) -> list[str]:
    return [
        'exec deepspeed --hostfile "$HOSTFILE" --no_ssh --node_rank "$NODE_RANK" \\',
        '  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\',
        f"  {program.file}",
    ]


LAUNCHER = Launcher(title="deepspeed --no_ssh", tasks=Tasks.NODE, lines=_lines)
