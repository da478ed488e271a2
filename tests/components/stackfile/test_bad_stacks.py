"""Each stack file in bad_stacks.txt is refused with exactly the problems in its first lines.

In bad_stacks.txt, the line `=== <name>` is before each stack file. The format of a problem is `# expect: <path> | <part
of the message>`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from components.plan.check import Computer
from components.stackfile.read import parse_stack
from trainyard.errors import StackFileError

COMPUTER = Computer(free_memory=lambda plan: 24 * 1024, used_ports=lambda plan, ports: ())
_PARTS = re.split(r"(?m)^=== (\S+)\n", (Path(__file__).parents[2] / "bad_stacks.txt").read_text())
STACKS = dict(zip(_PARTS[1::2], _PARTS[2::2], strict=True))
"""The text of each bad stack file by name."""
_MARK = "# expect: "
PLANTED = "hunter2"
"""A value in the files that could be a secret. Messages must not contain it."""


def expected(text: str) -> list[tuple[str, str]]:
    """Return the expected problems as (path, part of the message)."""
    lines = (line.removeprefix(_MARK) for line in text.splitlines() if line.startswith(_MARK))
    return [(path.strip(), words.strip()) for path, _, words in (line.partition(" | ") for line in lines)]


def test_there_are_at_least_130_stacks() -> None:
    assert len(STACKS) >= 130


@pytest.mark.parametrize("name", STACKS)
def test_bad_stack_is_refused(name: str) -> None:
    text = STACKS[name]
    problems_expected = expected(text)
    assert problems_expected, "the file expects no problem"
    with pytest.raises(StackFileError) as caught:
        parse_stack(text, "stacks/Pulumi.bad.yaml", COMPUTER)
    problems = caught.value.problems
    assert sorted(problem.path for problem in problems) == sorted(path for path, _ in problems_expected)
    for path, words in problems_expected:
        assert words, f"no message is expected for {path}"
        lines = [problem.line("f") for problem in problems if problem.path == path]
        assert any(words in line for line in lines), f"'{words}' is not in {lines}"
    assert PLANTED not in str(caught.value)
    for line in str(caught.value).splitlines()[1:]:
        assert line.startswith("  stacks/Pulumi.bad.yaml:")
        assert ": " in line
        assert ". Fix: " in line
