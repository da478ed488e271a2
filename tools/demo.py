"""`make demo`: create the local cluster, run the all-reduce benchmark on both workers, and show where the time went.

Machines that have stopped since an earlier demo are started again.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from components.platforms.local.computer import THIS_COMPUTER
from components.stackfile.read import parse_stack
from tools.stack import Stack
from trainyard import project
from trainyard.errors import StackFileError
from yard.stack import pulumi

STACK = "local"


@dataclass
class Phases:
    """The names of the demo's phases in order, and how many seconds each phase took."""

    rows: list[tuple[str, float]] = field(default_factory=list)

    def run(self, name: str, *command: str) -> None:
        """Run a command as a phase. If the command fails, exit with its exit code. After Ctrl-C, exit with code 130.

        Ctrl-C in a terminal also reaches the command, and the demo waits until the command has shut down.
        """
        begin = time.monotonic()
        interrupts: list[int] = []
        # The command would inherit SIG_IGN, but it does not inherit a handler.
        before = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
        try:
            code = subprocess.run([sys.executable, "-m", *command], check=False).returncode
        finally:
            signal.signal(signal.SIGINT, before)
        self.rows.append((name, time.monotonic() - begin))
        if interrupts:
            sys.stderr.write(
                f"\nmake demo: interrupted in {name}. `make demo` continues, and `make down` removes everything.\n"
            )
            raise SystemExit(128 + signal.SIGINT)
        if code:
            sys.stderr.write(f"\nmake demo: {name} failed (exit code {code}); its output is above.\n")
            raise SystemExit(code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds-before", type=float, default=0.0, help="duration of the set-up, in seconds")
    parser.add_argument("--check", action="store_true", help="only check the stack file and this computer")
    arguments = parser.parse_args()
    file = f"stacks/Pulumi.{STACK}.yaml"
    try:
        parse_stack((project.ROOT / file).read_text(), file, THIS_COMPUTER)
    except StackFileError as error:
        sys.stderr.write(f"make demo: {error}\n")
        return 1
    if arguments.check:
        return 0
    phases = Phases()
    if arguments.seconds_before:
        phases.rows.append(("set-up", arguments.seconds_before))
    phases.run("golden image", "components.platforms.local.image", "build")
    if Stack(STACK).exists():
        phases.run("pulumi refresh: existing machines", "tools.stack", "refresh", STACK)
    phases.run("pulumi up: machines, bring-up, gate", "tools.stack", "up", STACK)
    if pulumi.selected_stack(pulumi.environment(required=True)) is None:
        # `pulumi stack output` and similar commands then need no `-s local`.
        pulumi.run(["stack", "select", STACK], pulumi.environment(required=True))
    phases.run("all-reduce over two nodes", "yard", "submit", "allreduce", "--follow", "--stack", STACK)

    console = Console()
    table = Table("phase", "seconds", title="where the time went")
    for name, seconds in phases.rows:
        table.add_row(name, f"{seconds:.1f}")
    table.add_row("to the job's result", f"{sum(seconds for _, seconds in phases.rows):.1f}", style="bold")
    console.print(table)
    console.print(
        "\nThe cluster keeps running. Next: `. .trainyard/env.sh`, `yard nodes`, `yard submit train-tiny`. "
        "`make down` removes it.",
        soft_wrap=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
