"""Every file under bad_stacks/ is refused with exactly the problems that its first lines announce.

A first line reads `# expect: <path> | <words of the message>`; one for each problem.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from components.errors import StackFileError
from components.stackfile import parse_stack

FOLDER = Path(__file__).parent / "bad_stacks"
FILES = sorted(FOLDER.glob("*.yaml"))
_MARK = "# expect: "
PLANTED = "hunter2"
"""Stands in bad files where a person may have put a secret by mistake; no message may show it."""


@pytest.fixture(autouse=True)
def _some_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits on this machine must not depend on which machine runs the test."""
    monkeypatch.setattr("components.platforms.local.fit.available_mib", lambda: 24 * 1024)


def expected(text: str) -> list[tuple[str, str]]:
    """Return (path, words) for each announced problem."""
    lines = (line.removeprefix(_MARK) for line in text.splitlines() if line.startswith(_MARK))
    return [(path.strip(), words.strip()) for path, _, words in (line.partition(" | ") for line in lines)]


def test_there_are_enough_of_them() -> None:
    assert len(FILES) >= 40


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_refused_with_exactly_these_problems(file: Path) -> None:
    text = file.read_text()
    announced = expected(text)
    assert announced, "the file announces no problem"
    with pytest.raises(StackFileError) as caught:
        parse_stack(text, "stacks/Pulumi.bad.yaml")
    problems = caught.value.problems
    assert sorted(problem.path for problem in problems) == sorted(path for path, _ in announced)
    for path, words in announced:
        assert words, f"no words are announced for {path}"
        lines = [problem.line("f") for problem in problems if problem.path == path]
        assert any(words in line for line in lines), f"'{words}' is not in {lines}"
    assert PLANTED not in str(caught.value)
    for line in str(caught.value).splitlines()[1:]:
        assert line.startswith("  stacks/Pulumi.bad.yaml:")
        assert ": " in line
        assert ". Fix: " in line
