"""`make bench`: what the local stack must reach, measured on this machine. Needs a running stack (`make demo`).

Compares within one run, since machines differ and are noisy: a preview with an empty program's preview, a submission
with an ssh round trip, a job with a bare srun. Prints a table; exit code 1 when a ceiling is passed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

STACK = "local"
ROOT = Path(__file__).parents[1]
_RUN = ROOT / ".trainyard" / "run" / STACK
_EMPTY = {
    "Pulumi.yaml": "name: empty\nruntime: python\n",
    "__main__.py": "",
    "Pulumi.local.yaml": "config: {}\n",
}


@dataclass(frozen=True)
class Figure:
    """One measured figure and the most it may be, in the same unit."""

    name: str
    value: float
    ceiling: float
    unit: str

    @property
    def within(self) -> bool:
        """Whether the figure keeps its ceiling."""
        return self.value <= self.ceiling


def median_seconds(action: Callable[[], object], runs: int) -> float:
    """Return the median duration of an action, after one unmeasured run that warms caches and connections."""
    action()
    durations = []
    for _ in range(runs):
        begin = time.perf_counter()
        action()
        durations.append(time.perf_counter() - begin)
    return statistics.median(durations)


def python(*arguments: str) -> str:
    """Run one of the project's modules and return what it prints."""
    done = subprocess.run([sys.executable, "-m", *arguments], check=True, capture_output=True, text=True, cwd=ROOT)
    return done.stdout


def preview_cost(runs: int) -> Figure:
    """Seconds that a preview of the stack takes over one of an empty program."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in _EMPTY.items():
            (Path(folder) / name).write_text(text)
        shell = f". {ROOT}/.trainyard/env.sh && cd {folder} && unset PULUMI_OPTION_CONFIG_FILE && "
        bash(shell + "PULUMI_BACKEND_URL=file://$PWD pulumi stack init local --non-interactive")
        empty = median_seconds(
            lambda: bash(shell + "PULUMI_BACKEND_URL=file://$PWD pulumi preview -s local --non-interactive"), runs
        )
    ours = median_seconds(lambda: python("tools.stack", "preview", STACK), runs)
    return Figure(f"preview, over an empty program's {empty:.1f} s", ours - empty, 2.0, "s")


def bash(text: str) -> str:
    """Run a shell line and return what it prints."""
    return subprocess.run(["bash", "-c", text], check=True, capture_output=True, text=True).stdout


def submit_cost(runs: int, head: str) -> Figure:
    """Seconds that `yard submit` takes over an ssh round trip on a warm connection."""
    trip = median_seconds(lambda: python("jobs", "ssh", head, "--stack", STACK, "--", "true"), runs)
    bare = median_seconds(lambda: bash(f"ssh -F {ROOT}/.trainyard/ssh/{STACK}/config {head} true"), runs)
    ours = median_seconds(lambda: python("jobs", "submit", "hello", "--json", "--stack", STACK), runs)
    python("jobs", "cancel", "--all", "--stack", STACK)
    return Figure(f"yard submit, over an ssh trip of {bare:.2f} s (yard ssh: {trip:.2f} s)", ours - bare, 0.5, "s")


def machines() -> list[int]:
    """Return the process ids of the stack's VMs."""
    return [int(path.read_text()) for path in _RUN.rglob("*pid*") if path.is_file() and "switch" not in path.name]


def memory_gib(pids: list[int]) -> float:
    """Return the resident memory of the VMs together."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * 4096 / 2**30


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time that the VMs have used so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / 100


def main() -> int:
    """Measure and print. Returns 1 when a ceiling is passed."""
    pids = machines()
    if not pids:
        sys.stderr.write("make bench: no running stack; run `make demo` first\n")
        return 1
    begin = cpu_seconds(pids)
    time.sleep(30)
    figures = [
        Figure("idle CPU of the VMs together", (cpu_seconds(pids) - begin) / 30 * 100, 10.0, "% of a core"),
        Figure("memory of the VMs together", memory_gib(pids), 5.0, "GiB"),
        preview_cost(5),
        submit_cost(5, python("jobs", "hostfile", "--format", "names", "--stack", STACK).split()[0]),
    ]
    table = Table("what", "measured", "at most", "")
    for figure in figures:
        mark = "ok" if figure.within else "OVER"
        table.add_row(figure.name, f"{figure.value:.2f} {figure.unit}", f"{figure.ceiling:g} {figure.unit}", mark)
    Console().print(table)
    return 0 if all(figure.within for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
