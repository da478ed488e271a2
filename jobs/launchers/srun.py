"""One process a rank, started by the scheduler (or by yard's runner): a rank finds its place in RANK and LOCAL_RANK."""

from __future__ import annotations

from jobs.launcher import Launcher, Program, Source, Tasks


def _lines(program: Program) -> list[str]:
    return [f"exec {program.command}"]


LAUNCHER = Launcher(title="srun", tasks=Tasks.RANK, lines=_lines, starts=frozenset(Source))
