"""`silence:` of a stack file: which warnings and notes it does not want to hear, and that it may not silence errors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from components.checks.base import Finding, Level
from components.errors import Problem
from components.explain import nearest


def silence_problems(silence: Iterable[str], levels: Mapping[str, Level]) -> Iterator[Problem]:
    """Yield what is wrong with the ids to be silenced; `levels` are those of every check that the stack is put to."""
    for place, check in enumerate(silence):
        path = f"cluster.silence.{place}"
        if check not in levels:
            quiet = [known for known, level in levels.items() if level is not Level.ERROR]
            meant = nearest(check, quiet)
            yield Problem(
                path=path,
                rule=f"no check of this stack has the id {check}",
                fix=f"write {meant}" if meant else f"use one of {', '.join(quiet)}, or remove it",
            )
        elif levels[check] is Level.ERROR:
            yield Problem(
                path=path,
                rule=f"{check} finds errors, and only warnings and notes can be silenced",
                fix="remove it, and correct what the check finds",
            )


def unless_silenced(found: Iterable[Finding], silence: Collection[str]) -> Iterator[Finding]:
    """Yield the findings that the stack wants to hear."""
    return (finding for finding in found if finding.check not in silence)
