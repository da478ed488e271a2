"""Run a command on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from contextlib import closing
from threading import Timer

from offline.command.capture import Capture, Pump
from offline.command.commands import Run, Runner, run_command
from offline.command.inputs import LOCAL_RUN, check
from offline.resources import Operation, ResourceError
from offline.stopping import Stopped
from offline.values import Properties

_SHELL = ("/bin/sh", "-c")
_GRACE_SECONDS = 2.0


class LocalRunner:
    """Runs with /bin/sh, or the `interpreter` given, in `dir`."""

    def run(self, operation: Operation, run: Run, capture: Capture) -> str:
        """See Runner."""
        interpreter = run.properties.get("interpreter")
        words = [str(word) for word in interpreter] if isinstance(interpreter, list) else []
        folder = run.properties.get("dir")
        try:
            process = subprocess.Popen(
                [*(words or _SHELL), run.text],
                cwd=str(folder) if folder else None,
                env={**os.environ, **run.environment},
                stdin=subprocess.PIPE if run.stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
            )
        except (OSError, ValueError) as problem:
            raise ResourceError(f"could not start the command: {problem}") from problem
        try:
            with closing(_pump(process, run, capture)) as pump, operation.stop.calling(lambda: _end(process)):
                pump.run(operation.seconds)
                status = process.wait()
            if status:
                operation.stop.wait(0)
        except (ResourceError, Stopped):
            _finish(process)
            raise
        return _ended(status)


class LocalRun:
    """The function `local:run`: one command, at every preview and deployment."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def invoke(self, operation: Operation, arguments: Properties) -> Properties:
        """See Function."""
        _, failures = check(LOCAL_RUN, arguments)
        if failures:
            raise ResourceError("; ".join(f"{found.property}: {found.reason}" for found in failures))
        nothing: Properties = {"stdout": "", "stderr": ""}
        return {**arguments, **run_command(self._runner, operation, arguments, arguments["command"], nothing)}


def _pump(process: subprocess.Popen[bytes], run: Run, capture: Capture) -> Pump:
    """Hand the process's pipes over: the pump closes its own copies."""
    stdin = os.dup(process.stdin.fileno()) if process.stdin else None
    assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018 - both were asked for
    stdout, stderr = os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno())
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            stream.close()
    return Pump(capture, stdout=stdout, stderr=stderr, stdin=stdin, data=run.stdin.encode())


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it started: politely first, and for certain soon after."""
    _signal(process, signal.SIGTERM)
    timer = Timer(_GRACE_SECONDS, _signal, (process, signal.SIGKILL))
    timer.daemon = True
    timer.start()


def _finish(process: subprocess.Popen[bytes]) -> None:
    _end(process)
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.returncode is not None:
        return  # the number may be another process's by now
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _ended(status: int) -> str:
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    return f"exit status {status}" if status else ""
