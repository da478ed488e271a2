"""A random stack file results in a plan or a list of problems, but never in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.stackfile.read import read_stack
from tests.stack_texts import STACKS, stack_bytes
from trainyard.errors import Problem, StackFileError
from yard.preview.describe import describe

_FEW = settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
_MAX_LENGTH = 2000
"""Maximum length of a problem message in characters."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "Pulumi.x.yaml"


def check_stack_file(file: Path, content: bytes) -> None:
    """Assert that the content results in a plan or in readable problems."""
    file.write_bytes(content)
    problems: tuple[Problem, ...] = ()
    try:
        assert read_stack(file).plan.workers
        assert describe("x", file.parent).plan is not None
    except StackFileError as error:
        problems = error.problems
        assert str(error).count("\n") == len(problems) > 0  # noqa: PT017  (both results are valid)
    for problem in problems:
        line = problem.line(str(file))
        assert line.startswith(f"{file}:{problem.path}: ")
        assert all((problem.path, problem.rule, problem.fix))
        assert line.isprintable(), line
        assert len(line) < _MAX_LENGTH


@given(content=stack_bytes() | st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
@_FEW
def test_random_and_changed_stack_files(file: Path, content: bytes) -> None:
    check_stack_file(file, content)


@pytest.mark.engine
@pytest.mark.full
@given(content=stack_bytes() | st.binary(max_size=300))
@settings(_FEW, max_examples=11_000)
def test_eleven_thousand_stack_files(file: Path, content: bytes) -> None:
    check_stack_file(file, content)


@pytest.mark.parametrize("stack", STACKS, ids=lambda file: file.stem)
def test_unchanged_stack_files(stack: Path, file: Path) -> None:
    check_stack_file(file, stack.read_bytes())
