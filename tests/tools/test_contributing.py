"""Every name and path in the files for contributors exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
OWNED = [line.split() for line in (ROOT / ".github" / "CODEOWNERS").read_text().splitlines() if line and line[0] != "#"]
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]


@pytest.mark.parametrize("entry", OWNED, ids=lambda entry: entry[0])
def test_a_path_with_owners_exists(entry: list[str]) -> None:
    path, *owners = entry
    assert list(ROOT.glob(path.strip("/"))), path
    assert owners
    # A user or a team, as defined on GitHub's page "About code owners" (read 2026-11-22).
    assert all(re.fullmatch(r"@[A-Za-z0-9-]+(/[A-Za-z0-9._-]+)?", owner) for owner in owners)


def test_workflows_and_stacks_have_owners() -> None:
    assert {"/.github/", "/stacks/"} <= {path for path, *_ in OWNED}


def test_hooks_download_nothing_and_run_make_check() -> None:
    assert {repo["repo"] for repo in HOOKS} == {"local"}
    hooks = [hook for repo in HOOKS for hook in repo["hooks"]]
    assert {hook["language"] for hook in hooks} == {"system"}
    assert "make check" in [hook["entry"] for hook in hooks]
