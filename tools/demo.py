"""`make demo`: from a prepared machine to a distributed job's result, with the time each phase took.

Runs `pulumi up` of the stack `local`, submits the all-reduce benchmark over both workers, and shows its table. Machines
that a former demo left and that have stopped since, with the computer say, are started again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from tools.stack import Stack

STACK = "local"


@dataclass
class Phases:
    """Names and durations in seconds, in the order they happened."""

    rows: list[tuple[str, float]] = field(default_factory=list)

    def run(self, name: str, *command: str) -> None:
        """Run a command as a phase, showing what it prints. Ends the program with its exit code when it fails."""
        begin = time.monotonic()
        code = subprocess.run([sys.executable, "-m", *command], check=False).returncode
        self.rows.append((name, time.monotonic() - begin))
        if code:
            sys.stderr.write(f"\nmake demo: {name} failed (exit code {code}); what it said is above.\n")
            raise SystemExit(code)


def node_rows() -> list[tuple[str, str]]:
    """Return (node, when it was running what) from each node's own timeline, in seconds since its power-on."""
    nodes = json.loads(_output("jobs", "nodes", "--json", "--stack", STACK))
    names = [row["name"] for row in nodes]
    rows = []
    for name in names:
        said = _output("jobs", "ssh", name, "--admin", "--stack", STACK, "--", "cat /var/lib/trainyard/timeline")
        marks = [line.split() for line in said.splitlines() if line.strip()]
        first, last = float(marks[0][0]), float(marks[-1][0])
        rows.append((name, f"bootstrap from {first:.0f} s to {last:.0f} s after power-on"))
    return rows


def _output(*command: str) -> str:
    return subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Run the demo. Returns 0, or the exit code of the phase that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds-before", type=float, default=0.0, help="seconds that set-up took before this")
    arguments = parser.parse_args()
    phases = Phases()
    if arguments.seconds_before:
        phases.rows.append(("set-up", arguments.seconds_before))
    phases.run("golden image", "components.platforms.local.image", "build")
    if Stack(STACK).exists():
        phases.run("pulumi refresh: what is left of them", "tools.stack", "refresh", STACK)
    phases.run("pulumi up: machines, bring-up, gate", "tools.stack", "up", STACK)
    phases.run("all-reduce over two nodes", "jobs", "submit", "allreduce", "--follow", "--stack", STACK)

    console = Console()
    table = Table("phase", "seconds", title="where the time went")
    for name, seconds in phases.rows:
        table.add_row(name, f"{seconds:.1f}")
    table.add_row("to the job's result", f"{sum(seconds for _, seconds in phases.rows):.1f}", style="bold")
    console.print(table)
    for name, text in node_rows():
        console.print(f"{name}: {text}", highlight=False)
    console.print(
        "\nThe cluster stays: `. .trainyard/env.sh`, then `yard nodes`, `yard submit train-tiny`. `make down` ends it."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
