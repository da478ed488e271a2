"""Open MPI's mpirun on the first node, with a host file: for nccl-tests and whatever else speaks MPI."""

from __future__ import annotations

from jobs.launcher import Launcher, Program, Source, Tasks


def _lines(program: Program) -> list[str]:
    return [
        "local handed_on=() name",
        'for name in $(names_for_ranks); do handed_on+=(-x "$name"); done',
        # shellcheck cannot see that the single quotes are for the ranks' shells.
        "# shellcheck disable=SC2016",
        'exec mpirun -np "$WORLD_SIZE" --hostfile "$MPI_HOSTFILE" \\',
        '  --map-by "ppr:$TASKS_PER_NODE:node" --bind-to none \\',
        # Its own choice would be every interface that is up, be it a bridge that leads nowhere.
        '  --mca btl_tcp_if_include "$GLOO_SOCKET_IFNAME" --mca oob_tcp_if_include "$GLOO_SOCKET_IFNAME" \\',
        '  "${handed_on[@]}" \\',
        "  bash --norc -c 'RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK exec \"$@\"' \\",
        f"  rank {program.command}",
    ]


LAUNCHER = Launcher(title="mpirun", tasks=Tasks.FIRST, lines=_lines, starts=frozenset(Source), runtimes=frozenset())
