"""The command line: help, JSON, completion, the arguments passed to ssh, and output without escape sequences."""

from __future__ import annotations

import ast
import io
import json
import socket
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.text import Text
from typer.testing import CliRunner

from tests.conftest import ROOT
from tests.yard.conftest import FakeStack, command_tree, printed, refused, yard
from trainyard import project
from trainyard.outputs import Cluster, dumped
from trainyard.printable import printable
from yard import commands as topics
from yard import show
from yard.commands.cli import TOPICS, app
from yard.doctor.checks import report
from yard.doctor.findings import HostProblem
from yard.job.launcher import LAUNCHERS
from yard.job.loader import recipe_names
from yard.run import jobs
from yard.run.queue import parse_one
from yard.stack.load import load_stack
from yard.stack.remote import _is_refused as is_refused
from yard.stack.workspace import stack_names


def commands(group: Any, *before: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command, including commands in nested groups."""
    for name, command in group.commands.items():
        words = (*before, name)
        yield from commands(command, *words) if hasattr(command, "commands") else [words]


COMMANDS = sorted(map(" ".join, commands(command_tree(app))))
WITHOUT_A_CLUSTER = {
    *("checks", "dashboards", "hosts scan", "init", "new", "preview", "prices update", "recipes", "schema", "size")
}
"""Commands that do not read a cluster's outputs."""


def test_version_is_that_of_the_package() -> None:
    found = tomllib.loads((project.ROOT / "pyproject.toml").read_text())["project"]
    assert yard("--version") == (0, f"yard {found['version']}\n", "")


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
    ["", "nonsense", "submit", "submit hello --nodes 0", "submit train.py --lr 3", "logs x", "hostfile --format x"],
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
    assert sorted(json.loads(out)["files"]) == ["flight.py", "hang.py", "job.sbatch", "run.sh", "yard.sh"]
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


def test_ssh_names_the_fix_for_a_refused_key(stack: FakeStack, local: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.export({"cluster": dumped(replace(local, users={"ann": "user"}))})
    monkeypatch.setenv("TRAINYARD_USER", "ann")
    stack.program("ssh", "echo 'ann@127.0.0.1: Permission denied (publickey).' >&2; exit 255")
    assert (
        "accepts none of your SSH keys: ann@127.0.0.1: Permission denied (publickey). Fix: run `export TRAINYARD_KEY"
        in refused("ssh")
    )


def test_nodes_are_joined_with_the_outputs(stack: FakeStack) -> None:
    stack.program("ssh", "echo 'yard-gpu-0|down*|Not responding'; echo 'stranger|idle|none'")
    rows = {row["name"]: row for row in json.loads(yard("nodes", "--json")[1])}
    assert list(rows) == ["yard-head", "yard-gpu-0", "yard-gpu-1"]
    assert (rows["yard-gpu-0"]["state"], rows["yard-gpu-0"]["reason"]) == ("down*", "Not responding")
    assert rows["yard-gpu-1"]["state"] == "unknown"
    assert "Not responding" in yard("nodes")[1]
    assert "yard heal" in yard("nodes")[1]


@pytest.mark.parametrize(
    ("row", "author", "why"),
    [
        ("drained|new cable", "root|2026-11-24T03:00:00", "new cable (set by root, 2026-11-24T03:00:00)"),
        ("drained|none", "root|2026-11-24T03:00:00", "set by root, 2026-11-24T03:00:00 without a reason"),
        ("drained|TY:munge: munged is not running", "root|2026-11-24T03:00:00", "TY:munge: munged is not running"),
        ("down*|Not responding", "slurm|2026-11-24T03:00:00", "Not responding"),
        ("idle*|none", "Unknown|Unknown", "slurmd does not respond to slurmctld; Slurm has not recorded a reason yet"),
        ("idle|none", "Unknown|Unknown", ""),
    ],
)
def test_nodes_and_heal_say_who_and_why(row: str, author: str, why: str, stack: FakeStack) -> None:
    sinfo = f"*%u*) echo 'yard-gpu-0|{author}' ;; *) echo 'yard-gpu-0|{row}'; echo 'yard-gpu-1|idle|none' ;;"
    stack.program("ssh", f"case $* in *===heal===*) printf '{{}}\n===heal===\n===heal===\n' ;;& {sinfo} esac")
    listed = {node["name"]: node for node in json.loads(printed("nodes", "--json"))}
    assert listed["yard-gpu-0"]["why"] == why
    shown = " ".join(printed("nodes").split())
    assert (why or "idle") in shown
    assert ("states can be a minute old; `yard doctor` checks all nodes now" in shown) is (row == "idle|none")
    assert (why or "all 2 nodes are in service") in " ".join(printed("heal").split())


def test_a_local_machine_has_stopped_if_its_port_refuses_connections() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert is_refused("127.0.0.1", port)
        server.listen()
        assert not is_refused("127.0.0.1", port)


def test_nodes_shows_a_stopped_local_machine_as_off(stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.program("ssh", "case $* in *%u*) ;; *) echo 'yard-gpu-0|idle|none'; echo 'yard-gpu-1|idle~|none' ;; esac")
    monkeypatch.setattr("yard.stack.remote._is_refused", lambda *_: True)
    assert [(row["state"], row["why"]) for row in json.loads(printed("nodes", "--json"))[1:]] == [
        ("off", "its machine has stopped; to start it, run `pulumi up -s local --refresh`"),
        ("off", ""),  # the head stops elastic machines on purpose
    ]
    assert "`yard heal --stack local` prints what each node" in printed("nodes")


@pytest.mark.parametrize(
    ("state", "shown"),
    [("idle~", "off"), ("allocated#", "starting"), ("idle%", "stopping"), ("idle!", "stopping"), ("down~", "down")],
)
def test_nodes_show_the_power_of_machines(state: str, shown: str, stack: FakeStack) -> None:
    stack.program("ssh", f"echo 'yard-gpu-0|{state}|none'; echo 'yard-gpu-1|idle|none'")
    assert [row["state"] for row in json.loads(printed("nodes", "--json"))] == ["head", shown, "idle"]
    assert ("yard heal" in printed("nodes")) is (shown == "down"), "a machine that is off on purpose needs no repair"


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


@pytest.mark.parametrize("words", [("roll", "gpu"), ("rotate", "admin"), ("heal", "--perform")])
def test_job_users_are_told_which_role_a_command_needs(
    words: tuple[str, ...], stack: FakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_OUTPUTS", str(stack.root / "outputs.json"))
    err = refused(*words)
    command = " ".join(words).removesuffix(" gpu").removesuffix(" admin")
    assert f"`yard {command}` changes machines, so it needs the role operator" in err
    monkeypatch.delenv("TRAINYARD_OUTPUTS")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "needs the role operator" in refused(*words)


def test_job_users_can_read_the_plan_of_repairs(stack: FakeStack) -> None:
    stack.program("ssh", "case $* in *===heal===*) printf '{}\\n===heal===\\n===heal===\\n' ;; esac")
    code, _, err = yard("heal", "--outputs", str(stack.root / "outputs.json"))
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
    assert complete("yard re") == ["recipes", "resume", "report", "refresh", "replace", "reproduce"]
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


CLEAR = "\x1b[2J"
TITLE = "\x1b]0;owned\x07"
RED = "\x1b[31m"
ESCAPE = "\x1b"
SEPARATE = (
    "trainyard/relay.py",
    "yard/run/dataset.py",
    "yard/environments/build.py",
    "yard/environments/imports.py",
    "yard/run/flight.py",
    "yard/run/goodput.py",
    "yard/run/hang.py",
    "yard/run/runner/",
    "yard/run/query.py",
    "yard/run/stall.py",
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
    job = parse_one(f"JobId=7 JobName=x UserId=t(1) NumNodes=1 JobState=FAILED ExitCode=1:0 NodeList={CLEAR}n", 7)

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
    remote: Any = SimpleNamespace(stack=SimpleNamespace(name="local", cluster=local, has_admin_login=False), notices=())
    monkeypatch.setattr(
        jobs, "scheduler_of", lambda _name: SimpleNamespace(nodes=lambda _: states, authors=lambda _: {})
    )
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
    assert json.loads(terminal.getvalue())["line"] == CLEAR + "\x9b\u202e"
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
