"""Runs Pulumi previews of several stacks in parallel, and parses their output.

The engines leave no processes or files behind. Resource inputs are discarded, because they can be secret.
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
from trainyard.project import stack_file
from yard.stack import pulumi
from yard.stack.pulumi import end_session, interruptible
from yard.stack.workspace import Workspace

UNCHANGED = frozenset({"same", "read", "discard"})
"""Operations that change no resource. `discard` removes a read-only resource from the state."""
_FALSE_ALARM = re.compile(r"Detected that \S+ exited prematurely")
"""Pulumi reports this for a working plugin if another plugin needs more than 5 s to exit. All plugins share one time
limit for the Cancel request. Python's dynamic provider sometimes misses SIGINT (11 of about 600 exits, measured on
2026-11-23), so Pulumi kills it after 5 s. If a plugin really exits too early, Pulumi's exit code is not 0. Sources:
ReleaseContext in pkg/v3/host/host.go and Close in pkg/v3/resource/plugin/plugin.go of Pulumi 3.250.0."""
_MOST_AT_ONCE = 4
"""Each engine uses about 0.5 GB of memory, including its program and plugins."""
_SECONDS = 900.0
"""Time limit of a preview. An unreachable cloud must not block the check of a pull request."""
_GRACE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Step:
    """An operation on a resource, such as "create" on an "azure-native:compute:VirtualMachine"."""

    op: str
    type: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Resources:
    """A preview's result. If there are errors, `pulumi up` would also fail."""

    steps: tuple[Step, ...]
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.op not in UNCHANGED)

    @property
    def by_operation(self) -> dict[str, int]:
        """Mapping from operation to number of resources. `same` counts all unchanged resources."""
        return dict(Counter("same" if step.op in UNCHANGED else step.op for step in self.steps))

    @property
    def by_type(self) -> dict[str, int]:
        """Mapping from type to number of resources after the update, with the most frequent type first."""
        return dict(Counter(step.type for step in self.steps if not step.op.startswith("delete")).most_common())


def read_answer(code: int, stdout: str, stderr: str, own: str) -> Resources:
    """Parse the output of a preview that ended with `code`.

    The checks' messages, which begin with `own`, and the note that the clouds are simulated are omitted, because both
    are shown elsewhere.
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
        # The cause appears only in the output of the failed program or plugin.
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
    def __init__(self) -> None:
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> tuple[int, str, str]:
        """Run pulumi and return its exit code, stdout and stderr. Runs nothing after `stop`."""
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
        with self._lock:
            self._stopped = True
            for pid in self._running:
                _interrupt(pid)


def _interrupt(pid: int) -> None:
    """Send SIGINT, so that pulumi releases the stack's lock. After _GRACE_SECONDS, end the process session."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    timer = threading.Timer(_GRACE_SECONDS, end_session, (pid,))
    timer.daemon = True
    timer.start()


def preview_all(stacks: Sequence[str], *, live: bool, tell: Callable[[str], None]) -> dict[str, Resources]:
    """Return a mapping from stack to its preview's result. Raises StackError if Pulumi is not installed."""
    with tempfile.TemporaryDirectory(prefix="trainyard-preview-") as folder, interruptible("stopping the engines"):
        engines = Engines()
        workspaces = [Workspace(stack, simulated=not live, home=Path(folder)) for stack in stacks]
        with ThreadPoolExecutor(max(1, min(len(os.sched_getaffinity(0)), _MOST_AT_ONCE))) as pool:
            pending = {pool.submit(_preview, engines, stack): stack.name for stack in workspaces}
            results: dict[str, Resources] = {}
            try:
                for done in as_completed(pending):
                    results[pending[done]] = done.result()
                    tell(f"{pending[done]}: previewed ({len(results)} of {len(stacks)})")
            except KeyboardInterrupt:
                engines.stop()
                raise
    return results


def _preview(engines: Engines, stack: Workspace) -> Resources:
    output = (0, "", "")

    def run(arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> int:
        nonlocal output
        output = engines.run(arguments, environment, folder)
        return output[0]

    stack.run = run
    try:
        stack.preview(["--json"])
    except StackError as error:
        return Resources(steps=(), errors=(str(error),))
    return read_answer(*output, own=f"{stack_file(stack.name)}:")
