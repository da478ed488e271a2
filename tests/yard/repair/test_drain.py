"""`yard drain` and `yard undrain` with fake programs of Slurm on the head."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.yard.conftest import FakeStack, outputs_file, printed, refused
from trainyard.faults import is_own, operator_in
from trainyard.outputs import Cluster

FIRST, SECOND = "yard-gpu-0", "yard-gpu-1"
_SCONTROL = """for word; do declare "${word%%=*}=${word#*=}"; done
for node in ${nodename//,/ }; do
  [[ $state == drain ]] || reason=$(cut -d '|' -f 3- "$node")
  echo "$node|$([[ $state == drain ]] && echo drained || echo 'idle*')|$reason" >"$node"
done"""


class Head:
    """The head. `slurm` contains a file with sinfo's line for each node."""

    def __init__(self, stack: FakeStack) -> None:
        self.slurm = stack.root / "slurm"
        self.slurm.mkdir()
        for name in (FIRST, SECOND):
            self.put(name, "idle", "none")
        stack.program("ssh", f'cd "{self.slurm}"; exec bash -c "${{*: -1}}"')
        stack.program("sudo", 'shift; exec "$@"')
        stack.program("sinfo", "cat yard-*")
        self.scontrol = stack.program("scontrol", f'set -- ${{@:2:1}} ${{@:3:1}} "${{@:4}}"\n{_SCONTROL}')
        self.program = stack.program
        self.health({})

    def put(self, name: str, state: str, reason: str) -> None:
        (self.slurm / name).write_text(f"{name}|{state}|{reason}\n")

    def health(self, verdicts: dict[str, dict[str, str]]) -> None:
        self.program("trainyard-health", f"echo {shlex.quote(json.dumps({'verdicts': verdicts}))}")

    @property
    def lines(self) -> list[str]:
        return [(self.slurm / name).read_text().split("|", 1)[1].strip() for name in (FIRST, SECOND)]


@pytest.fixture
def head(stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> Head:
    monkeypatch.setattr("getpass.getuser", lambda: "TY:gone: alice")
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    return Head(stack)


@pytest.mark.parametrize("text", ["TY:roll", 'it\'s  "new" $HOME; 5 % |slow', "Not responding"])
def test_an_operators_drain_names_the_operator(text: str, head: Head) -> None:
    rows = json.loads(printed("drain", FIRST, FIRST, "--reason", text, "--json"))
    reason = f"TY-gone--alice@laptop: {text}"
    assert rows == [{"version": 1, "name": FIRST, "state": "drained", "reason": reason, "changed": True}]
    assert head.lines == [f"drained|{reason}", "idle|none"]
    assert not is_own(reason)
    assert operator_in(reason) == "TY-gone--alice@laptop"
    assert operator_in("TY:gone: alice@laptop: x") is None
    assert f"{FIRST} is drained: {reason}" in printed("drain", FIRST, "--reason", text)
    assert len(head.scontrol.calls) == 1
    out = printed("drain", FIRST, SECOND, "--reason", "new cable")
    assert f"{FIRST} is drained: TY-gone--alice@laptop: new cable (the earlier reason was: {reason})" in out
    assert (
        printed("undrain", FIRST, SECOND)
        == f"""\
{FIRST} is idle (the earlier reason was: TY-gone--alice@laptop: new cable)
{SECOND} is idle (the earlier reason was: TY-gone--alice@laptop: new cable)
"""
    )
    for name in (FIRST, SECOND):
        head.put(name, "idle", reason)
    assert printed("undrain", FIRST) == f"{FIRST} is idle\n"
    assert reason not in printed("nodes")


def test_all_wrong_nodes_are_named_before_any_change(head: Head, stack: FakeStack, local: Cluster) -> None:
    err = refused("drain", "gpu-7", FIRST, "yard-head", "--reason", "a\nb")
    assert f"no worker has the name gpu-7, yard-head; the workers are {FIRST}, {SECOND}" in err
    assert "--reason must be one line of printable text; nothing was changed" in err
    stack.deploy(replace(local, scheduler="none"))
    assert "without Slurm, nodes cannot be drained" in refused("undrain", FIRST)
    assert head.scontrol.calls == []


@pytest.mark.parametrize(
    ("reason", "severity", "words"),
    [
        ("TY:disk-full: / has 0 MiB left", "", "has the fault 'TY:disk-full: / has 0 MiB left'"),
        ("TY:roll", "", "`yard roll` or `yard replace` has drained yard-gpu-1; finish it"),
        ("TY:update", "", "returns automatically"),
        ("bob@desk: new cable", "fatal", "the check gpu-xid of yard-gpu-1 fails: Xid 79"),
        ("bob@desk: new cable", "broken", "the health service of yard-gpu-1 does not answer"),
        ("bob@desk: new cable", "note", ""),
        ("TY:quarantine: 3 faults in a week", "", ""),
    ],
)
def test_a_node_with_a_fault_stays_drained(reason: str, severity: str, words: str, head: Head) -> None:
    head.put(SECOND, "drained", reason)
    head.put(FIRST, "drained", "bob@desk: old")
    if severity:
        head.health({"gpu-xid": {"check": "gpu-xid", "severity": severity, "text": "Xid 79"}})
    if severity == "broken":
        head.program("trainyard-health", "exit 1")
    if words:
        head.put(FIRST, "idle", "none")
        assert words in refused("undrain", FIRST, SECOND)
        assert head.lines[1] == f"drained|{reason}"
    printed("undrain", FIRST, SECOND, *(["--force"] if words else []))
    assert head.lines[0].startswith("idle")
    assert head.lines[1].startswith("idle*|")


def test_draining_needs_the_admins_key(stack: FakeStack, tmp_path: Path) -> None:
    file = str(outputs_file(tmp_path / "jobs.json"))
    for words in (("drain", FIRST, "--reason", "x"), ("undrain", FIRST)):
        err = refused(*words, "--outputs", file)
        assert f"`yard {words[0]}` changes nodes, so it needs the role operator: the admin key" in err
    for words in (("roll", "gpu"), ("heal", "--perform")):
        assert "changes machines, so it needs the role operator" in refused(*words, "--outputs", file)


@pytest.mark.parametrize(
    ("state", "reason"),
    [("drained~", "bob@desk: fan"), ("down~", "TY:power: the machine cannot start: no capacity"), ("down~", "none")],
)
def test_a_node_whose_machine_is_off_returns_without_being_asked(state: str, reason: str, head: Head) -> None:
    head.program("trainyard-health", "exit 255")
    head.put(FIRST, state, reason)
    printed("undrain", FIRST)
    assert head.lines[0].startswith("idle")
