"""Every file, heading and list named in the documentation exists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from health.node import load_checks
from typer.main import get_command

from components.platforms import PLATFORMS
from tests.conftest import ROOT
from yard.commands.cli import app
from yard.doctor.checks import CHECKS
from yard.environments.definition import environment_names
from yard.job.launcher import LAUNCHERS

PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md"), ROOT / "cloud-init" / "README.md"]
)
TOP = {path.name for path in ROOT.iterdir()} - {".git", ".trainyard", ".venv"}
STAGES = ROOT / "cloud-init" / "files" / "usr" / "local" / "lib" / "trainyard" / "stages"


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def paths_in(text: str) -> set[str]:
    """Return the repository paths in backticks, with `<name>` in a path replaced by `*`."""
    quoted = {re.sub(r"<[a-z]+>", "*", word) for word in re.findall(r"`([^`\s]+)`", text)}
    return {word.rstrip("/") for word in quoted if word.split("/")[0] in TOP and "NAME" not in word}


def test_tests_named_in_the_design_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "design.md").read_text()))
    code = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert [name for name in sorted(named) if f"def {name}(" not in code] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_named_paths_links_and_targets_exist(page: Path) -> None:
    assert [path for path in sorted(paths_in(page.read_text())) if not list(ROOT.glob(path))] == []
    links = re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)", page.read_text())
    for link, anchor in links:
        target = (page.parent / link).resolve() if link else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    assert set(re.findall(r"`make ([a-z-]+)`", page.read_text())) <= targets


def first_column(page: str, heading: str) -> list[str]:
    """Return the first cell of each row in the first table after a heading on a page."""
    section = (ROOT / page).read_text().partition(heading)[2]
    table = re.search(r"(?m)^\| ?-+.*\n((?:\|.*\n)+)", section)
    assert table, f"{page} has no table after {heading}"
    return [line.split("|")[1].strip().strip("`") for line in table[1].splitlines()]


def test_every_platform_has_a_page() -> None:
    assert set(PLATFORMS) <= {page.stem for page in ROOT.glob("docs/platforms/*.md")}


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        ("docs/jobs.md", "## The launch matrix", LAUNCHERS),
        ("docs/environments.md", "# Python environments", environment_names()),
        ("cloud-init/README.md", "\n| stage |", [path.name for path in STAGES.iterdir()]),
        ("docs/jobs-tools.md", "`yard doctor`", CHECKS),
        ("docs/health.md", "## Checks", load_checks()),
    ],
)
def test_a_table_lists_every_name(page: str, heading: str, names: Iterable[str]) -> None:
    listed = [name.strip("` ") for cell in first_column(page, heading) for name in cell.split(",")]
    assert sorted(listed) == sorted(names)


def test_every_command_is_listed() -> None:
    cells = " ".join(first_column("docs/commands.md", "# yard"))
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert [name for name in commands if not re.search(rf"\b{name}\b", cells)] == []


ELSEWHERE = (
    "sinfo -R",
    "QUOTA_EXCEEDED",
    "exceeding approved",
    "Permission denied",
    "the stack is currently locked",
    "failed to load checkpoint: EOF",
    "Low socket*core*thread count",
    "TY:",
    "PENDING (BeginTime)",
    "use_libuv was requested",
    "[c10d] The server could not be initialized",
    "Not responding",
    "Stale file handle",
    "Watchdog caught collective operation timeout",
    "NET/Socket",
    "NET/IB",
    "CUDA out of memory",
    "Bus error",
    "/shared does not answer",
)
"""Starts of messages that the code does not contain, because other programs print them or they are composed."""


def test_messages_of_troubleshooting_are_current() -> None:
    files = [
        file
        for name in ("trainyard", "components", "yard", "cloud-init", "offline")
        for file in (ROOT / name).rglob("*")
    ]
    texts = [file.read_text(errors="ignore") for file in files if file.is_file() and file.suffix != ".pyc"]
    # Joins adjacent string literals of a message.
    code = "".join(re.sub(r'"\n *f?"', "", text) for text in texts)
    rows = (ROOT / "docs" / "troubleshooting.md").read_text().splitlines()
    messages = re.findall(r"`([^`]+)`", "".join(row.split("|")[1] for row in rows if row.startswith("| ")))
    parts = [part.strip() for message in messages for part in re.split(r"\.\.\.|<\w+>", message)]
    assert [part for part in parts if part not in code and not part.startswith(ELSEWHERE)] == []
