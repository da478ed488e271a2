"""`make bench-clouds`: what large stacks must keep to, measured on this machine against simulated clouds.

Each stack of 512 nodes is compared with its twin of two, in turns, the best of each, since machines differ and are
noisy. Says on stderr what each run took, and prints a table; exit code 1 when a ceiling is passed. Needs `make setup`
and no cloud.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from tools import offline
from tools.bench import Figure
from tools.environment import ROOT, ToolError, load
from tools.program_cost import ALL, IMPORTS, MEMORY, OURS, SDK

STACKS = ("azure-a100", "gcp-a2")
MANY, FEW = 512, 2
_ROUNDS = 5
_WIDE = "10.64.0.0/16"
"""A group gets an eighth of the network's addresses, and 512 nodes need more than the stacks' own network has."""
_NO_QUESTIONS = ("--yes", "--skip-preview")
_SAVE_AT_THE_END = {"PULUMI_SKIP_CHECKPOINTS": "true"}
"""Else the engine writes the whole state, tens of megabytes, before and after each resource: docs/scale.md."""
_PROGRAM = """
import atexit, runpy, sys
from pathlib import Path

sys.path.insert(0, {root!r})
from tools.program_cost import recorded

watched = recorded(Path({report!r}))
watched.__enter__()
atexit.register(watched.__exit__, None, None, None)
runpy.run_path({program!r}, run_name="__main__")
"""


@dataclass(frozen=True)
class Cost:
    """One run: its time as a person waits for it, and what the program in it cost (tools/program_cost.py)."""

    seconds: float
    program: dict[str, float]


class Twin:
    """A stack of the project, made as large as one wants, in a project folder of its own."""

    def __init__(self, home: Path, stack: str, nodes: int) -> None:
        self.name = f"{stack}-{nodes}"
        self._folder = home / self.name
        self._folder.mkdir()
        self._environment = {**offline.environment(load(), self._folder), **_SAVE_AT_THE_END}
        self._report = self._folder / "report.json"
        (self._folder / "Pulumi.yaml").write_text("name: trainyard\nruntime: python\n")
        (self._folder / "__main__.py").write_text(
            _PROGRAM.format(root=str(ROOT), report=str(self._report), program=str(ROOT / "__main__.py"))
        )
        (self._folder / f"Pulumi.{self.name}.yaml").write_text(sized(stack, nodes))
        self._pulumi("stack", "init", self.name)

    def run(self, verb: str, *options: str) -> Cost:
        """Run an operation and return what it cost. Ends the program with Pulumi's words when it fails."""
        self._report.unlink(missing_ok=True)
        begin, before = time.perf_counter(), _processor_seconds()
        self._pulumi(verb, "-s", self.name, *options)
        seconds, processor = time.perf_counter() - begin, _processor_seconds() - before
        sys.stderr.write(f"{self.name}: {verb} took {seconds:.1f} s, {processor:.1f} s of processor time\n")
        return Cost(seconds, json.loads(self._report.read_text()) if self._report.exists() else {})

    def _pulumi(self, *arguments: str) -> None:
        done = subprocess.run(
            ["pulumi", *arguments, "--non-interactive"],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.stderr.write(f"{done.stdout[-4000:]}{done.stderr[-4000:]}\n")
            raise SystemExit(f"make bench-clouds: pulumi {arguments[0]} of {self.name} failed; what it said is above")


def _processor_seconds() -> float:
    """Return what all processes took that this one started and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def sized(stack: str, nodes: int) -> str:
    """Return the stack's file with its one group of so many nodes, in a wide network."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text())
    cluster = document["config"]["trainyard:cluster"]
    (group,) = cluster["nodes"].values()
    # An availability set holds 200 machines: what a fabric holds is for the checks to say, not for this measurement.
    group.update(count=nodes, placement="none")
    cluster["network"] = {"cidr": _WIDE}
    cluster["platform"]["protect_storage"] = False  # or `destroy` would refuse
    cluster.pop("limits", None)
    return yaml.safe_dump(document, sort_keys=False)


def preview_costs(home: Path, stack: str) -> list[Figure]:
    """Measure previews of a stack and of its twin."""
    few, many = Twin(home, stack, FEW), Twin(home, stack, MANY)
    few.run("preview")  # compiles what was not compiled, and fills the kernel's cache
    rounds = [(few.run("preview"), many.run("preview")) for _ in range(_ROUNDS)]
    small, large = (min(costs, key=lambda cost: cost.seconds) for costs in zip(*rounds, strict=True))
    ceiling = 1.5 * small.seconds + 6
    share = f"{small.program[IMPORTS]:.2f} s are imports, {small.program[SDK]:.2f} s the SDK's"
    return [
        Figure(f"{stack}: preview of {MANY} nodes ({FEW}: {small.seconds:.1f} s)", large.seconds, ceiling, "s"),
        Figure(f"{stack}: memory of the program with {MANY} nodes", large.program[MEMORY], 400.0, "MiB"),
        Figure(f"{stack}: our own code with {FEW} nodes ({share})", small.program[OURS], 0.5, "s"),
        Figure(f"{stack}: processor time of the program, of each node", _each(large, small) * 1000, 25.0, "ms"),
    ]


def up_costs(home: Path, stack: str) -> list[Figure]:
    """Measure a whole life of a stack and of its twin: up, up again, destroy."""
    figures = []
    lives = {nodes: _life(Twin(home, f"{stack}", nodes)) for nodes in (FEW, MANY)}
    for verb, many in lives[MANY].items():
        few = lives[FEW][verb]
        # The same room that a preview has, four times over: each resource is made, asked for and remembered as well.
        ceiling = 1.5 * few + 4 * 6
        figures.append(Figure(f"{stack}: {verb} of {MANY} nodes ({FEW}: {few:.1f} s)", many, ceiling, "s"))
    return figures


def _life(twin: Twin) -> dict[str, float]:
    steps = {"up": ("up", *_NO_QUESTIONS), "up again": ("up", *_NO_QUESTIONS), "destroy": ("destroy", *_NO_QUESTIONS)}
    return {name: twin.run(*arguments).seconds for name, arguments in steps.items()}


def every_stack() -> Figure:
    """Measure what a pull request waits for: previews of all stacks."""
    begin = time.perf_counter()
    done = subprocess.run(
        ["yard", "preview", "--all", "--offline"], cwd=ROOT, stdout=subprocess.DEVNULL, env=load(), check=False
    )
    if done.returncode:
        raise SystemExit("make bench-clouds: yard preview --all --offline failed; what it said is above")
    return Figure("yard preview --all --offline", time.perf_counter() - begin, 60.0, "s")


def _each(large: Cost, small: Cost) -> float:
    return (large.program[ALL] - small.program[ALL]) / (MANY - FEW)


def main() -> int:
    """Measure and print. Returns 1 when a ceiling is passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--up", action="store_true", help="measure up and destroy as well, minutes more")
    with_up = parser.parse_args().up
    table = Table("what", "measured", "at most", "")
    figures = [every_stack()]
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        for stack in STACKS:
            for part, measure in (("preview", preview_costs), ("up", up_costs)):
                if part == "preview" or with_up:
                    home = Path(folder) / part
                    home.mkdir(exist_ok=True)
                    figures += measure(home, stack)
    for figure in figures:
        limit, mark = f"{figure.ceiling:.4g} {figure.unit}", "ok" if figure.within else "OVER"
        table.add_row(figure.name, f"{figure.value:.2f} {figure.unit}", limit, mark)
    Console().print(table)
    return 0 if all(figure.within for figure in figures) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ToolError as error:
        sys.exit(f"error: {error}")
