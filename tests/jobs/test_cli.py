"""The command line as a whole: every command has help and JSON, and words reach ssh as they must."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import jobs.commands
from jobs.cli import TOPICS, app
from tests.jobs.conftest import FakeStack, MakeProgram


def commands(group: Any, *before: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command, those of a group within a group, too."""
    for name, command in group.commands.items():
        words = (*before, name)
        yield from commands(command, *words) if hasattr(command, "commands") else [words]


COMMANDS = sorted(commands(get_command(app)))
WITHOUT_A_CLUSTER = {
    ("checks",),
    ("hosts", "scan"),
    ("preview",),
    ("prices", "update"),
    ("recipes",),
    ("schema",),
    ("size",),
}
"""Commands that read stack files or the catalog, and no cluster's outputs."""


def yard(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_no_topic_is_forgotten() -> None:
    folder = Path(jobs.commands.__file__).parent
    with_commands = {file.stem for file in folder.glob("*.py") if "\ndef register(" in file.read_text()}
    assert {topic.__name__.rpartition(".")[2] for topic in TOPICS} == with_commands


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_json_and_a_stack(command: tuple[str, ...]) -> None:
    code, out, _ = yard(*command, "--help")
    assert code == 0
    expected = ["--json"] if command in WITHOUT_A_CLUSTER else ["--json", "--stack", "TRAINYARD_STACK", "local"]
    assert [option for option in expected if option not in out] == []


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nonsense",),
        ("submit",),
        ("submit", "hello", "--nodes", "0"),
        ("logs", "x"),
        ("cancel",),
        ("hostfile", "--format", "x"),
    ],
)
def test_wrong_usage_is_exit_code_2(words: tuple[str, ...], stack: FakeStack, program: MakeProgram) -> None:
    ssh = program("ssh", "exit 0")
    code, _, _ = yard(*words)
    assert code == 2
    assert ssh.calls == []


def test_a_dry_run_prints_the_script_and_sends_nothing(stack: FakeStack, program: MakeProgram) -> None:
    ssh = program("ssh", "exit 0")
    code, out, _ = yard("submit", "hello", "--dry-run", "--nodes", "1", "--set", "A=b c", "--name", "mine")
    assert code == 0
    assert out.startswith("#!/usr/bin/env bash\n# Job mine: 1 node, 1 rank, started by srun.\n")
    assert "  export A='b c'\n" in out
    assert "# --- run.sh, beside it\necho " in out
    code, out, _ = yard("submit", "hello", "--dry-run", "--json", "--", "more", "--json")
    assert code == 0
    assert sorted(json.loads(out)["files"]) == ["job.sbatch", "run.sh"]
    assert ssh.calls == []


def test_a_submission_is_one_call_of_ssh(stack: FakeStack, program: MakeProgram) -> None:
    ssh = program("ssh", f'cat >"{stack.root}/programs/ssh.stdin"; echo 12')
    code, out, _ = yard("submit", "hello", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["id"] == 12
    assert answer["name"] == "hello"
    assert answer["run_dir"].startswith("/shared/jobs/hello-2")
    assert len(ssh.calls) == 1
    assert b"#SBATCH --job-name=hello\n" in ssh.stdin


def test_errors_are_json_where_json_was_asked_for(stack: FakeStack) -> None:
    code, out, err = yard("submit", "no-such", "--json")
    assert code == 1
    assert "no recipe of this name" in json.loads(out)["error"]
    assert err == ""


@pytest.mark.parametrize(
    ("kind", "first"),
    [("deepspeed", "yard-gpu-0 slots=2"), ("mpi", "yard-gpu-0 slots=2 max_slots=2"), ("ips", "10.77.2.1")],
)
def test_host_files(kind: str, first: str, stack: FakeStack) -> None:
    code, out, _ = yard("hostfile", "--format", kind)
    assert code == 0
    assert out.splitlines()[0] == first
    assert len(out.splitlines()) == 2
    assert json.loads(yard("hostfile", "--format", kind, "--json")[1])["lines"] == out.splitlines()


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ((), ["yard-head"]),
        (("--", "hostname"), ["yard-head", "hostname"]),
        (("yard-gpu-1", "--admin", "--", "echo $HOME | wc"), ["yard-gpu-1-admin", "echo $HOME | wc"]),
        (("yard-gpu-0", "--", "echo", "a b", "--json"), ["yard-gpu-0", "echo 'a b' --json"]),
    ],
)
def test_ssh_takes_a_host_and_a_command(words: tuple[str, ...], end: list[str], stack: FakeStack) -> None:
    code, out, _ = yard("ssh", "--json", *words)
    assert code == 0
    assert json.loads(out)["argv"] == ["ssh", "-F", str(stack.folder / "config"), *end]


def test_nodes_are_joined_with_the_outputs(stack: FakeStack, program: MakeProgram) -> None:
    program("ssh", "echo 'yard-gpu-0|down*|Not responding'; echo 'stranger|idle|none'")
    rows = {row["name"]: row for row in json.loads(yard("nodes", "--json")[1])}
    assert list(rows) == ["yard-head", "yard-gpu-0", "yard-gpu-1"]
    assert (rows["yard-gpu-0"]["state"], rows["yard-gpu-0"]["reason"]) == ("down*", "Not responding")
    assert rows["yard-gpu-1"]["state"] == "unknown"
    assert "Not responding" in yard("nodes")[1]


def test_the_command_line_starts_without_pulumi() -> None:
    """`yard submit` must answer at once: pulumi alone takes longer to import than all the rest."""
    check = "import sys, jobs.cli, jobs.submit, jobs.listing, jobs.stack; print(sorted(sys.modules))"
    said = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
    assert "'jobs.submit'" in said
    for heavy in ("pulumi", "pydantic", "rich", "grpc"):
        assert f"'{heavy}'" not in said
