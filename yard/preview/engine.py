"""Runs Pulumi previews for several stacks in parallel, and parses their results.

The processes and files of the engines are removed. Resource inputs are discarded, because they can be secret.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import StackError
from yard.stack import pulumi
from yard.stack.pulumi import end_session, interruptible
from yard.stack.workspace import Workspace

UNCHANGED = frozenset({"same", "read", "discard"})
"""Operations that change no resource. `discard` removes a read-only resource from the state."""
_FALSE_ALARM = re.compile(r"Detected that \S+ exited prematurely")
"""Pulumi reports this for a working plugin if another plugin needs more than 5 s to exit, because all plugins share one
time limit for the Cancel request. Python's dynamic provider sometimes misses SIGINT (11 of about 600 exits, measured on
2026-11-23), and Pulumi kills it after 5 s. If a plugin exits during a preview, Pulumi's exit code is not 0. Sources:
ReleaseContext in pkg/v3/host/host.go and Close in pkg/v3/resource/plugin/plugin.go of Pulumi 3.250.0."""
_MOST_AT_ONCE = 4
"""An engine, including its program and plugins, uses about 0.5 GB of memory."""
_SECONDS = 900.0
"""Time limit of a preview. An unreachable cloud must not block the check of a pull request."""
_GRACE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """An operation on a resource. For example, `op` is "create" and `type` is "azure-native:compute:VirtualMachine"."""

    op: str
    type: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The engine's result. If there are errors, `pulumi up` would fail."""

    steps: tuple[Step, ...]
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[Step, ...]:
        """Steps that change a resource."""
        return tuple(step for step in self.steps if step.op not in UNCHANGED)

    @property
    def by_operation(self) -> dict[str, int]:
        """Number of resources by operation. The key for unchanged resources is `same`."""
        return dict(Counter("same" if step.op in UNCHANGED else step.op for step in self.steps))

    @property
    def by_type(self) -> dict[str, int]:
        """Number of resources by type after the update, in descending order."""
        return dict(Counter(step.type for step in self.steps if not step.op.startswith("delete")).most_common())


def read_answer(code: int, stdout: str, stderr: str, own: str) -> Resources:
    """Parse the output of the engine, which exited with `code`.

    Messages shown elsewhere in the preview are omitted: the messages from the checks, which begin with `own`, and the
    note that the clouds are simulated.
    """
    try:
        answer = json.loads(stdout)
    except ValueError:
        return Resources(steps=(), errors=(_last_error(stderr or stdout) or f"pulumi ended with exit code {code}",))
    entries = [entry for entry in answer.get("diagnostics", []) if not _message(entry).startswith((own, "offline:"))]
    if code == 0:
        entries = [entry for entry in entries if not _FALSE_ALARM.match(_message(entry))]
    errors = tuple(_message(entry) for entry in entries if entry.get("severity") == "error")
    if errors:
        # The cause is only in the output of the failed program or plugin.
        errors += tuple(_message(entry) for entry in entries if entry.get("severity") == "info#err" and _message(entry))
    elif code:
        errors = (_last_error(stderr) or f"pulumi ended with exit code {code}",)
    return Resources(
        steps=tuple(_steps(answer)),
        errors=errors,
        warnings=tuple(_message(entry) for entry in entries if entry.get("severity") == "warning"),
    )


def _steps(answer: dict[str, Any]) -> Iterator[Step]:
    for step in answer.get("steps", []):
        # Format: urn:pulumi:STACK::PROJECT::PARENT$TYPE::NAME
        *_, kinds, name = str(step["urn"]).split("::", 3)
        yield Step(op=str(step["op"]), type=kinds.rpartition("$")[2], name=name)


def _message(entry: dict[str, Any]) -> str:
    return str(entry.get("message", "")).strip().removeprefix(f"{entry.get('severity')}:").strip()


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or [""])[-1].removeprefix("error:").strip()


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
