"""Every `yard` command in the documentation exists, and the runnable blocks run.

A block that starts with "```sh run" runs in a copy of the checkout, after the earlier runnable blocks on its page.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer import Exit
from typer.main import get_command

from tests.conftest import ROOT
from yard.commands.cli import app

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "cloud-init" / "README.md"])
TUTORIALS = sorted(ROOT.glob("docs/tutorials/*.md"))
VALUES = {"JOB": "7", "RANK": "1", "<stack>": "local", "...": "", "<node>": "node"}
"""Replacements for placeholders that stand for a number or that the shell cannot parse."""
USER = {"MY_NETWORK": "100.20.30.40/32", "MY_PROJECT": "my-project-1"}
"""Values that readers of the tutorials must set."""


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the info string and the content of each fenced block."""
    for found in re.finditer(r"(?ms)^```([^\n]*)\n(.*?)^```", text):
        yield found[1], found[2]


def command_lines(text: str) -> Iterator[str]:
    """Yield each line of a code block, and each inline code, that starts with `yard `."""
    indented = re.findall(r"(?m)^    (.*\S)$", text)
    for content in ["\n".join(indented), *(content for _, content in blocks(text))]:
        for line in content.replace("\\\n", " ").splitlines():
            # A line can contain several commands, a redirection or a loop.
            yield from (
                part.strip() for part in re.split(r"&&| \|\|? |;| ?>", line) if part.strip().startswith("yard ")
            )
    for inline in re.findall(r"`(yard\s[^`]+)`", re.sub(r"(?ms)^```.*?^```", "", text)):
        yield re.split(r" \|\|? | ?>", " ".join(inline.split()))[0]


def words_of(line: str) -> list[str]:
    for placeholder, value in VALUES.items():
        line = line.replace(placeholder, value)
    words = shlex.split(line.rstrip("&"), comments=True)
    # "[--provider azure|gcp]" is an optional argument with two values.
    return [re.sub(r"^\[|\]$|(?<=[a-z])\|[a-z]+", "", word) for word in words]


@cache
def yard() -> Any:
    """Return the command line. Typer takes 50 ms to build it, and the pages contain hundreds of commands."""
    return get_command(app)


def parse(words: list[str]) -> None:
    """Parse a command as `yard` would, without running it. Raises UsageError."""
    command = yard()
    if words == ["yard", "--install-completion"]:
        return  # parsing this option would write to the shell's start-up file
    parent = None
    name, rest = words[0], words[1:]
    while True:
        try:
            context = command.make_context(name, list(rest), parent=parent)
        except Exit:
            return  # --help
        command = context.command
        if not hasattr(command, "commands"):
            return
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        parent = context


def failure(line: str) -> str | None:
    words = words_of(line)
    # A sentence such as "`yard logs` prints ..." names a command without arguments, so it is not parsed.
    group = yard()
    for word in words[1:] or [""]:
        group = getattr(group, "commands", {}).get(word)
        if group is None:
            break
    else:
        return None
    try:
        parse(words)
    except Exception as error:
        return f"{line}: {getattr(error, 'message', error)}"
    return None


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_on_a_page_exist(page: Path) -> None:
    failures = [failure(line) for line in command_lines(page.read_text())]
    assert [text for text in failures if text] == []


def test_wrong_commands_are_found() -> None:
    indented, block = "    yard wait 7 && yard lgos 7\n", "```sh run\nyard submit x \\\n  --node 2\n```\n"
    lines = list(command_lines(f"`yard ps` and `yard\nnodes`\n\n{indented}\n{block}"))
    assert [line for line in lines if failure(line)] == ["yard lgos 7", "yard submit x    --node 2"]
    assert len(lines) == 5


def test_every_tutorial_has_a_runnable_block() -> None:
    assert len(TUTORIALS) >= 4
    without = [page.name for page in TUTORIALS if not any(info == "sh run" for info, _ in blocks(page.read_text()))]
    assert without == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the parts of the checkout that these commands use, with a Pulumi backend and failing cloud CLIs."""
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("components", "cloud-init", "offline", "stacks", "trainyard", "yard"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Pulumi.yaml", "__main__.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    for name in ("az", "gcloud"):
        program = root / "programs" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\necho 'ERROR: not logged in' >&2\nexit 1\n")
        program.chmod(0o755)
    (root / ".venv").symlink_to(ROOT / ".venv")
    state = root / ".trainyard"
    (state / "state").mkdir(parents=True)
    (state / "env.sh").write_text(
        f". {shlex.quote(str(ROOT))}/.trainyard/env.sh\nexport PULUMI_BACKEND_URL=file://{state}/state\n"
    )
    return root


@pytest.mark.engine
@pytest.mark.parametrize("page", TUTORIALS, ids=page_name)
def test_runnable_blocks_run(page: Path, checkout: Path) -> None:
    script = "\n".join(content for info, content in blocks(page.read_text()) if info == "sh run")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PULUMI", "TRAINYARD"))}
    done = subprocess.run(
        ["/bin/bash", "-euxo", "pipefail", "-c", f". .trainyard/env.sh\nexport PYTHONPATH=$PWD\n{script}"],
        cwd=checkout,
        env={**environment, **USER, "PATH": f"{checkout}/programs:{environment['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
