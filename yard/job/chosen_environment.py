"""The key `environment` of a job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainyard.errors import Problem
from yard.environments.definition import NO_ENVIRONMENT, environment_names, is_file, unknown

_GPUS = "gpus"


@dataclass(frozen=True, kw_only=True)
class ChosenEnvironment:
    """The name of an environment, or the path to a requirements file relative to the job file.

    With `gpus_only`, jobs on nodes without GPUs use the Python of the nodes.
    """

    name: str
    gpus_only: bool = False


def environment_rule(value: Any) -> Iterator[Problem]:
    """Check the value: NAME, FILE, none, or `{gpus: NAME}`."""
    name = value.get(_GPUS) if isinstance(value, dict) and set(value) == {_GPUS} else value
    if not isinstance(name, str) or not name:
        fix = "for example `environment: torch`, or `environment: {gpus: torch}` for nodes with GPUs only"
        yield Problem(path="", rule="must be an environment or a requirements file", fix=fix)
    elif not is_file(name) and name not in (*environment_names(), NO_ENVIRONMENT):
        problem = unknown(name)
        yield Problem(path="", rule=problem.rule, fix=problem.fix)


def read_environment(value: Any) -> ChosenEnvironment | None:
    """Return the chosen environment, or None for `none`. The value must have passed `environment_rule`."""
    if value == NO_ENVIRONMENT:
        return None
    return (
        ChosenEnvironment(name=value[_GPUS], gpus_only=True)
        if isinstance(value, dict)
        else ChosenEnvironment(name=value)
    )
