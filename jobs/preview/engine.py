"""Runs the Pulumi engine's preview of several stacks at once, and leaves no process and no file of it behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from components.errors import ClusterError
from jobs.preview.resources import Resources, read_answer
from tools.engine import end_session
from tools.environment import ToolError
from tools.stack import Stack

_MOST_AT_ONCE = 4
"""Each engine with its program and plugins takes about half a gigabyte."""
_SECONDS = 900.0
"""A cloud that does not answer must not hold a pull request's check for ever."""
_GRACE_SECONDS = 5.0

Tell = Callable[[str], None]


class Engines:
    """Every engine that runs now, so that all of them can be ended."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> tuple[int, str, str]:
        """Run pulumi in a session of its own; return its exit code, stdout and stderr. After `stop`, run nothing."""
        with self._lock:
            if self._stopped:
                return 128 + signal.SIGINT, "", "error: interrupted"
            process = subprocess.Popen(
                ["pulumi", *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self._running.add(process.pid)
        try:
            out, err = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            _end(process)
            out, err = (
                "",
                f"error: pulumi did not end within {_SECONDS:.0f} s; is its backend, or the cloud, reachable?",
            )
        finally:
            end_session(process.pid)
            with self._lock:
                self._running.discard(process.pid)
        return process.returncode, out, err

    def stop(self) -> None:
        """Ask every engine to end, and start no other."""
        with self._lock:
            self._stopped = True
            for pid in self._running:
                # As at a terminal: it releases the stack's lock.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
                timer = threading.Timer(_GRACE_SECONDS, end_session, (pid,))
                timer.daemon = True
                timer.start()


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        end_session(process.pid)
        process.communicate()


def preview_all(stacks: Sequence[str], *, live: bool, tell: Tell) -> dict[str, Resources]:
    """Return the engine's answer for each stack. Raises ClusterError when nothing can be run here at all."""
    with tempfile.TemporaryDirectory(prefix="trainyard-preview-") as folder, _interruptible():
        engines = Engines()
        try:
            runs = {stack: _Preview(engines, stack, live=live, home=Path(folder)) for stack in stacks}
        except ToolError as error:
            raise ClusterError(str(error)) from error
        with ThreadPoolExecutor(max(1, min(len(os.sched_getaffinity(0)), _MOST_AT_ONCE))) as pool:
            asked = {pool.submit(run.answer): stack for stack, run in runs.items()}
            answers: dict[str, Resources] = {}
            try:
                for done in as_completed(asked):
                    answers[asked[done]] = done.result()
                    tell(f"{asked[done]}: previewed ({len(answers)} of {len(stacks)})")
            except KeyboardInterrupt:
                engines.stop()
                raise
    return answers


class _Preview:
    """One stack's preview to be. Without simulation it is `tools.stack preview`: ordinary backend and credentials."""

    def __init__(self, engines: Engines, stack: str, *, live: bool, home: Path) -> None:
        self._engines = engines
        self._said = (0, "", "")
        if live:
            self._stack = Stack(stack, run=self._run)
        else:
            self._stack = Stack(stack, simulated=True, home=home, run=self._run)

    def answer(self) -> Resources:
        """Run it and return what the engine said."""
        try:
            self._stack.preview(["--json"])
        except ToolError as error:
            return Resources(steps=(), errors=(str(error),))
        return read_answer(*self._said, own=f"stacks/Pulumi.{self._stack.name}.yaml:")

    def _run(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> int:
        self._said = self._engines.run(arguments, environment, folder)
        return self._said[0]


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let the first signal that ends a program raise KeyboardInterrupt: engines are ended on the way out."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, lambda number, frame: None)
        sys.stderr.write("\ninterrupted: ending the engines\n")
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
