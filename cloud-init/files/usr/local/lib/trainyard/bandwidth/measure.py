"""Runs an all-reduce on some nodes through Slurm."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from bandwidth.groups import Group, Node
from bandwidth.pairs import Measured

SECONDS = 600
"""Time limit of a measurement, including the import of torch."""
_FIRST_PORT = 29410
_ROW = re.compile(r"^ *\d+ +\d+ +\w+ +sum +.*$", re.MULTILINE)
_SIZES = {True: ("4G", "20"), False: ("4M", "5")}
"""Message size and number of iterations, for real and for fake GPUs. nccl-tests with -c 1 allocates three buffers
(src/common.cu at v2.17.1), so 4 GiB fits on the smallest GPU of the catalog. On CPUs, larger messages take minutes. At
0.34 GB/s (two H200s over TCP, 2026-11-23), 20 iterations would take 4 minutes, so allreduce.py limits the time."""
_COMMAND = """
# The bootstrap writes this file, because the names of the network interfaces depend on the node.
set -a
source /etc/trainyard/fabric.env
set +a
# Some builds of torch do not support libuv. All builds support the store without libuv.
export USE_LIBUV=0
if [[ $REAL_GPUS == yes && -x /opt/nccl-tests/build/all_reduce_perf ]]; then
  # Azure's HPC image builds nccl-tests with the MPI of this module, which is not on PATH (azhpc-images at 8e9d055f,
  # components/install_nccl.sh; read 2026-11-22).
  if [[ -r /etc/profile.d/modules.sh ]]; then
    source /etc/profile.d/modules.sh
    module load mpi/hpcx
  fi
  exec /opt/nccl-tests/build/all_reduce_perf -b "$BYTES" -e "$BYTES" -g 1 -c 1 -n "$ITERATIONS"
fi
if ! python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
  exit 90
fi
counts=(--warmup 2 --iters "$ITERATIONS" --max-seconds 20)
exec python3 /usr/local/lib/trainyard/bandwidth/allreduce.py -b "$BYTES" -e "$BYTES" "${counts[@]}"
"""
"""The image's nccl-tests, or the project's all-reduce. Exit code _NO_PROGRAM: the node has neither program."""
_NO_PROGRAM = 90
_BUSY = re.compile("Unable to allocate resources|Requested nodes are busy|allocation failure", re.IGNORECASE)
"""Messages that srun --immediate prints if a job has taken the nodes (Slurm 24.11, src/common/slurm_errno.c and
src/srun/allocate.c; read 2026-11-22)."""


class NoProgramError(Exception):
    """A node has neither nccl-tests in /opt/nccl-tests nor torch."""


def parse(output: str, ranks: int) -> Measured:
    """Return the bus bandwidth in the last row of an nccl-tests table.

    The last four columns are time in microseconds, algbw, busbw and the number of wrong elements of the in-place
    all-reduce. The table rounds busbw to 0.01 GB/s, so busbw is calculated from the time: size / time * 2(n-1)/n
    (nccl-tests doc/PERFORMANCE.md). allreduce.py prints "-" in the out-of-place columns.
    """
    rows = _ROW.findall(output)
    if not rows:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        return Measured(None, f"the all-reduce printed no result: {lines[-1] if lines else 'no output'}"[:200])
    cells = rows[-1].split()
    try:
        wrong = sum(int(float(cell)) for cell in (cells[8], cells[-1]) if cell not in {"-", "N/A"})
        busbw = int(cells[0]) / float(cells[-4]) / 1e3 * 2 * (ranks - 1) / ranks
    except (ValueError, IndexError, ZeroDivisionError):
        return Measured(None, f"the all-reduce printed an invalid row: {rows[-1].strip()}"[:200])
    return Measured(None, f"the all-reduce returned {wrong} wrong elements") if wrong else Measured(busbw)


def command(nodes: Sequence[Node], group: Group, number: int, mpi: str | None) -> list[str]:
    """Return the command that measures the nodes. `number` distinguishes simultaneous measurements."""
    size, iterations = _SIZES[group.real_gpus]
    variables = {
        **group.env,
        "MASTER_ADDR": nodes[0].address,
        "MASTER_PORT": str(_FIRST_PORT + number),
        "REAL_GPUS": "yes" if group.real_gpus else "no",
        "BYTES": size,
        "ITERATIONS": iterations,
    }
    return [
        "setpriv", "--reuid=trainer", "--regid=trainer", "--init-groups", "--", "timeout", str(SECONDS),
        "srun", "--job-name=bandwidth-gate", f"--partition={group.name}", f"--nodes={len(nodes)}",
        f"--nodelist={','.join(node.name for node in nodes)}", f"--ntasks-per-node={group.ranks}",
        f"--gpus-per-node={group.ranks}", "--exclusive", "--mem=0", "--cpu-bind=none", "--chdir=/",
        f"--time={SECONDS // 60}", "--immediate=60", *([] if mpi is None else [f"--mpi={mpi}"]),
        "env", *(f"{name}={value}" for name, value in variables.items()), "bash", "-c", _COMMAND,
    ]  # fmt: skip


def measure(nodes: Sequence[Node], group: Group, number: int, mpi: str | None) -> Measured | None:
    """Run an all-reduce on the nodes. Return its result, or None if a job has taken the nodes.

    Raises NoProgramError.
    """
    done = subprocess.run(command(nodes, group, number, mpi), capture_output=True, text=True, check=False)
    if done.returncode == _NO_PROGRAM:
        raise NoProgramError
    if done.returncode and _BUSY.search(done.stderr):
        return None
    if done.returncode:
        return Measured(None, f"the all-reduce failed (exit {done.returncode}): {_reason(done.stderr)}"[:200])
    return parse(done.stdout, len(nodes) * group.ranks)


def _reason(errors: str) -> str:
    """Return the last line that is not srun's message about the end of the other ranks."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(("srun:", "slurmstepd"))]
    return (own or lines or ["no output"])[-1]


def mpi_of_slurm() -> str | None:
    """Return "pmix" if Slurm can start MPI programs with PMIx, which nccl-tests needs, or None."""
    listed = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, check=False)
    return "pmix" if re.search(r"\bpmix\b", listed.stdout + listed.stderr) else None
