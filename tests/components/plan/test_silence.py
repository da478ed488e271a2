"""The field `silence` in a stack file."""

from __future__ import annotations

import pytest

from components.stackfile.read import parse_stack
from trainyard.errors import StackFileError

_STACK = """
config:
  trainyard:cluster:
    name: c
    platform: {provider: local}
    head: {machine: vm-gpu2}
    nodes: {gpu: {machine: vm-gpu2, count: 1}}
"""


def test_silences_a_warning() -> None:
    assert [finding.check for finding in parse_stack(_STACK, "f").findings] == ["head-gpus-idle"]
    assert parse_stack(f"{_STACK}    silence: [head-gpus-idle]\n", "f").findings == ()


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("user-data-fits", "only warnings and notes can be silenced"),
        ("head-gpu-idle", "write head-gpus-idle"),
        ("gcp-zone", "no check for this stack"),
    ],
)
def test_refuses_errors_and_unknown_ids(check: str, words: str) -> None:
    with pytest.raises(StackFileError) as caught:
        parse_stack(f"{_STACK}    silence: [{check}]\n", "f")
    [problem] = caught.value.problems
    assert problem.path == "cluster.silence.0"
    assert words in problem.line("f")
