"""Runs Pulumi previews for several stacks in parallel, and removes their processes and files."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

from trainyard.errors import StackError
from yard.preview.resources import Resources, read_answer
from yard.stack import pulumi
from yard.stack.pulumi import end_session, interruptible
from yard.stack.workspace import Workspace

_MOST_AT_ONCE = 4
"""An engine, including its program and plugins, uses about 0.5 GB of memory."""
_SECONDS = 900.0
"""Time limit of a preview. An unreachable cloud must not block the check of a pull request."""
_GRACE_SECONDS = 5.0


class Engines:
    """All running engines."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> tuple[int, str, str]:
        """Run pulumi. Returns its exit code, stdout and stderr, or an error after `stop`."""
        with self._lock:
            if self._stopped:
                return 128 + signal.SIGINT, "", "error: interrupted"
            process = pulumi.start(arguments, environment, folder)
            self._running.add(process.pid)
        try:
            out, err = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            _interrupt(process.pid)
            process.communicate()
            out, err = "", f"error: pulumi did not finish within {_SECONDS:.0f} s; check its backend and the cloud"
        finally:
            end_session(process.pid)
            with self._lock:
                self._running.discard(process.pid)
        return process.returncode, out, err

    def stop(self) -> None:
        """Interrupt all engines. No engine can be started afterwards."""
        with self._lock:
            self._stopped = True
            for pid in self._running:
                _interrupt(pid)


def _interrupt(pid: int) -> None:
    """Send SIGINT, after which pulumi releases the stack's lock. End the process session after a time limit."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    timer = threading.Timer(_GRACE_SECONDS, end_session, (pid,))
    timer.daemon = True
    timer.start()


def preview_all(stacks: Sequence[str], *, live: bool, tell: Callable[[str], None]) -> dict[str, Resources]:
    """Return the result of each stack's preview. Raises StackError if `make setup` has not been run."""
    with tempfile.TemporaryDirectory(prefix="trainyard-preview-") as folder, interruptible("stopping the engines"):
        engines = Engines()
        runs = {stack: _Preview(engines, stack, live=live, home=Path(folder)) for stack in stacks}
        with ThreadPoolExecutor(max(1, min(len(os.sched_getaffinity(0)), _MOST_AT_ONCE))) as pool:
            pending = {pool.submit(run.result): stack for stack, run in runs.items()}
            results: dict[str, Resources] = {}
            try:
                for done in as_completed(pending):
                    results[pending[done]] = done.result()
                    tell(f"{pending[done]}: previewed ({len(results)} of {len(stacks)})")
            except KeyboardInterrupt:
                engines.stop()
                raise
    return results


class _Preview:
    """The preview of one stack."""

    def __init__(self, engines: Engines, stack: str, *, live: bool, home: Path) -> None:
        self._engines = engines
        self._output = (0, "", "")
        self._stack = Workspace(stack, simulated=not live, home=home, run=self._run)

    def result(self) -> Resources:
        try:
            self._stack.preview(["--json"])
        except StackError as error:
            return Resources(steps=(), errors=(str(error),))
        return read_answer(*self._output, own=f"stacks/Pulumi.{self._stack.name}.yaml:")

    def _run(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> int:
        self._output = self._engines.run(arguments, environment, folder)
        return self._output[0]
