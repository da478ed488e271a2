"""What the engine says that it would do, from the JSON of `pulumi preview --json`. Pure.

Only operations, types and names are taken over: inputs may hold what is nobody else's business.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

UNCHANGED = frozenset({"same", "read", "discard"})
"""Operations that change nothing; `discard` forgets what was read."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation on one resource ("create", "azure-native:compute:VirtualMachine", "opt-gpu-0")."""

    op: str
    type: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The engine's answer. `errors` is empty if and only if it would go ahead; `warnings` are its own words."""

    steps: tuple[Step, ...]
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[Step, ...]:
        """The steps that change something."""
        return tuple(step for step in self.steps if step.op not in UNCHANGED)

    @property
    def by_operation(self) -> dict[str, int]:
        """How many resources meet which operation, unchanged ones counted as `same`."""
        return dict(Counter("same" if step.op in UNCHANGED else step.op for step in self.steps))

    @property
    def by_type(self) -> dict[str, int]:
        """How many resources of which type there would be, the most numerous first."""
        return dict(Counter(step.type for step in self.steps if not step.op.startswith("delete")).most_common())


def read_answer(code: int, stdout: str, stderr: str, own: str) -> Resources:
    """Return what the engine answered with exit code `code`.

    Left out is what a preview says itself: our checks' remarks, which begin with `own`, and that it is offline.
    """
    try:
        answer = json.loads(stdout)
    except ValueError:
        return Resources(steps=(), errors=(_last_words(stderr or stdout) or f"pulumi ended with exit code {code}",))
    said = [entry for entry in answer.get("diagnostics", []) if not _words(entry).startswith((own, "offline:"))]
    errors = tuple(_words(entry) for entry in said if entry.get("severity") == "error")
    if errors:
        # What a program or a plugin wrote before it failed: without it, its failure has no reason.
        errors += tuple(_words(entry) for entry in said if entry.get("severity") == "info#err" and _words(entry))
    elif code:
        errors = (_last_words(stderr) or f"pulumi ended with exit code {code}",)
    return Resources(
        steps=tuple(_steps(answer)),
        errors=errors,
        warnings=tuple(_words(entry) for entry in said if entry.get("severity") == "warning"),
    )


def _steps(answer: dict[str, Any]) -> Iterator[Step]:
    for step in answer.get("steps", []):
        # urn:pulumi:STACK::PROJECT::PARENT$TYPE::NAME
        *_, kinds, name = str(step["urn"]).split("::", 3)
        yield Step(op=str(step["op"]), type=kinds.rpartition("$")[2], name=name)


def _words(entry: dict[str, Any]) -> str:
    return str(entry.get("message", "")).strip().removeprefix(f"{entry.get('severity')}:").strip()


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("error:")]
    return (told or lines or [""])[-1].removeprefix("error:").strip()
