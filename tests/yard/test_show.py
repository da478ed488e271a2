"""yard's terminal output: text from nodes and jobs cannot contain escape sequences."""

from __future__ import annotations

import ast
import io
import json
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from rich.text import Text

from tests.conftest import ROOT
from trainyard.outputs import Cluster
from trainyard.printable import printable
from yard import show
from yard.doctor.checks import report
from yard.doctor.findings import HostProblem
from yard.run import jobs
from yard.run.queue import parse_one

CLEAR = "\x1b[2J"
TITLE = "\x1b]0;owned\x07"
RED = "\x1b[31m"
ESCAPE = "\x1b"
SEPARATE = (
    "trainyard/relay.py",
    "yard/run/dataset.py",
    "yard/environments/build.py",
    "yard/run/goodput.py",
    "yard/run/runner/",
    "yard/run/query.py",
    "yard/workloads/",
)
"""Programs that run on the cluster, and the ProxyCommand for ssh. yard/show.py prints the output of these programs."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replace stdout and stderr with a terminal. A fixture cannot do this, because pytest replaces them later."""
    made = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    return made


@pytest.mark.parametrize(
    ("text", "plain", "coloured"),
    [
        ("a\tb\nc é 中", "a\tb\nc é 中", "a\tb\nc é 中"),
        (f"{RED}x", r"\x1b[31mx", f"{RED}x"),
        (CLEAR, r"\x1b[2J", r"\x1b[2J"),
        (TITLE, r"\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
        ("\x9b2J", r"\x9b2J", r"\x9b2J"),
        ("a\rb\x08\x7f\x00", r"a\rb\x08\x7f\x00", r"a\rb\x08\x7f\x00"),
        ("\u202egnp", r"\u202egnp", r"\u202egnp"),
        ("\udcff", r"\udcff", r"\udcff"),
        ("\x1b[31;1\x1b[m", "\\x1b[31;1\\x1b[m", "\\x1b[31;1\x1b[m"),
    ],
)  # fmt: skip
def test_control_characters_are_escaped(text: str, plain: str, coloured: str) -> None:
    assert printable(text) == plain
    assert printable(text, colours=True) == coloured


def test_logs_keep_only_colours_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = f"{RED}loss 1{CLEAR}\r\n10%\r20%\n"
    show.payload(log)
    assert capsys.readouterr().out == log
    terminal = open_terminal(monkeypatch)
    show.payload(log)
    assert terminal.getvalue() == f"{RED}loss 1\\x1b[2J\n10%\n20%\n\x1b[0m\n"


def test_followed_log_keeps_only_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    job = parse_one(
        "JobId=7 JobName=x UserId=t(1) NumNodes=1 RunTime=00:00:01 Restarts=0 JobState=FAILED Reason=None ExitCode=1:0 "
        f"NodeList={CLEAR}n"
    )

    def follow(_remote: Any, _job: int, _rank: int, shown: Callable[[str], None], _note: Any) -> Any:
        shown(f"{RED}step{TITLE}")
        return job

    assert job is not None
    monkeypatch.setattr(jobs, "follow", follow)
    monkeypatch.setattr(jobs, "node_faults", lambda *_: {7: f"{CLEAR}fault"})
    jobs.follow_log(None, 7, 0, False, quiet=False)  # type: ignore[arg-type]
    assert terminal.getvalue().startswith(f"{RED}step\\x1b]0;owned\\x07")
    assert TITLE not in terminal.getvalue()
    assert CLEAR not in terminal.getvalue()


def test_node_reasons_are_escaped(monkeypatch: pytest.MonkeyPatch, local: Cluster) -> None:
    terminal = open_terminal(monkeypatch)
    states = {node.name: ("down", f"{CLEAR}{RED}{TITLE}gone") for node in local.nodes}
    remote: Any = SimpleNamespace(stack=SimpleNamespace(cluster=local))
    monkeypatch.setattr(jobs, "scheduler_of", lambda _name: SimpleNamespace(nodes=lambda _remote: states))
    jobs.list_nodes(remote, False)
    written = terminal.getvalue()
    assert r"\x1b[2J\x1b[31m\x1b]0;owned\x07gone" in written
    assert CLEAR not in written
    assert TITLE not in written


def test_findings_json_and_tables_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    finding = HostProblem(node="n0", what=f"{CLEAR}what", cause=f"{TITLE}cause", fix=f"{RED}fix")
    show.say(report({"names": [finding]}, 1, 0, {"names": [f"{CLEAR}fact"]}))
    assert "what" in terminal.getvalue()
    assert ESCAPE not in terminal.getvalue()
    terminal.truncate(terminal.seek(0))
    show.say_json({"line": CLEAR + "\x9b\u202e"})
    assert json.loads(terminal.getvalue()) == {"line": CLEAR + "\x9b\u202e"}
    assert terminal.getvalue().isascii()
    assert ESCAPE not in terminal.getvalue()
    show.console().print(Text(f"a{CLEAR}", style="red"))
    assert CLEAR not in terminal.getvalue()
    assert RED in terminal.getvalue()


def writers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in {"print", "Console", "typer.echo", "typer.secho", "click.echo", "rich.print"} or (
            name.startswith(("sys.stdout.", "sys.stderr.")) and name.rpartition(".")[2] in {"write", "writelines"}
        ):
            yield f"line {node.lineno}: {name}"


def test_only_show_prints() -> None:
    found = {
        f"{path.relative_to(ROOT)} {call}"
        for path in sorted((ROOT / "yard").rglob("*.py"))
        if path.name != "show.py" and not str(path.relative_to(ROOT)).startswith(SEPARATE)
        for call in writers(ast.parse(path.read_text()))
    }
    assert not found
    assert all((ROOT / place).exists() for place in SEPARATE)
    assert list(writers(ast.parse((ROOT / "yard/show.py").read_text())))


def test_lines_in_a_pipe_end_without_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    show.table(("NAME", "TEXT"), [("a", "short"), ("b", "x " * 150)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3
    assert [line for line in lines if line != line.rstrip()] == []
