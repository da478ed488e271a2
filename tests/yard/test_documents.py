"""Every command with --json has a schema, and its output has this format. `yard` in conftest.py checks all other output
of commands with --json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.yard.conftest import HOST_KEY, SCHEMAS, FakeStack, MakeProgram, command_tree, printed, validate, yard
from tests.yard.init.test_init import COMPLETE, stacks
from tests.yard.preview.test_preview import engine
from trainyard.outputs import Cluster
from yard import prices
from yard.commands.cli import app
from yard.prices import PriceChange
from yard.repair import roll
from yard.run.bench import Record, save
from yard.run.dataset import synthesise
from yard.show import say_json
from yard.stack import hosts, rotate
from yard.stack.workspace import Machine

__all__ = ["engine", "stacks"]


def with_json(command: Any, *words: str) -> Iterator[str]:
    """Yield the words of each command and group that has the option --json."""
    if any("--json" in parameter.opts for parameter in command.params):
        yield " ".join(words)
    for name, nested in getattr(command, "commands", {}).items():
        yield from with_json(nested, *words, name)


COMMANDS = sorted(with_json(command_tree(app)))
JOB = "echo 'JobId=7 JobName=x UserId=t(1) NumNodes=1 JobState=FAILED ExitCode=1:0 WorkDir=/shared/jobs/x'"
RUNNING = JOB.replace("FAILED", "RUNNING")
RECORDED = (
    f"case $* in *'read '*) cat >/dev/null; echo '{{\"id\": 7}}' ;; *scontrol*) {JOB} ;; *sacct*) ;; "
    "*) cat >/dev/null; echo '{}' ;; esac"
)
ENDED = f"printf 'a\\n\\036'; {JOB}"
ENVIRONMENT = '{"name": "torch", "python": "3.13", "built": 1, "bytes": 2, "seconds": 3}'
SHARED: dict[str, tuple[str, str]] = {
    "cancel": ("cancel 7", JOB),
    "code": ("code 7", f"case $* in *scontrol*) {RUNNING} ;; *) echo key ;; esac"),
    "cost": ("cost", "printf '1764000000 head on\\n===cost===\\n1764003600\\n'"),
    "cp": ("cp 7:job.log .", f"case $* in *scontrol*) {JOB} ;; *) echo file /shared/jobs/a/job.log ;; esac"),
    "diff": ("diff 7 7", RECORDED),
    "doctor": ("doctor", "exit 255"),
    "drain": ("drain yard-gpu-0 --reason cable", "echo 'yard-gpu-0|idle|none'"),
    "env ls": ("env ls", f"printf 'torch-1\\t%s\\n' '{ENVIRONMENT}'"),
    "env rm": ("env rm torch", f"printf 'torch-1\\t%s\\n' '{ENVIRONMENT}'"),
    "heal": ("heal", "case $* in *===heal===*) printf '{}\\n===heal===\\n===heal===\\n' ;; esac"),
    "hostfile": ("hostfile", "exit 1"),
    "logs": (
        "logs 7 --follow",
        f"case $* in *follow*) {ENDED} ;; *repair.json*) printf '{{}}\\n1\\n' ;; *) {JOB} ;; esac",
    ),
    "nodes": ("nodes", "echo 'yard-gpu-0|idle|none'"),
    "top": (
        "top",
        f"case $* in *scontrol*) {RUNNING} ;; *sinfo*) echo 'yard-gpu-0|allocated|none' ;; *) echo '{{}}' ;; esac",
    ),
    "notebook": ("notebook 7", f"case $* in *scontrol*) {RUNNING} ;; *) echo '10.77.2.1 /run/s token' ;; esac"),
    "ps": ("ps", f"case $* in *repair.json*) printf '{{}}\\n1\\n' ;; *) {JOB} ;; esac"),
    "pull": ("pull --records records", RECORDED),
    "refresh": ("refresh", "exit 1"),
    "replace": ("replace yard-gpu-0 --dry-run", "echo 'yard-gpu-0|idle|none'"),
    "report": ("report 7", RECORDED),
    "resume": ("resume 7", f"case $* in *resume*) echo 8 ;; *) {JOB} ;; esac"),
    "roll": ("roll gpu --dry-run", "echo 'yard-gpu-0|idle|none'"),
    "rotate": ("rotate admin --dry-run", "exit 1"),
    "run": ("run --port 8888", "exit 1"),
    "sleep": ("sleep", "case $* in *squeue*) echo === ;; *cat*) exit 255 ;; esac"),
    "ssh": ("ssh", "exit 1"),
    "submit": ("submit hello", "cat >/dev/null; echo 12"),
    "sync": ("sync --dry-run .", "exit 0"),
    "undrain": ("undrain yard-gpu-0 --force", "echo 'yard-gpu-0|idle|none'"),
    "usage": ("usage", "echo 'vision|ann|3600'"),
    "wake": ("wake", "exit 0"),
    "wait": ("wait 7", f"case $* in *follow*) {ENDED} ;; *repair.json*) printf '{{}}\\n1\\n' ;; *) {JOB} ;; esac"),
}
"""The words of each command that needs a cluster, and the fake ssh that answers it."""
LOCAL = {
    "bake": "bake --dry-run --stack azure-a100",
    "bench nccl": "bench nccl --from FOLDER/record.json",
    "bench scaling": "bench scaling --from FOLDER/record.json",
    "bench train": "bench train --from FOLDER/record.json",
    "checks": "checks",
    "dashboards": "dashboards --output FOLDER/dashboards",
    "data synth": "data synth FOLDER/new --here --tokens 5K",
    "data verify": "data verify FOLDER/data --here",
    "env build": "env build torch --dry-run",
    "hosts scan": "hosts scan 203.0.113.10",
    "prices": "prices",
    "prices update": "prices update",
    "recipes": "recipes",
    "reproduce": "reproduce lambda --dry-run",
    "schema": "schema",
    "size": "size opt-6.7b --gpu h100",
}
"""The words of each command that needs no cluster."""
FIXTURES = {"init": "stacks", "preview": "engine"}
"""Commands that need a temporary checkout or a fake engine."""
WORDS = {
    "init": " ".join((*COMPLETE, "--offline")),
    "new": " ".join(("new", "big", "--dir", "FOLDER/big", *COMPLETE[2:], "--offline")),
    "preview": "preview local",
    "hosts forget": "hosts forget node2",
}


@pytest.fixture
def run(
    request: pytest.FixtureRequest, tmp_path: Path, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Return a function that runs a command with --json, and returns its output."""

    def run(command: str) -> str:
        if command in SHARED:
            words, ssh = SHARED[command]
            stack: FakeStack = request.getfixturevalue("stack")
            if command == "usage":
                stack.deploy(replace(request.getfixturevalue("local"), users={"ann": "user"}))
            if command in {"sleep", "wake"}:
                local: Cluster = request.getfixturevalue("local")
                stack.deploy(
                    replace(local, head=replace(local.head, wake=("az", "vm", "start", "--ids", "/subscriptions/s/id")))
                )
            stack.program("ssh", ssh)
            stack.program("rsync", "exit 0")
            monkeypatch.chdir(tmp_path)
        else:
            words = LOCAL.get(command) or WORDS[command]
            if command in FIXTURES:
                request.getfixturevalue(FIXTURES[command])
        kind = command.rpartition(" ")[2]
        size = {"gpu_type": "h100", "nodes": 2, "ranks": 4}
        record = Record(kind=kind, cluster="yard", group="gpu", **size, taken="", floor=None, rows=ROWS, summary={})  # type: ignore[arg-type]
        save(record, tmp_path / "record.json")
        synthesise(tmp_path / "data", 5000, 512, 1, force=True)
        program("ssh-keyscan", f"echo 'x {HOST_KEY}'")
        monkeypatch.setattr(hosts, "forget_host", lambda *_: "urn:pulumi:s::trainyard::a::c-hosts-node2-lease")
        monkeypatch.setattr(prices, "update", lambda: [PriceChange(machine="m", before=None, after=9.5)])
        monkeypatch.setattr(rotate, "urn_of", lambda *_: "urn:a")
        monkeypatch.setattr(roll, "machines", lambda *_: {"yard-gpu-0": Machine(urn="urn:a", created="")})
        out = yard(*words.replace("FOLDER", str(tmp_path)).split(), "--json")[1]
        assert out, words
        return out

    return run


ROWS: list[dict[str, Any]] = [
    {"size": 8 << 30, "time_us": 1.0, "algbw": 1.0, "busbw": 2.0, "wrong": 0, "loss": 6.0, "nodes": 1, "step": 1,
     "tokens_per_s": 1.0, "efficiency": 1.0},
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_the_output_of_a_command_has_its_format(command: str, run: Callable[[str], str]) -> None:
    for line in run(command).splitlines():
        assert "error" not in json.loads(line)
        if command != "schema":
            validate(command, json.loads(line))


def test_the_committed_schemas_are_current() -> None:
    from tools import documents  # noqa: PLC0415  (it builds all types, which each process of pytest would do)

    rendered = documents.rendered()
    assert set(COMMANDS) - set(documents.DOCUMENTS) == {"schema"}
    assert {file.name: file.read_text() for file in SCHEMAS.glob("*.json")} == rendered, (
        "run `python -m tools.documents`"
    )
    assert json.loads(printed("schema", "env", "ls")) == json.loads(rendered["env-ls.json"])
    assert "no schema for 'nothing'; available: bake, bench-nccl" in " ".join(yard("schema", "nothing")[2].split())


def test_errors_and_lists_contain_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = yard("submit", "no-such", "--json")
    assert (code, json.loads(out)["version"]) == (1, 1)
    say_json([{"a": 1}])
    assert json.loads(capsys.readouterr().out) == [{"version": 1, "a": 1}]
    with pytest.raises(AssertionError, match="'cancelled' is a required property"):
        validate("cancel", {"version": 1, "already_ended": []})
    with pytest.raises(AssertionError, match="'more' was unexpected"):
        validate("ssh", {"version": 1, "argv": [], "more": 1})
