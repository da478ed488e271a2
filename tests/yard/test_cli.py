"""The command line: help, JSON output and shell completion for all commands, and the arguments passed to ssh."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tests.yard.conftest import FakeStack, printed, refused, yard
from trainyard import checkout
from trainyard.outputs import Cluster
from yard import commands as topics
from yard.commands.cli import TOPICS, app
from yard.job.launcher import LAUNCHERS
from yard.job.loader import recipe_names
from yard.stack.load import load_stack
from yard.stack.workspace import stack_names


def commands(group: Any, *before: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command, including commands in nested groups."""
    for name, command in group.commands.items():
        words = (*before, name)
        yield from commands(command, *words) if hasattr(command, "commands") else [words]


COMMANDS = sorted(map(" ".join, commands(get_command(app))))
WITHOUT_A_CLUSTER = {"checks", "hosts scan", "init", "preview", "prices update", "recipes", "schema", "size"}
"""Commands that do not read a cluster's outputs."""


def test_version_is_that_of_the_package() -> None:
    project = tomllib.loads((checkout.ROOT / "pyproject.toml").read_text())["project"]
    assert yard("--version") == (0, f"yard {project['version']}\n", "")


def test_all_command_modules_are_registered() -> None:
    folder = Path(str(topics.__file__)).parent
    with_commands = {file.stem for file in folder.glob("*.py") if "\napp = " in file.read_text()} - {"cli"}
    assert {topic.__name__.rpartition(".")[2] for topic in TOPICS} == with_commands


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_have_help_json_and_stack(command: str) -> None:
    out = printed(*command.split(), "--help")
    expected = ["--json"] if command in WITHOUT_A_CLUSTER else ["--json", "--stack", "TRAINYARD_STACK", "local"]
    assert [option for option in expected if option not in out] == []


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "submit",
        "submit hello --nodes 0",
        "submit train.py --lr 3",
        "logs x",
        "cancel",
        "hostfile --format x",
    ],
)
def test_wrong_usage_is_exit_code_2(line: str, stack: FakeStack) -> None:
    ssh = stack.program("ssh", "exit 0")
    code, _, err = yard(*line.split())
    assert code == 2
    assert ("arguments of your program follow" in " ".join(err.replace("│", " ").split())) is ("--lr" in line)
    assert ssh.calls == []


def test_dry_run_prints_the_summary_first_and_the_script_last(stack: FakeStack) -> None:
    ssh = stack.program("ssh", "exit 0")
    out = printed("submit", "hello", "--dry-run", "--nodes", "1", "--set", "A=b c", "--name", "mine")
    assert out.startswith("# the command starts once for each rank on 1 node, 1 rank per node\n")
    summary, script = out.split("# --- job.sbatch\n")
    assert script.startswith("#!/usr/bin/env bash\n# Job mine: 1 node, 1 rank, started by srun.\n")
    assert "#SBATCH" not in summary
    assert "  export A='b c'\n" in out
    assert "# --- run.sh, in the same folder\necho " in out
    assert "# --- yard.sh, in the same folder\n(" in out
    out = printed("submit", "hello", "--dry-run", "--json", "--", "more", "--json")
    assert sorted(json.loads(out)["files"]) == ["job.sbatch", "run.sh", "yard.sh"]
    assert ssh.calls == []


def test_submission_runs_ssh_once(stack: FakeStack) -> None:
    ssh = stack.program("ssh", f'cat >"{stack.root}/programs/ssh.stdin"; echo 12')
    code, out, _ = yard("submit", "hello", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["id"] == 12
    assert answer["name"] == "hello"
    assert answer["run_dir"].startswith("/shared/jobs/hello-2")
    assert len(ssh.calls) == 1
    assert b"#SBATCH --job-name=hello\n" in ssh.stdin
    code, out, err = yard("submit", "no-such", "--json")
    assert (code, err) == (1, "")
    assert "recipe not found" in json.loads(out)["error"]


@pytest.mark.parametrize(
    ("kind", "first"),
    [("deepspeed", "yard-gpu-0 slots=2"), ("mpi", "yard-gpu-0 slots=2 max_slots=2"), ("ips", "10.77.2.1")],
)
def test_hostfile_has_the_requested_format(kind: str, first: str, stack: FakeStack) -> None:
    out = printed("hostfile", "--format", kind)
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
def test_ssh_accepts_a_host_and_a_command(words: tuple[str, ...], end: list[str], stack: FakeStack) -> None:
    out = printed("ssh", "--json", *words)
    assert json.loads(out)["argv"] == ["ssh", "-F", str(stack.folder / "config"), *end]
    assert "its hosts: yard-head, yard-gpu-0, yard-gpu-1" in refused("ssh", "elsewhere")


def test_nodes_are_joined_with_the_outputs(stack: FakeStack) -> None:
    stack.program("ssh", "echo 'yard-gpu-0|down*|Not responding'; echo 'stranger|idle|none'")
    rows = {row["name"]: row for row in json.loads(yard("nodes", "--json")[1])}
    assert list(rows) == ["yard-head", "yard-gpu-0", "yard-gpu-1"]
    assert (rows["yard-gpu-0"]["state"], rows["yard-gpu-0"]["reason"]) == ("down*", "Not responding")
    assert rows["yard-gpu-1"]["state"] == "unknown"
    assert "Not responding" in yard("nodes")[1]


@pytest.mark.parametrize(("spares", "state"), [({"gpu": 1}, "spare"), ({}, "reserved")])
def test_reserved_node_of_a_group_with_spares_is_a_spare(
    spares: dict[str, int], state: str, stack: FakeStack, local: Cluster
) -> None:
    stack.deploy(replace(local, spares=spares))
    stack.program("ssh", "echo 'yard-gpu-0|reserved|none'; echo 'yard-gpu-1|idle|none'")
    assert [row["state"] for row in json.loads(yard("nodes", "--json")[1])] == ["head", state, "idle"]


def test_nodes_are_listed_before_slurm_runs(stack: FakeStack, local: Cluster) -> None:
    stack.program("ssh", "echo 'sinfo: command not found' >&2; exit 1")
    assert yard("nodes")[0] == 1
    stack.deploy(replace(local, unready="the gate on the head has not passed"))
    code, out, err = yard("nodes")
    assert (code, "yard-gpu-1" in out) == (0, True)
    assert "the states of the nodes are unknown: " in err
    assert "sinfo: command not found" in err
    assert "does not list" not in out
    assert "has not become ready: the gate on the head has not passed" in err


@pytest.mark.parametrize("words", [("roll", "gpu"), ("heal", "--perform")])
def test_job_users_are_told_which_role_a_command_needs(
    words: tuple[str, ...], stack: FakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_OUTPUTS", str(stack.root / "outputs.json"))
    err = refused(*words)
    assert f"`yard {' '.join(words).removesuffix(' gpu')}` changes machines, so it needs the role operator" in err
    monkeypatch.delenv("TRAINYARD_OUTPUTS")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "needs the role operator" in refused(*words)


def test_job_users_can_read_the_plan_of_repairs(stack: FakeStack, tmp_path: Path) -> None:
    (tmp_path / "outputs.json").write_text((stack.root / "outputs.json").read_text())
    stack.program("ssh", "case $* in *===heal===*) printf '{}\\n===heal===\\n===heal===\\n' ;; esac")
    code, _, err = yard("heal", "--outputs", str(tmp_path / "outputs.json"))
    assert code == 0, err


def complete(line: str) -> list[str]:
    """Return the completions of the last word of a command line in bash."""
    words = line.split()
    position = len(words) if line.endswith(" ") else len(words) - 1
    environment = {"COMP_WORDS": line, "COMP_CWORD": str(position), "_YARD_COMPLETE": "complete_bash"}
    result = CliRunner().invoke(app, prog_name="yard", env=environment)
    assert result.exit_code == 0
    return result.stdout.split()


def test_commands_and_options_are_completed() -> None:
    assert complete("yard re") == ["recipes", "resume", "refresh", "reproduce"]
    assert complete("yard hosts ") == ["scan", "forget"]
    assert complete("yard submit --no-") == ["--no-code"]


@pytest.mark.parametrize("line", ["yard submit --stack ", "yard preview ", "yard bench nccl --stack "])
def test_stacks_are_completed(line: str) -> None:
    assert complete(line) == stack_names()
    assert complete(line + "azure-h") == ["azure-h100"]


def test_recipes_and_job_files_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "train.log", "job.sbatch"):
        (tmp_path / name).touch()
    assert complete("yard submit tr") == ["train-tiny", "train.py"]
    assert complete("yard submit ") == [*recipe_names(), "job.sbatch", "train.py"]
    assert complete("yard recipes ") == recipe_names()
    assert complete("yard submit ./") == []  # the shell completes file names
    assert complete("yard submit train.py --launcher ") == list(LAUNCHERS)


def test_hosts_are_completed_from_the_cache(stack: FakeStack) -> None:
    assert complete("yard ssh ") == []
    load_stack("local")
    calls = len(stack.pulumi.calls)
    assert complete("yard ssh ") == ["yard-gpu-0", "yard-gpu-1", "yard-head"]
    assert complete("yard submit --group ") == ["gpu"]
    assert complete("yard ssh --stack other ") == []
    assert len(stack.pulumi.calls) == calls
