"""Parses the output of `pulumi preview --json`. Resource inputs are discarded, because they can be secret."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

UNCHANGED = frozenset({"same", "read", "discard"})
"""Operations that change no resource. `discard` removes a read-only resource from the state."""
_FALSE_ALARM = re.compile(r"Detected that \S+ exited prematurely")
"""Pulumi reports this for a working plugin if another plugin needs more than 5 s to exit, because all plugins share one
time limit for the Cancel request. Python's dynamic provider sometimes misses SIGINT (11 of about 600 exits, measured on
2026-11-23), and Pulumi kills it after 5 s. If a plugin exits during a preview, Pulumi's exit code is not 0. Sources:
ReleaseContext in pkg/v3/host/host.go and Close in pkg/v3/resource/plugin/plugin.go of Pulumi 3.250.0."""


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
