"""`make bench-clouds`: measure how long large stacks take on simulated clouds, and how much memory they need.

Each stack with 512 nodes is compared with the same stack with two nodes. Because the load on a computer varies, the two
run alternately, and only the fastest run of each counts. The exit code is 1 if a figure is above its ceiling.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools.bench import Figure, report
from trainyard.errors import StackError
from trainyard.project import ROOT
from yard.stack import pulumi
from yard.stack.workspace import simulated_environment

STACKS = ("azure-a100", "gcp-a2")
MANY, FEW = 512, 2
_ROUNDS = 5
_WIDE = "10.64.0.0/16"
"""A network with room for 512 nodes in one group. A group receives an eighth of the network's addresses."""
_NO_QUESTIONS = ("--yes", "--skip-preview")
_SAVE_AT_THE_END = {"PULUMI_SKIP_CHECKPOINTS": "true"}
"""Without this, the engine writes the whole state (tens of MB) before and after each resource (docs/dev/scale.md)."""
_PROGRAM = """
import atexit, json, resource, runpy, sys, time
from pathlib import Path


def report():
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    Path({report!r}).write_text(json.dumps(dict(seconds=time.process_time(), mib=memory)))


sys.path.insert(0, {root!r})
atexit.register(report)
runpy.run_path({program!r}, run_name="__main__")
"""
"""Runs the project's program, and reports the processor time and peak memory that it used."""


@dataclass(frozen=True)
class Cost:
    """A run's duration. `program` contains the program's processor time (`seconds`) and peak memory (`mib`)."""

    seconds: float
    program: dict[str, float]


class Twin:
    """A copy of a stack with a different number of nodes, in a project of its own."""

    def __init__(self, home: Path, stack: str, nodes: int) -> None:
        self.name = f"{stack}-{nodes}"
        self._folder = home / self.name
        self._folder.mkdir()
        self._environment = {
            **simulated_environment(pulumi.environment(required=True), self._folder),
            **_SAVE_AT_THE_END,
        }
        self._report = self._folder / "report.json"
        (self._folder / "Pulumi.yaml").write_text("name: trainyard\nruntime: python\n")
        (self._folder / "__main__.py").write_text(
            _PROGRAM.format(root=str(ROOT), report=str(self._report), program=str(ROOT / "__main__.py"))
        )
        (self._folder / f"Pulumi.{self.name}.yaml").write_text(sized(stack, nodes))
        self._pulumi("stack", "init", self.name)

    def run(self, verb: str, *options: str) -> Cost:
        """Run an operation and return its cost. If the operation fails, exit with Pulumi's output."""
        self._report.unlink(missing_ok=True)
        begin = time.perf_counter()
        self._pulumi(verb, "-s", self.name, *options)
        seconds = time.perf_counter() - begin
        sys.stderr.write(f"{self.name}: {verb} took {seconds:.1f} s\n")
        return Cost(seconds, json.loads(self._report.read_text()) if self._report.exists() else {})

    def _pulumi(self, *arguments: str) -> None:
        words = [*arguments, "--non-interactive"]
        done = pulumi.run(words, self._environment, folder=self._folder, seconds=None)
        if done.returncode:
            sys.stderr.write(f"{done.stdout[-4000:]}{done.stderr[-4000:]}\n")
            raise SystemExit(f"make bench-clouds: pulumi {arguments[0]} of {self.name} failed; its output is above")


def sized(stack: str, nodes: int) -> str:
    """Return the text of the stack file with a larger network and with `nodes` nodes in its only group."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text())
    cluster = document["config"]["trainyard:cluster"]
    (group,) = cluster["nodes"].values()
    # The checks would reject the stack's own placement, because an availability set holds at most 200 machines.
    group.update(count=nodes, placement="none")
    cluster["network"] = {"cidr": _WIDE}
    cluster["platform"]["protect_storage"] = False  # otherwise `destroy` would fail
    cluster.pop("limits", None)
    return yaml.safe_dump(document, sort_keys=False)


def preview_costs(home: Path, stack: str) -> list[Figure]:
    """Compare the previews of a stack with many nodes and a stack with few nodes."""
    few, many = Twin(home, stack, FEW), Twin(home, stack, MANY)
    few.run("preview")  # fills the caches: bytecode and files
    rounds = [(few.run("preview"), many.run("preview")) for _ in range(_ROUNDS)]
    small, large = (min(costs, key=lambda cost: cost.seconds) for costs in zip(*rounds, strict=True))
    ceiling = 2 * small.seconds + 10
    milliseconds = (large.program["seconds"] - small.program["seconds"]) / (MANY - FEW) * 1000
    return [
        Figure(f"{stack}: preview of {MANY} nodes ({FEW}: {small.seconds:.1f} s)", large.seconds, ceiling, "s"),
        Figure(f"{stack}: memory of the program with {MANY} nodes", large.program["mib"], 400.0, "MiB"),
        Figure(f"{stack}: processor time of the program for each node", milliseconds, 25.0, "ms"),
    ]


def up_costs(home: Path, stack: str) -> list[Figure]:
    """Compare `up`, a second `up` and `destroy` of a stack with many nodes and a stack with few nodes."""
    figures = []
    few, many = Twin(home, stack, FEW), Twin(home, stack, MANY)
    for name, verb in (("up", "up"), ("up again", "up"), ("destroy", "destroy")):
        small, large = (twin.run(verb, *_NO_QUESTIONS).seconds for twin in (few, many))
        # The margin is four times that of a preview, because each resource is also created, read and saved.
        ceiling = 2 * small + 4 * 10
        figures.append(Figure(f"{stack}: {name} of {MANY} nodes ({FEW}: {small:.1f} s)", large, ceiling, "s"))
    return figures


def every_stack() -> Figure:
    """Measure the preview of all stacks, which every pull request runs."""
    begin = time.perf_counter()
    done = subprocess.run(
        ["yard", "preview", "--all", "--offline"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        env=pulumi.environment(required=True),
        check=False,
    )
    if done.returncode:
        raise SystemExit("make bench-clouds: yard preview --all --offline failed; its output is above")
    return Figure("yard preview --all --offline", time.perf_counter() - begin, 60.0, "s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--up", action="store_true", help="also measure up and destroy, which takes minutes")
    with_up = parser.parse_args().up
    figures = [every_stack()]
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        for stack in STACKS:
            for part, measure in (("preview", preview_costs), ("up", up_costs)):
                if part == "preview" or with_up:
                    home = Path(folder) / part
                    home.mkdir(exist_ok=True)
                    figures += measure(home, stack)
    return report(figures)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except StackError as error:
        sys.exit(f"error: {error}")
