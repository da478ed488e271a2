"""Open MPI's mpirun on the first node, with a host file: for nccl-tests and whatever else speaks MPI."""

from __future__ import annotations

from jobs.launcher import Launcher, Program, Source, Tasks

LOAD = [
    # Azure's HPC image has Open MPI in an environment module only (components/catalog/image_contracts.yaml).
    "if ! command -v mpirun >/dev/null && [[ -e /usr/share/modules/init/bash ]]; then",
    # The code of the modules package reads variables that are not set.
    "  set +u",
    "  # shellcheck source=/dev/null",
    "  source /usr/share/modules/init/bash",
    "  module load mpi/hpcx",
    "  set -u",
    "fi",
]
"""Lines of bash that put mpirun on PATH where the image does not."""


def _lines(program: Program) -> list[str]:
    return [
        *LOAD,
        "local handed_on=() name",
        'for name in $(names_for_ranks); do handed_on+=(-x "$name"); done',
        # shellcheck cannot see that the single quotes are for the ranks' shells.
        "# shellcheck disable=SC2016",
        # By its path, mpirun starts its helpers on the other nodes from the same folder, which is not on PATH there.
        'exec "$(type -P mpirun || echo mpirun)" -np "$WORLD_SIZE" --hostfile "$MPI_HOSTFILE" \\',
        '  --map-by "ppr:$TASKS_PER_NODE:node" --bind-to none \\',
        # Its own choice would be every interface that is up, be it a bridge that leads nowhere.
        '  --mca btl_tcp_if_include "$GLOO_SOCKET_IFNAME" --mca oob_tcp_if_include "$GLOO_SOCKET_IFNAME" \\',
        '  "${handed_on[@]}" \\',
        "  bash --norc -c 'RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK exec \"$@\"' \\",
        f"  rank {program.command}",
    ]


LAUNCHER = Launcher(title="mpirun", tasks=Tasks.FIRST, lines=_lines, starts=frozenset(Source), runtimes=frozenset())
