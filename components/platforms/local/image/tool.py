"""Running the tools of a build: their output is kept for the error message, and none outlives the build."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

from components.errors import PlatformError
from components.platforms.local.image.progress import BuildProgress

_STOP_SECONDS = 30
_TAIL_LINES = 15
_PHASES = {
    "running apt-get update": "read the package lists",
    "downloading packages": "download packages",
    "extracting archives": "unpack the base system",
    "installing remaining packages": "install packages",
    "running --customize-hook": "customise",
}
"""What mmdebstrap says, and what it means to people."""


def run_tool(command: Sequence[str], progress: BuildProgress | None = None) -> str:
    """Run a tool to its end and return what it said. Raises PlatformError with the last lines when it fails."""
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
                phase = next((shown for said, shown in _PHASES.items() if said in line), None)
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
    # mmdebstrap unmounts what it mounted when it is asked to end.
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
