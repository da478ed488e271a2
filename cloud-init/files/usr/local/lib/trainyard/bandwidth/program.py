"""The program `trainyard-bandwidth`, which the gate on the head runs once Slurm has started a task on every node.

It measures new and rebooted nodes: each node alone, then pairs of nodes. A bad node (below the floor, or with wrong
data) is measured again, alone or with a good partner. If it is still bad, it is drained with the cause `bandwidth`. If
the all-reduce cannot be started or prints no result, the program only prints a warning, because this says nothing about
the nodes. If `drain_unmeasured` is set, it also drains such nodes if they have no good result.

The exit code is 1 if bad results cannot be attributed to single nodes, and 0 otherwise.
"""

from __future__ import annotations

import fcntl
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gate.program import closed, nodes_in, powered_down, reasons, run, write_line

from bandwidth.results import (
    Group,
    Measured,
    Node,
    Pair,
    Record,
    draw,
    judge,
    load,
    read_groups,
    read_nodes,
    rounds,
    save,
)
from trainyard.faults import BANDWIDTH, cause_of, is_epidemic, reason_for
from trainyard.locks import locked

STATE = Path("/var/lib/trainyard")
LOCK = "bandwidth.lock"
"""This lock prevents simultaneous gates. The gate of an interrupted `up` continues to run and to use the nodes."""
FIX = "Fix: replace the node's machine with `yard roll`, or set another floor with gates.nccl_busbw"
SECONDS = 600
"""The time limit for a measurement, including the import of torch."""
_FIRST_PORT = 29410
_ROW = re.compile(r"^ *\d+ +\d+ +\w+ +sum +.*$", re.MULTILINE)
_CHOICE = re.compile(r"AllReduce: (\d+) Bytes -> Algo ([A-Z]\w*) proto ([A-Z]\w*)")
"""A line of NCCL's log with the names of the algorithm and protocol (NCCL 2.28.9, seen 2026-11-27). NCCL versions that
write numbers instead of names are ignored."""
_ITERATIONS = {True: "20", False: "5"}
"""The number of iterations for real and for fake GPUs. At 0.34 GB/s (two H200s over TCP, 2026-11-23), 20 iterations
would take 4 minutes, so allreduce.py limits the time."""
_UNITS = {"M": 1 << 20, "G": 1 << 30}
_COMMAND = """
# The bootstrap writes this file, because the names of the network interfaces depend on the node.
set -a
source /etc/trainyard/fabric.env
set +a
# All builds of torch support the store without libuv, and some do not support libuv.
export USE_LIBUV=0
if [[ $REAL_GPUS == yes && $SLURM_PROCID == 0 ]] && log=$(mktemp); then
  # Only rank 0 logs the algorithm of each operation.
  export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING NCCL_DEBUG_FILE=$log
  trap 'grep -aoE "AllReduce: [0-9]+ Bytes -> Algo [A-Z0-9_]+ proto [A-Z0-9_]+" "$log" | sort -u; rm -f "$log"' EXIT
fi
if [[ $REAL_GPUS == yes && -x /opt/nccl-tests/build/all_reduce_perf ]]; then
  # Azure's HPC image builds nccl-tests with the MPI of this module, which is not on PATH (azhpc-images at 8e9d055f,
  # components/install_nccl.sh; read 2026-11-22).
  if [[ -r /etc/profile.d/modules.sh ]]; then
    source /etc/profile.d/modules.sh
    module load mpi/hpcx
    export OMPI_MCA_coll_hcoll_enable=0 UCX_TLS=tcp UCX_NET_DEVICES=$GLOO_SOCKET_IFNAME
  fi
  /opt/nccl-tests/build/all_reduce_perf -b "$BYTES" -e "$BYTES" -g 1 -c 1 -n "$ITERATIONS"
  exit
fi
if ! python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
  exit 90
fi
counts=(--warmup 2 --iters "$ITERATIONS" --max-seconds 20)
python3 /usr/local/lib/trainyard/bandwidth/allreduce.py -b "$BYTES" -e "$BYTES" "${counts[@]}"
"""
"""Runs the image's nccl-tests or, if torch is installed, allreduce.py. Exits with _NO_PROGRAM if both are missing.

On GPUs, it then prints which algorithms NCCL has chosen.

Open MPI only starts the ranks of nccl-tests, while NCCL moves the data. MPI therefore uses TCP on the private network's
interface, and no hcoll, as in Microsoft's tests: azurehpc-health-checks at 0e0a1ac2,
customTests/azure_nccl_allreduce.nhc (coll_hcoll_enable 0, UCX_TLS=tcp, UCX_NET_DEVICES=eth0); azhpc-images at 8e9d055f,
tests/test-definitions.sh (coll_hcoll_enable 0, UCX_TLS=tcp); ai-infrastructure-on-azure at a01b0731,
infrastructure_validations/slurm/NCCL/configs/hopper.conf (OMPI_MCA_coll_hcoll_enable=0); read 2026-11-24.
"""
_NO_PROGRAM, _TIMED_OUT = 90, 124
_BUSY = re.compile("Unable to allocate resources|Requested nodes are busy|allocation failure", re.IGNORECASE)
"""Messages that `srun --immediate` prints if a job has taken the nodes (Slurm 24.11, src/common/slurm_errno.c and
src/srun/allocate.c, read 2026-11-22)."""
_ENDED = re.compile(
    r"^(srun: (Job step aborted|Force Terminated|error: .*(Exited|Terminated|Killed))|slurmstepd.*\*\*\*)"
)
"""Messages that follow the actual error message and say that the other ranks have ended."""
Measure = Callable[[Sequence[Node], Group, int, str | None], Measured | None]


def parse(output: str, ranks: int, size: str) -> Measured:
    """Return the bus bandwidth from the last row of an nccl-tests table. The row's message size must be `size`.

    The last four columns describe the in-place all-reduce: time in microseconds, algbw, busbw and number of wrong
    elements. Because the table rounds busbw to 0.01 GB/s, busbw is calculated from the time instead: size / time *
    2(n-1)/n (nccl-tests doc/PERFORMANCE.md). allreduce.py prints "-" in the out-of-place columns.
    """
    rows = _ROW.findall(output)
    if not rows:
        return Measured(None, f"the all-reduce printed no result: {_last_lines(output)}")
    cells = rows[-1].split()
    try:
        wrong = sum(int(float(cell)) for cell in (cells[8], cells[-1]) if cell not in {"-", "N/A"})
        bytes_, microseconds = int(cells[0]), float(cells[-4])
        busbw = bytes_ / microseconds / 1e3 * 2 * (ranks - 1) / ranks
    except (ValueError, IndexError, OverflowError, ZeroDivisionError):
        return Measured(None, f"the all-reduce printed an invalid row: {rows[-1].strip()}"[:200])
    if wrong:
        return Measured(None, f"the all-reduce returned {wrong} wrong elements", wrong=True)
    if bytes_ != int(size[:-1]) * _UNITS[size[-1]]:
        return Measured(None, f"the all-reduce used messages of {bytes_} bytes instead of {size}")
    chosen = max(_CHOICE.findall(output), key=lambda row: int(row[0]), default=("", "", ""))
    return Measured(busbw, algorithm=", ".join(filter(None, chosen[1:])))


def command(nodes: Sequence[Node], group: Group, number: int, mpi: str | None) -> list[str]:
    """Return the command that measures these nodes. `number` must differ between simultaneous measurements."""
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
    """Run an all-reduce on these nodes, and return its result, or None if a job has taken the nodes."""
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
    """Return the last five lines, without srun's messages about the end of the other ranks."""
    lines = [line.strip()[:200] for line in text.splitlines() if line.strip()]
    own = [line for line in lines if not _ENDED.match(line)]
    return "\n    ".join((own or lines or ["no output"])[-5:])


def mpi_of_slurm() -> str | None:
    """Return "pmix" if Slurm supports it, or None otherwise. PMIx starts the MPI ranks of nccl-tests."""
    listed = run("srun", "--mpi=list")
    return "pmix" if re.search(r"\bpmix\b", listed.stdout + listed.stderr) else None


def drained() -> set[str]:
    """Return the nodes that the gate has drained."""
    return {name for name, reason in reasons("drain").items() if cause_of(reason) == BANDWIDTH}


def drain(name: str, reason: str) -> None:
    """Drain a node. Running jobs continue."""
    run(
        "scontrol", "update", f"nodename={name}", "state=drain", f"reason={reason_for(BANDWIDTH, reason)}"
    ).check_returncode()


def resume(names: Iterable[str]) -> None:
    """Return nodes to service."""
    for name in sorted(names):
        run("scontrol", "update", f"nodename={name}", "state=resume").check_returncode()


@dataclass
class Gate:
    """The gate for one group. `nodes` contains the nodes that can be measured now."""

    group: Group
    nodes: dict[str, Node]
    record: Record
    mpi: str | None
    measure: Measure
    problems: list[str] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    """Nodes that a job took before they were measured. The next run of the gate measures them."""
    unsettled: set[str] = field(default_factory=set)
    """Nodes without a clear result, for example both nodes of a bad pair if either may be the faulty one. The next run
    must measure these nodes again."""
    failed: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    """Mapping from each problem to the sets of nodes that could not be measured because of it."""

    def run(self) -> None:
        """Measure the nodes that have no result since their last boot, and record the results and problems."""
        fresh = [name for name in self.nodes if name not in self.record.boots]
        if not fresh:
            return
        write_line(f"group {self.group.name}: measuring all-reduce on {', '.join(fresh)}")
        self._measure_alone(fresh)
        usable = [name for name in self.nodes if name not in self.record.faulty]
        for pairs in rounds(usable, fresh):
            self._measure_pairs(pairs)
        self._judge(usable)
        self._report_unmeasured()
        again = self.busy | self.unsettled
        self.record.boots = {name: boot for name, boot in self.record.boots.items() if name not in self.unsettled}
        self.record.boots |= {name: self.nodes[name].boot_id for name in fresh if name not in again}
        self._describe()

    def _measure_alone(self, names: Sequence[str]) -> None:
        if self.group.ranks == 1:
            return
        results = self._measure_all([(name,) for name in names])
        again = [nodes for nodes, result in results.items() if result.is_bad(self.group.alone)]
        results |= self._measure_all(again)
        self.record.alone |= {name: result for (name,), result in results.items()}
        slow = {
            name: f"alone: {results[name,]}"
            for (name,) in again
            if results[name,].is_bad(self.group.alone) and name not in self.busy
        }
        self._condemn(slow, names, self.group.alone)

    def _measure_pairs(self, pairs: Iterable[Pair]) -> None:
        self.record.pairs |= {(a, b): result for (a, b), result in self._measure_all(list(pairs)).items()}

    def _measure_all(self, sets: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], Measured]:
        """Measure disjoint sets of nodes simultaneously. Return a mapping from set to result, without the busy sets."""
        with ThreadPoolExecutor(max_workers=max(1, len(sets))) as pool:
            results = pool.map(
                lambda item: self.measure([self.nodes[name] for name in item[1]], self.group, item[0], self.mpi),
                enumerate(sets),
            )
            found = dict(zip(sets, results, strict=True))
        self.busy |= {name for names, result in found.items() if result is None for name in names}
        for names, result in found.items():
            if result is not None and result.busbw is None and not result.wrong:
                self.failed.setdefault(result.problem, []).append(names)
        return {names: result for names, result in found.items() if result is not None}

    def _judge(self, usable: Sequence[str]) -> None:
        known = {pair: result for pair, result in self.record.pairs.items() if set(pair) <= set(usable)}
        verdict = judge(known, self.group.pair)
        slow = {}
        for suspect, pair in verdict.suspects.items():
            self._measure_pairs([pair])
            result = self.record.pairs[pair]
            if result.is_bad(self.group.pair) and self.busy.isdisjoint(pair):
                partner = pair[0] if suspect == pair[1] else pair[1]
                slow[suspect] = f"with {partner}: {result}"
        self._condemn(slow, usable, self.group.pair)
        self.unsettled |= {name for pair in verdict.undecided for name in pair}
        self.problems += [
            f"{first} and {second}: all-reduce: {known[first, second]} ({_floor(self.group.pair)}), and no other pair "
            f"shows which of the two nodes is faulty. {FIX}"
            for first, second in verdict.undecided
        ]

    def _report_unmeasured(self) -> None:
        """Print why nodes could not be measured. If `drain_unmeasured` is set, drain nodes without a good result."""
        good = {name for pair, result in self.record.pairs.items() if result.is_good(self.group.pair) for name in pair}
        good |= {name for name, result in self.record.alone.items() if result.is_good(self.group.alone)}
        for problem, sets in self.failed.items():
            where = ", ".join(" with ".join(names) for names in sets)
            write_line(f"warning: group {self.group.name}: all-reduce was not measured on {where}: {problem}")
            reason = problem.splitlines()[0]
            for name in dict.fromkeys(name for names in sets for name in names):
                self.unsettled.add(name)
                if self.group.drain_unmeasured and name not in good and name not in self.record.faulty:
                    drain(name, f"not measured: {reason}")
                    self.record.faulty[name] = f"was not measured: {reason}"

    def _condemn(self, slow: dict[str, str], names: Sequence[str], floor: float | None) -> None:
        """Drain the nodes in `slow`, a mapping from name to result, unless a common cause is likely."""
        if is_epidemic(len(slow), len(names)):
            self.unsettled |= slow.keys()
            shown = "; ".join(f"{name} {text}" for name, text in slow.items())
            self.problems.append(
                f"group {self.group.name}: all-reduce is slow or wrong on {len(slow)} of {len(names)} nodes "
                f"({_floor(floor)}), so the cause is probably common to all nodes and none is drained: {shown}. Fix: "
                "check the network and the floor in gates.nccl_busbw"
            )
        else:
            for name, text in slow.items():
                reason = f"{text}, {_floor(floor)}"
                drain(name, reason)
                self.record.faulty[name] = reason

    def _describe(self) -> None:
        for title, results, floor in (
            ("alone", self.record.alone, self.group.alone),
            ("pairs", self.record.pairs, self.group.pair),
        ):
            values = [result.busbw for result in results.values() if result.busbw is not None]
            if values:
                write_line(
                    f"group {self.group.name}, {title}: {min(values):.4g} to {max(values):.4g} GB/s in {len(values)} "
                    f"measurements ({_floor(floor)})"
                )


def _floor(value: float | None) -> str:
    return "no floor is recorded" if value is None else f"floor {value:g} GB/s"


def run_gate(state: Path, measure_nodes: Measure = measure) -> list[str]:
    """Measure all groups and store the results. Return the problems."""
    groups, nodes, stored = read_groups(state / "handover/gates.json"), read_nodes(state), load(state / "busbw.json")
    mpi = mpi_of_slurm() if groups else None
    problems: list[str] = []
    records: dict[str, Record] = {}
    for group in groups:
        record = records[group.name] = stored.get(group.name, Record())
        members = {node.name: node for node in nodes if node.group == group.name}
        valid = {name for name, node in members.items() if record.boots.get(name) == node.boot_id}
        record.keep(valid, group)
        resume(drained() & set(members) - set(record.faulty))
        free = set() if group.name in closed() else nodes_in("idle") - powered_down()
        gate = Gate(group, {name: node for name, node in members.items() if name in free}, record, mpi, measure_nodes)
        gate.run()
        problems += gate.problems
        save(state / "busbw.json", records)
    if records:
        (state / "busbw.svg").write_text(draw(records))
    for group in groups:
        for name, reason in records[group.name].faulty.items():
            write_line(f"{name} is drained: all-reduce {reason}. {FIX}")
    return problems


def main() -> int:
    """Run the gate as soon as no other gate is running, and return the exit code."""
    with locked(STATE / LOCK, fcntl.LOCK_EX):
        problems = run_gate(STATE)
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0
