"""DeepSpeed's launcher on the first node, which starts the ranks by mpirun.

DeepSpeed 0.16 to 0.18 look for MPI's variables in the launcher itself and give up (its PR 6979, undone by PR 7751), so
those are refused before anything starts.
"""

from __future__ import annotations

from jobs.launcher import Launcher, Program, Tasks
from jobs.launchers.mpirun import LOAD


def _lines(program: Program) -> list[str]:
    return [
        *LOAD,
        "case $(python3 -c 'from importlib.metadata import version; print(version(\"deepspeed\"))') in",
        "  0.16.* | 0.17.* | 0.18.*)",
        "    say 'DeepSpeed 0.16 to 0.18 cannot start by Open MPI; use 0.19 or newer, or launcher deepspeed-no-ssh'",
        "    exit 2",
        "    ;;",
        "esac",
        # DeepSpeed asks MPI (through mpi4py) for a rank's place only where the environment does not give one.
        "unset RANK LOCAL_RANK NODE_RANK",
        'exec deepspeed --hostfile "$HOSTFILE" --launcher openmpi \\',
        # It names eth0 by itself otherwise.
        '  --launcher_args "--mca btl_tcp_if_include $GLOO_SOCKET_IFNAME" \\',
        '  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\',
        f"  {program.file}",
    ]


LAUNCHER = Launcher(title="deepspeed over Open MPI", tasks=Tasks.FIRST, lines=_lines, runtimes=frozenset())
