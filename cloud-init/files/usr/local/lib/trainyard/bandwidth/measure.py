"""Runs an all-reduce on some nodes through Slurm."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gate.nodes import run

from bandwidth.results import Group, Measured, Node

SECONDS = 600
"""Time limit of a measurement, including the import of torch."""
_FIRST_PORT = 29410
_ROW = re.compile(r"^ *\d+ +\d+ +\w+ +sum +.*$", re.MULTILINE)
_ITERATIONS = {True: "20", False: "5"}
"""Number of iterations for real and for fake GPUs. At 0.34 GB/s (two H200s over TCP, 2026-11-23), 20 iterations would
take 4 minutes, so allreduce.py limits the time."""
_UNITS = {"M": 1 << 20, "G": 1 << 30}
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
    export OMPI_MCA_coll_hcoll_enable=0 UCX_TLS=tcp UCX_NET_DEVICES=$GLOO_SOCKET_IFNAME
  fi
  exec /opt/nccl-tests/build/all_reduce_perf -b "$BYTES" -e "$BYTES" -g 1 -c 1 -n "$ITERATIONS"
fi
if ! python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
  exit 90
fi
counts=(--warmup 2 --iters "$ITERATIONS" --max-seconds 20)
exec python3 /usr/local/lib/trainyard/bandwidth/allreduce.py -b "$BYTES" -e "$BYTES" "${counts[@]}"
"""
"""The image's nccl-tests, or the project's all-reduce. Exit code _NO_PROGRAM: the node has neither program.

Open MPI only starts the ranks of nccl-tests, and NCCL moves the data. MPI therefore uses TCP on the interface of the
private network, and no hcoll, as in Microsoft's tests: azurehpc-health-checks at 0e0a1ac2,
customTests/azure_nccl_allreduce.nhc (coll_hcoll_enable 0, UCX_TLS=tcp, UCX_NET_DEVICES=eth0); azhpc-images at 8e9d055f,
tests/test-definitions.sh (coll_hcoll_enable 0, UCX_TLS=tcp); ai-infrastructure-on-azure at a01b0731,
infrastructure_validations/slurm/NCCL/configs/hopper.conf (OMPI_MCA_coll_hcoll_enable=0); read 2026-11-24.
"""
_NO_PROGRAM, _TIMED_OUT = 90, 124
_BUSY = re.compile("Unable to allocate resources|Requested nodes are busy|allocation failure", re.IGNORECASE)
"""Messages that srun --immediate prints if a job has taken the nodes (Slurm 24.11, src/common/slurm_errno.c and
src/srun/allocate.c; read 2026-11-22)."""
_LINES = 5
"""Number of the launcher's last lines in a message."""
_ENDED = re.compile(
    r"^(srun: (Job step aborted|Force Terminated|error: .*(Exited|Terminated|Killed))|slurmstepd.*\*\*\*)"
)
"""Messages about the end of the other ranks, which follow the reason for the failure."""


def parse(output: str, ranks: int, size: str) -> Measured:
    """Return the bus bandwidth in the last row of an nccl-tests table, which must be for messages of this size.

    The last four columns are time in microseconds, algbw, busbw and the number of wrong elements of the in-place
    all-reduce. The table rounds busbw to 0.01 GB/s, so busbw is calculated from the time: size / time * 2(n-1)/n
    (nccl-tests doc/PERFORMANCE.md). allreduce.py prints "-" in the out-of-place columns.
    """
    rows = _ROW.findall(output)
    if not rows:
        return Measured(None, f"the all-reduce printed no result: {_last_lines(output)}")
    cells = rows[-1].split()
    try:
        wrong = sum(int(float(cell)) for cell in (cells[8], cells[-1]) if cell not in {"-", "N/A"})
        bytes_, microseconds = int(cells[0]), float(cells[-4])
        busbw = bytes_ / microseconds / 1e3 * 2 * (ranks - 1) / ranks
    except (ValueError, IndexError, ZeroDivisionError):
        return Measured(None, f"the all-reduce printed an invalid row: {rows[-1].strip()}"[:200])
    if wrong:
        return Measured(None, f"the all-reduce returned {wrong} wrong elements", wrong=True)
    if bytes_ != int(size[:-1]) * _UNITS[size[-1]]:
        return Measured(None, f"the all-reduce used messages of {bytes_} bytes instead of {size}")
    return Measured(busbw)


def command(nodes: Sequence[Node], group: Group, number: int, mpi: str | None) -> list[str]:
    """Return the command that measures the nodes. `number` distinguishes simultaneous measurements."""
    variables = {
        **group.env,
        "MASTER_ADDR": nodes[0].address,
        "MASTER_PORT": str(_FIRST_PORT + number),
        "REAL_GPUS": "yes" if group.real_gpus else "no",
        "BYTES": group.size(len(nodes)),
        "ITERATIONS": _ITERATIONS[group.real_gpus],
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
    """Run an all-reduce on the nodes. Return its result, or None if a job has taken the nodes."""
    done = run(*command(nodes, group, number, mpi))
    if done.returncode and _BUSY.search(done.stderr):
        return None
    result = parse(done.stdout, len(nodes) * group.ranks, group.size(len(nodes)))
    if not done.returncode or result.wrong:
        return result
    if done.returncode == _NO_PROGRAM:
        return Measured(None, "a node has neither nccl-tests in /opt/nccl-tests nor torch for its python3")
    if done.returncode == _TIMED_OUT:
        return Measured(None, f"the all-reduce has not finished within {SECONDS} s: {_last_lines(done.stderr)}")
    return Measured(None, f"the all-reduce failed with exit code {done.returncode}: {_last_lines(done.stderr)}")


def _last_lines(text: str) -> str:
    """Return the last lines without srun's messages about the end of the other ranks."""
    lines = [line.strip()[:200] for line in text.splitlines() if line.strip()]
    own = [line for line in lines if not _ENDED.match(line)]
    return "\n    ".join((own or lines or ["no output"])[-_LINES:])


def mpi_of_slurm() -> str | None:
    """Return "pmix" if Slurm can start MPI programs with PMIx, which nccl-tests needs, or None."""
    listed = run("srun", "--mpi=list")
    return "pmix" if re.search(r"\bpmix\b", listed.stdout + listed.stderr) else None
