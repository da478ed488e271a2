"""`make bench`: measure the local stack on this machine, and exit with code 1 if a figure is above its ceiling.

The benchmark runs the demo on new machines and measures the resulting cluster, which keeps running. Because computers
differ, most figures are differences from a baseline: a preview is compared with that of an empty program, a submission
with an SSH round trip, and a job with a plain srun.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from components.platforms.local.paths import PIDFILE
from trainyard.project import ROOT
from yard.stack import pulumi

STACK = "local"
_RUN = ROOT / ".trainyard" / "run" / STACK
_EMPTY = {
    "Pulumi.yaml": "name: empty\nruntime: python\n",
    "__main__.py": "",
    "Pulumi.local.yaml": "config: {}\n",
}
_STAMP = r'date "+began %s.%N"'
_LAUNCH_JOB = f"name: bench-launch\nnodes: 2\ntime: 5m\nrun: |\n  {_STAMP}\n"
# Prints the seconds until a rank's first line appears, first for a plain srun, then for the job's script.
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
    name: str
    value: float
    ceiling: float
    unit: str


def median_seconds(action: Callable[[], object], runs: int) -> float:
    """Return an action's median duration. A first run fills caches and opens connections, and does not count."""
    durations = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        action()
        durations.append(time.perf_counter() - begin)
    return statistics.median(durations[1:])


def output(*command: str) -> str:
    """Run a command in the checkout and return its stdout. The command's stderr appears on the terminal."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def yard(*arguments: str) -> str:
    return output(sys.executable, "-m", "yard", *arguments)


def demo_cost() -> Figure:
    """Measure `make demo` with cached tools and a cached golden image, but without existing machines."""
    subprocess.run(["make", "down"], check=True, cwd=ROOT)
    lines = []
    with subprocess.Popen(["make", "demo"], stdout=subprocess.PIPE, text=True, cwd=ROOT) as demo:
        for line in demo.stdout or ():
            sys.stdout.write(line)
            lines.append(line)
    found = re.search(r"to the job's result\W+([0-9.]+)", "".join(lines))
    if demo.returncode or found is None:
        raise SystemExit("make bench: make demo failed; its output is above")
    return Figure("make demo to the job's result, warm", float(found.group(1)), 120.0, "s")


def preview_cost(runs: int) -> Figure:
    """Measure how much longer the stack's preview takes than that of an empty program."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in _EMPTY.items():
            (Path(folder) / name).write_text(text)
        variables = {**pulumi.environment(required=True), "PULUMI_BACKEND_URL": f"file://{folder}"}
        variables.pop("PULUMI_OPTION_CONFIG_FILE", None)

        def empty_project(*words: str) -> None:
            pulumi.run([*words, "--non-interactive"], variables, folder=Path(folder)).check_returncode()

        empty_project("stack", "init", "local")
        empty = median_seconds(lambda: empty_project("preview", "-s", "local"), runs)
    ours = median_seconds(lambda: output(sys.executable, "-m", "tools.stack", "preview", STACK), runs)
    return Figure(f"preview, minus {empty:.1f} s for an empty program", ours - empty, 2.0, "s")


def submit_cost(runs: int) -> Figure:
    """Measure how much longer `yard submit` takes than an SSH round trip on an open connection."""
    head = head_name()
    config = f"{ROOT}/.trainyard/ssh/{STACK}/config"
    trip = median_seconds(lambda: output("ssh", "-F", config, head, "true"), runs)
    ours = median_seconds(lambda: yard("submit", "hello"), runs)
    yard("cancel", "--all")
    return Figure(f"yard submit, minus an SSH round trip of {trip:.2f} s", ours - trip, 0.5, "s")


def launch_cost(runs: int) -> Figure:
    """Measure how much later a rank's first line appears after sbatch than after a plain srun."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(_LAUNCH_JOB)
        file.flush()
        job = json.loads(yard("submit", "--json", file.name))
    yard("wait", str(job["id"]))
    script = f"bash -c {shlex.quote(_LAUNCH)} launch {job['run_dir']}"
    pairs = [[float(word) for word in yard("ssh", head_name(), "--", script).split()] for _ in range(runs)]
    bare, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Figure(f"job launch, minus {bare:.1f} s for a plain srun", ours - bare, 1.0, "s")


def head_name() -> str:
    return str(json.loads(output(sys.executable, "-m", "tools.stack", "outputs", STACK))["cluster"]["head"]["name"])


def machine_costs(pids: list[int], seconds: float) -> list[Figure]:
    """Measure the idle machines' memory, and their CPU use as a percentage of one core."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    before = _cpu_seconds(pids)
    time.sleep(seconds)
    cpu = (_cpu_seconds(pids) - before) / seconds * 100
    return [
        Figure("idle CPU of all machines", cpu, 10.0, "% of a core"),
        Figure("memory of all machines", pages * 4096 / 2**30, 5.0, "GiB"),
    ]


def _cpu_seconds(pids: list[int]) -> float:
    fields = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids]
    return sum(int(field[11]) + int(field[12]) for field in fields) / 100


def report(figures: list[Figure]) -> int:
    """Print the figures, and return exit code 1 if one of them is above its ceiling."""
    over = [figure for figure in figures if figure.value > figure.ceiling]
    for figure in figures:
        mark = "OVER" if figure in over else "ok"
        sys.stdout.write(f"{figure.name}: {figure.value:.2f} {figure.unit}, at most {figure.ceiling:.4g}: {mark}\n")
    return 1 if over else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-demo", action="store_true", help="measure on the running cluster only")
    figures = [] if parser.parse_args().no_demo else [demo_cost()]
    pids = [int(path.read_text()) for path in _RUN.rglob(PIDFILE)]
    if not pids:
        sys.stderr.write("make bench: no running stack; run `make demo` first\n")
        return 1
    figures += [preview_cost(5), submit_cost(5), launch_cost(3), *machine_costs(pids, 30.0)]
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
