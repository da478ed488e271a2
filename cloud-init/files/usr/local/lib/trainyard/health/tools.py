"""Runs programs without waiting for a program that cannot be killed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

_stuck: dict[str, subprocess.Popen[str]] = {}
"""Programs that did not end after SIGKILL, because they wait in the kernel. These programs are not started again until
they exit."""


@dataclass(frozen=True)
class Ran:
    """Exit code and output of a program. `code` is None if the program is missing or did not end in time."""

    code: int | None
    output: str = ""
    problem: str = ""


def run_tool(argv: list[str], timeout: float) -> Ran:
    """Run a program for at most `timeout` seconds."""
    name = argv[0]
    if name in _stuck:
        if _stuck[name].poll() is None:
            return Ran(None, problem="an earlier call is still running")
        del _stuck[name]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return Ran(None, problem=f"{error.strerror}")
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
        _stuck[name] = process
        return Ran(None, problem=f"no result after {timeout:.0f} s")
    return Ran(process.returncode, output)
