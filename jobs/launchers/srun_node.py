"""One process a node, started by the scheduler (or by yard's runner): for programs that start their own ranks."""

from __future__ import annotations

from jobs.launcher import Launcher, Program, Source, Tasks


def _lines(program: Program) -> list[str]:
    return [f"exec {program.command}"]


LAUNCHER = Launcher(title="srun, once a node", tasks=Tasks.NODE, lines=_lines, starts=frozenset(Source))
