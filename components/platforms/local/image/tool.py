"""Runs the tools for a build. Error messages contain the last lines of a tool's output."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

from components.platforms.local.image.progress import BuildProgress
from trainyard.errors import PlatformError

_STOP_SECONDS = 30
_TAIL_LINES = 15
_PHASES = {
    "running apt-get update": "read the package lists",
    "downloading packages": "download packages",
    "extracting archives": "unpack the base system",
    "installing remaining packages": "install packages",
    "running --customize-hook": "customise",
}
"""Text in a line of mmdebstrap's output -> name of the phase that this line begins."""


def run_tool(command: Sequence[str], progress: BuildProgress | None = None) -> str:
    """Run a tool and return its output. Raises PlatformError with the last lines if the tool fails.

    `progress` displays the phases of mmdebstrap.
    """
    output: list[str] = []
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
    except FileNotFoundError as error:
        raise PlatformError(
            f"golden image: {command[0]} is missing. Fix: install mmdebstrap, e2fsprogs, zstd and qemu-utils"
        ) from error
    with process:
        try:
            for line in process.stdout or ():
                output.append(line)
                phase = next((name for begin, name in _PHASES.items() if begin in line), None)
                if progress and phase:
                    progress.phase(phase)
            code = process.wait()
        finally:
            _stop(process)
    if code:
        tail = "  ".join(output[-_TAIL_LINES:]).rstrip()
        raise PlatformError(f"golden image: {command[0]} failed with exit status {code}:\n  {tail}")
    return "".join(output)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    # mmdebstrap unmounts its file systems after SIGTERM.
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
