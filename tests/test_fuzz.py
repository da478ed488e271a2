"""Ten thousand stack files that somebody might leave behind: each a plan or a list of problems, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.errors import Problem, StackFileError
from components.stackfile import read_stack
from jobs.preview.describe import describe
from tests.stack_texts import STACKS, stack_bytes

_FEW = settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
_LONGEST = 2000
"""Characters of a problem that somebody still reads."""
_MANY = settings(_FEW, max_examples=10_000)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the files are written, one after the other."""
    return tmp_path_factory.mktemp("fuzz") / "Pulumi.x.yaml"


def judge(file: Path, content: bytes) -> None:
    """Read the file; whatever comes out must be of use."""
    file.write_bytes(content)
    problems: tuple[Problem, ...] = ()
    try:
        assert read_stack(file).plan.workers
        assert describe("x", file.parent)["plan"] is not None
    except StackFileError as error:
        problems = error.problems
        assert str(error).count("\n") == len(problems) > 0  # noqa: PT017  (both ways out are right)
    for problem in problems:
        line = problem.line(str(file))
        assert line.startswith(f"{file}:{problem.path}: ")
        assert all((problem.path, problem.rule, problem.fix))
        assert line.isprintable(), line
        assert len(line) < _LONGEST


@given(content=stack_bytes())
@_FEW
def test_a_broken_stack_file_is_answered_in_words(file: Path, content: bytes) -> None:
    judge(file, content)


@pytest.mark.engine
@pytest.mark.full
@given(content=stack_bytes())
@_MANY
def test_ten_thousand_stack_files_are_answered_in_words(file: Path, content: bytes) -> None:
    judge(file, content)


@pytest.mark.engine
@pytest.mark.full
@given(content=st.binary(max_size=300))
@settings(_FEW, max_examples=1000)
def test_bytes_without_a_meaning_are_answered_in_words(file: Path, content: bytes) -> None:
    judge(file, content)


@pytest.mark.parametrize("stack", STACKS, ids=lambda file: file.stem)
def test_what_the_changes_begin_with_is_well(stack: Path, file: Path) -> None:
    judge(file, stack.read_bytes())
