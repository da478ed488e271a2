"""The command `yard preview`: its options, and the stacks for which it runs the engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from yard.commands.cli import app
from yard.preview import report
from yard.preview.describe import describe
from yard.preview.engine import Resources


def yard(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the engine with a fake that reports no steps. Return the list of previewed stacks."""
    previewed: list[str] = []

    def preview_all(stacks: Sequence[str], *, live: bool, tell: Callable[[str], None]) -> dict[str, Resources]:
        previewed.extend(stacks)
        tell("working")
        return {stack: Resources(steps=()) for stack in stacks}

    monkeypatch.setattr(report, "preview_all", preview_all)
    return previewed


@pytest.mark.parametrize(
    "arguments",
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
def test_wrong_usage_runs_nothing(arguments: tuple[str, ...], engine: list[str]) -> None:
    assert yard("preview", *arguments)[0] == 2
    assert engine == []


def test_stdout_has_only_json_and_stderr_the_progress(engine: list[str]) -> None:
    code, out, err = yard("preview", "local", "local", "--json")
    assert code == 0
    assert [stack["stack"] for stack in json.loads(out)["stacks"]] == ["local"]
    assert "working" in err


def test_other_stacks_are_previewed_beside_a_bad_one(
    engine: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "Pulumi.gcp-a2.yaml").write_bytes(b"\xff\xfe")
    monkeypatch.setattr(
        report,
        "describe",
        lambda stack, computer: describe(stack, tmp_path) if stack == "gcp-a2" else describe(stack),
    )
    code, out, _ = yard("preview", "gcp-a2", "local", "--json")
    bad, good = json.loads(out)["stacks"]
    assert code == 1
    assert bad["problems"][0]["rule"] == "is not UTF-8 text"
    assert good["fine"]
    assert engine == ["local"]
