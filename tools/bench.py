"""`make bench`: what the local stack must reach, measured on this machine.

Runs the whole demo from cold machines, then measures on its cluster. Compares within one run, since machines differ and
are noisy: a preview with an empty program's preview, a submission with an ssh round trip, a job with a bare srun.
Prints a table; exit code 1 when a ceiling is passed. The cluster stays.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from components.platforms.local.paths import PIDFILE

STACK = "local"
ROOT = Path(__file__).parents[1]
_RUN = ROOT / ".trainyard" / "run" / STACK
_EMPTY = {
    "Pulumi.yaml": "name: empty\nruntime: python\n",
    "__main__.py": "",
    "Pulumi.local.yaml": "config: {}\n",
}
_STAMP = r'date "+began %s.%N"'
_LAUNCH_JOB = f"name: bench-launch\nnodes: 2\ntime: 5m\nrun: |\n  {_STAMP}\n"
# Prints the seconds from asking to a rank's first line, for a bare srun and for the job's script, on the head's clock.
_LAUNCH = r"""
cd "$1"
first() { sed -nE 's/.*began ([0-9.]+).*/\1/p' | sort -n | head -1; }
t0=$(date +%s.%N)
t1=$(srun --nodes=2 --ntasks-per-node=1 --exclusive --mem=0 --gpus-per-node=2 bash -c 'date "+began %s.%N"' | first)
: >job.log
t2=$(date +%s.%N)
sbatch --quiet job.sbatch
until grep -q began job.log; do sleep 0.2; done
t3=$(first <job.log)
until [[ -z $(squeue -h -n bench-launch) ]]; do sleep 0.5; done
awk "BEGIN { print $t1 - $t0, $t3 - $t2 }"
"""


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


def output(*command: str) -> str:
    """Run a command in the checkout and return what it prints. Its own words on stderr reach the terminal."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def yard(*arguments: str) -> str:
    """Run yard on the stack and return what it prints."""
    return output(sys.executable, "-m", "jobs", *arguments)


def yard_json(*arguments: str) -> Any:
    """Return what yard says with --json."""
    return json.loads(yard(arguments[0], "--json", *arguments[1:]))


def demo_cost() -> Figure:
    """Seconds of `make demo` from cold machines, with tools and golden image cached."""
    subprocess.run(["make", "down"], check=True, cwd=ROOT)
    with subprocess.Popen(["make", "demo"], stdout=subprocess.PIPE, text=True, cwd=ROOT) as demo:
        said = []
        for line in demo.stdout or ():
            sys.stdout.write(line)
            said.append(line)
    found = re.search(r"to the job's result\W+([0-9.]+)", "".join(said))
    if demo.returncode or found is None:
        raise SystemExit("make bench: make demo failed; what it said is above")
    return Figure("make demo to the job's result, warm", float(found.group(1)), 120.0, "s")


def preview_cost(runs: int) -> Figure:
    """Seconds that a preview of the stack takes over one of an empty program."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in _EMPTY.items():
            (Path(folder) / name).write_text(text)
        shell = f". '{ROOT}/.trainyard/env.sh' && cd {folder} && unset PULUMI_OPTION_CONFIG_FILE && "
        here = "PULUMI_BACKEND_URL=file://$PWD pulumi --non-interactive"
        output("bash", "-c", f"{shell}{here} stack init local")
        empty = median_seconds(lambda: output("bash", "-c", f"{shell}{here} preview -s local"), runs)
    ours = median_seconds(lambda: output(sys.executable, "-m", "tools.stack", "preview", STACK), runs)
    return Figure(f"preview, over an empty program's {empty:.1f} s", ours - empty, 2.0, "s")


def submit_cost(runs: int) -> Figure:
    """Seconds that `yard submit` takes over an ssh round trip on a warm connection."""
    head = head_name()
    config = f"{ROOT}/.trainyard/ssh/{STACK}/config"
    trip = median_seconds(lambda: output("ssh", "-F", config, head, "true"), runs)
    ours = median_seconds(lambda: yard("submit", "hello"), runs)
    yard("cancel", "--all")
    return Figure(f"yard submit, over an ssh round trip of {trip:.2f} s", ours - trip, 0.5, "s")


def launch_cost(runs: int) -> Figure:
    """Seconds from sbatch to a rank's first line, over the same for a bare srun; both on the cluster's own clocks."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(_LAUNCH_JOB)
        file.flush()
        job = yard_json("submit", file.name)
    yard("wait", str(job["id"]))
    script = f"bash -c {_quoted(_LAUNCH)} launch {job['run_dir']}"
    pairs = [[float(word) for word in yard("ssh", head_name(), "--", script).split()] for _ in range(runs)]
    bare, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Figure(f"job launch, over a bare srun's {bare:.1f} s", ours - bare, 1.0, "s")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def head_name() -> str:
    """Return the head's name."""
    return str(json.loads(output(sys.executable, "-m", "tools.stack", "outputs", STACK))["cluster"]["head"]["name"])


def machines() -> list[int]:
    """Return the process ids of the stack's machines."""
    return [int(path.read_text()) for path in _RUN.rglob(PIDFILE)]


def memory_gib(pids: list[int]) -> float:
    """Return the resident memory of processes together."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * 4096 / 2**30


def cpu_seconds(pids: list[int]) -> float:
    """Return the CPU time that processes have used so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / 100


def idle_cost(pids: list[int], seconds: float) -> Figure:
    """Share of a core that the machines use together when nothing runs on them."""
    begin = cpu_seconds(pids)
    time.sleep(seconds)
    return Figure("idle CPU of the machines together", (cpu_seconds(pids) - begin) / seconds * 100, 10.0, "% of a core")


def main() -> int:
    """Measure and print. Returns 1 when a ceiling is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-demo", action="store_true", help="measure on the running cluster only")
    figures = [] if parser.parse_args().no_demo else [demo_cost()]
    pids = machines()
    if not pids:
        sys.stderr.write("make bench: no running stack; run `make demo` first\n")
        return 1
    figures += [
        preview_cost(5),
        submit_cost(5),
        launch_cost(3),
        idle_cost(pids, 30.0),
        Figure("memory of the machines together", memory_gib(pids), 5.0, "GiB"),
    ]
    table = Table("what", "measured", "at most", "")
    for figure in figures:
        mark = "ok" if figure.within else "OVER"
        table.add_row(figure.name, f"{figure.value:.2f} {figure.unit}", f"{figure.ceiling:g} {figure.unit}", mark)
    Console().print(table)
    return 0 if all(figure.within for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
