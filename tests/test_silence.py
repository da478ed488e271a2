"""`silence:` quiets warnings and notes, never errors, and takes only ids that there are."""

from __future__ import annotations

import pytest

from components.errors import StackFileError
from components.stackfile import parse_stack

_STACK = """
config:
  trainyard:cluster:
    name: c
    platform: {provider: local}
    head: {machine: vm-gpu2}
    nodes: {gpu: {machine: vm-gpu2, count: 1}}
"""


@pytest.fixture(autouse=True)
def _enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("components.platforms.local.fit.available_mib", lambda: 24 * 1024)


def test_a_warning_is_heard_until_it_is_silenced() -> None:
    assert [remark.check for remark in parse_stack(_STACK, "f").remarks] == ["head-gpus-idle"]
    assert parse_stack(f"{_STACK}    silence: [head-gpus-idle]\n", "f").remarks == ()


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("user-data-fits", "only warnings and notes can be silenced"),
        ("head-gpu-idle", "write head-gpus-idle"),
        ("gcp-zone", "no check of this stack"),
    ],
)
def test_errors_and_unknown_ids_cannot_be_silenced(check: str, words: str) -> None:
    with pytest.raises(StackFileError) as caught:
        parse_stack(f"{_STACK}    silence: [{check}]\n", "f")
    [problem] = caught.value.problems
    assert problem.path == "cluster.silence.0"
    assert words in problem.line("f")
