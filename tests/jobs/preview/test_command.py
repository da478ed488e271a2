"""The command as a whole: its options, and which stacks reach the engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs.cli import app
from jobs.preview import command
from jobs.preview.describe import describe
from jobs.preview.resources import Resources


def yard(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for the engine, which finds nothing to do; the stacks that reach it are listed."""
    asked: list[str] = []

    def preview_all(stacks: Sequence[str], *, live: bool, tell: Callable[[str], None]) -> dict[str, Resources]:
        asked.extend(stacks)
        tell("working")
        return {stack: Resources(steps=()) for stack in stacks}

    monkeypatch.setattr(command, "preview_all", preview_all)
    return asked


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("local", "--all"),
        ("no-such",),
        ("../local",),
        ("local", "--offline", "--live"),
        ("local", "--json", "--markdown"),
        ("local", "--against", "no-such-revision"),
    ],
)
def test_wrong_usage_runs_nothing(words: tuple[str, ...], engine: list[str]) -> None:
    assert yard("preview", *words)[0] == 2
    assert engine == []


def test_progress_is_on_stderr_and_json_alone_on_stdout(engine: list[str]) -> None:
    code, out, err = yard("preview", "local", "local", "--json")
    assert code == 0
    assert [stack["stack"] for stack in json.loads(out)["stacks"]] == ["local"]
    assert "working" in err


def test_a_bad_stack_does_not_keep_the_others_from_being_seen(
    engine: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "Pulumi.gcp-a2.yaml").write_bytes(b"\xff\xfe")
    monkeypatch.setattr(
        command, "describe", lambda stack: describe(stack, tmp_path) if stack == "gcp-a2" else describe(stack)
    )
    code, out, _ = yard("preview", "gcp-a2", "local", "--json")
    bad, good = json.loads(out)["stacks"]
    assert code == 1
    assert bad["problems"][0]["rule"] == "is not UTF-8 text"
    assert good["fine"]
    assert engine == ["local"]
