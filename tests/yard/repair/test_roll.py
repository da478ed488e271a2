"""`yard roll` with a simulated Slurm and `pulumi up`, and the command that replaces machines."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.yard.conftest import FakeStack, printed, refused, yard
from tests.yard.stack.test_pulumi import put_lock
from trainyard.errors import StackError
from trainyard.machines import HOST_INPUTS
from trainyard.outputs import Cluster
from yard.repair import roll as rolls
from yard.repair.roll import RollRequest, abandon, record_of, run_roll, show_plan
from yard.stack import pulumi, workspace
from yard.stack.load import load_stack
from yard.stack.remote import Remote
from yard.stack.workspace import Machine, machines, replace_resources, wait_for_pulumi

ONE = RollRequest(target="gpu")


@dataclass
class Site:
    """Simulates Slurm and machines. `jobs` maps each job to its node, and `at_poll` is called at each poll."""

    stack: FakeStack
    cluster: Cluster
    states: dict[str, tuple[str, str]]
    jobs: dict[str, str] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    at_poll: Callable[[], None] = lambda: None
    elapsed: str = "2:00"
    up_code: int = 0
    interrupted_after: bool = False
    created: dict[str, int] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    waits: list[str] = field(default_factory=list)
    replaces_before_failure: bool = False
    unfinished: set[str] = field(default_factory=set)
    """Nodes that a failed `pulumi up` has replaced, and that are not yet in service."""

    def run(self, command: str, *, admin: bool = False, **_: object) -> str:
        if "sinfo" in command:
            return "".join(f"{name}|{self._shown(name)}|{reason}\n" for name, (_, reason) in self.states.items())
        assert admin
        self.events.append(re.sub(r"^sudo -n ", "", command))
        if "squeue" in command:
            # Users choose the names of jobs, which can contain line breaks.
            assert "%j" not in command
            return "".join(f"{job}|{self.elapsed}|trainer\n" for job in self.jobs)
        if "scancel" in command:
            self.jobs.clear()
        elif found := re.search(r"nodename=(\S+) state=(\w+)", command):
            for name in found[1].split(","):
                self.states[name] = ("drain", "TY:roll") if found[2] == "drain" else ("idle", "")
        return ""

    def _shown(self, name: str) -> str:
        state, _ = self.states[name]
        if state != "drain":
            return state
        return "draining" if name in self.jobs.values() else "drained"

    def up(self, stack: str, urns: list[str]) -> int:
        """Replace and create machines as `pulumi up` does. Host keys are new, and 90-health resumes the nodes."""
        names = [*(urn.removeprefix("urn::") for urn in urns), *sorted(self.deleted | self.unfinished)]
        self.events.append(f"up {','.join(names)} {'forced' if urns else 'unforced'}")
        if not self.up_code or self.replaces_before_failure:
            self.created |= dict.fromkeys(names, len(self.events))
            self.unfinished = set(names) if self.up_code else set()
        if self.up_code:
            return self.up_code
        nodes = [
            replace(node, host_key=f"{node.host_key[:-8]}{len(self.events):08}") if node.name in names else node
            for node in self.cluster.nodes
        ]
        self.cluster = replace(self.cluster, nodes=tuple(nodes))
        self.stack.deploy(self.cluster)
        for name in names:
            if self.states[name][1] == "TY:roll":
                self.states[name] = ("idle", "")
        if self.interrupted_after:
            self.interrupted_after = False
            raise KeyboardInterrupt
        return 0

    def machines(self, _stack: str, names: list[str]) -> dict[str, Machine]:
        created = {name: str(self.created.get(name, 0)) for name in names if name not in self.deleted}
        return {name: Machine(urn=f"urn::{name}", created=time) for name, time in created.items()}

    def sleep(self, _seconds: float) -> None:
        self.at_poll()


@pytest.fixture
def site(stack: FakeStack, local: Cluster, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(stack, local, {node.name: ("idle", "") for node in local.nodes})
    monkeypatch.setattr(Remote, "run", lambda _, command, **kind: made.run(command, **kind))
    monkeypatch.setattr(rolls, "machines", made.machines)
    monkeypatch.setattr(rolls, "wait_for_pulumi", made.waits.append)
    monkeypatch.setattr(rolls, "replace_resources", made.up)
    # The real module stays unchanged, because threads of other tests can call time.sleep.
    monkeypatch.setattr(rolls, "time", SimpleNamespace(monotonic=time.monotonic, sleep=made.sleep))
    return made


def remote() -> Remote:
    return Remote(load_stack("local"))


def actions(site: Site) -> list[str]:
    return [event for event in site.events if not event.startswith("squeue")]


@pytest.mark.parametrize(("at_once", "batches"), [(1, ["yard-gpu-0", "yard-gpu-1"]), (2, ["yard-gpu-0,yard-gpu-1"])])
def test_nodes_are_replaced_in_batches(site: Site, at_once: int, batches: list[str]) -> None:
    assert run_roll(remote(), replace(ONE, max_unavailable=at_once)) == 0
    drain = "scontrol update nodename={} state=drain reason=TY:roll"
    assert actions(site) == [event for batch in batches for event in (drain.format(batch), f"up {batch} forced")]
    assert not record_of(remote()).exists()


def test_a_node_is_replaced_after_its_job_has_ended(site: Site) -> None:
    site.jobs["7"] = "yard-gpu-0"
    polls: list[list[str]] = []

    def poll() -> None:
        polls.append(actions(site))
        if len(polls) == 3:
            site.jobs.clear()

    site.at_poll = poll
    assert run_roll(remote(), ONE) == 0
    assert not any(event.startswith("up") for seen in polls[:3] for event in seen)


def test_jobs_are_signalled_once_to_write_a_checkpoint(site: Site) -> None:
    site.jobs["7"], site.elapsed = "yard-gpu-0", "1:59"
    with pytest.raises(StackError):
        run_roll(remote(), replace(ONE, checkpoint=True, idle_seconds=0.0))
    assert not any(event.startswith("scancel") for event in site.events), "the job has just started"
    site.elapsed = "2:00"
    assert run_roll(remote(), replace(ONE, checkpoint=True)) == 0
    assert actions(site).count("scancel --batch --signal=USR2 7") == 1


def test_the_wait_for_jobs_ends_at_the_limit(site: Site) -> None:
    site.jobs["7"] = "yard-gpu-0"
    with pytest.raises(StackError, match=r"yard-gpu-0 still run jobs after 0 s: 7 of trainer.*stay drained"):
        run_roll(remote(), replace(ONE, idle_seconds=0.0))
    assert not any(event.startswith("up ") for event in actions(site))
    assert site.states["yard-gpu-0"] == ("drain", "TY:roll")
    # `--abandon` returns only the nodes that the roll has drained.
    site.states["yard-gpu-1"] = ("drained", "bad cable")
    abandon(remote())
    assert site.states == {"yard-gpu-0": ("idle", ""), "yard-gpu-1": ("drained", "bad cable")}
    assert not record_of(remote()).exists()


@pytest.mark.parametrize(
    ("replaced", "deleted", "again"),
    [
        (True, set(), "unforced"),
        (False, {"yard-gpu-0"}, "unforced"),
        # `pulumi up` alone does not replace a machine whose user-data is unchanged.
        (False, set(), "forced"),
    ],
)
def test_a_failed_up_can_be_continued(site: Site, replaced: bool, deleted: set[str], again: str) -> None:
    site.up_code, site.replaces_before_failure = 255, replaced
    assert run_roll(remote(), ONE) == 255
    site.up_code, site.deleted = 0, deleted
    assert run_roll(remote(), ONE) == 0
    ups = [event for event in actions(site) if event.startswith("up yard-gpu-0")]
    assert ups[:2] == ["up yard-gpu-0 forced", f"up yard-gpu-0 {again}"]
    assert actions(site)[-1].startswith("up yard-gpu-")
    assert len(site.waits) >= 2


def test_a_node_without_machine_is_reported(site: Site) -> None:
    site.deleted = {"yard-gpu-0"}
    with pytest.raises(StackError, match=r"stack local has no machine for yard-gpu-0\. Fix: run `pulumi refresh`"):
        run_roll(remote(), ONE)


def test_a_replaced_node_is_not_replaced_again(site: Site) -> None:
    site.interrupted_after = True
    assert run_roll(remote(), ONE) == 130
    assert run_roll(remote(), ONE) == 0
    forced = [event for event in actions(site) if event.endswith(" forced")]
    assert forced == ["up yard-gpu-0 forced", "up yard-gpu-1 forced"]


def test_a_node_drained_by_an_operator_stays_drained(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.states["yard-gpu-1"] = ("drained", "bad cable")
    with pytest.raises(StackError, match=r"--max-unavailable is 1.*yard-gpu-1 \(drained: bad cable\)"):
        run_roll(remote(), ONE)
    assert run_roll(remote(), replace(ONE, max_unavailable=2)) == 0
    assert site.states["yard-gpu-1"] == ("drained", "bad cable")
    assert "yard-gpu-1 has a new machine, but stays 'drained' for another reason: bad cable" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "names"), [(("replace", "yard-gpu-1"), ["yard-gpu-1"]), (("roll", "gpu"), ["yard-gpu-0", "yard-gpu-1"])]
)
def test_machines_are_replaced_on_confirmation(words: tuple[str, ...], names: list[str], site: Site) -> None:
    site.jobs["7"] = names[0]
    site.at_poll = site.jobs.clear
    assert yard(*words)[0] == 2, "no terminal can confirm it"
    out = printed(*words, "--dry-run")
    idle = ", ".join(f"{name} (idle)" for name in names)
    assert f"these nodes get new machines, and lose their local files: {idle}\n" in out
    assert f"drain the first nodes ({names[0]}), and wait for their jobs: 7 of trainer" in out
    assert actions(site) == []
    printed(*words, "--yes")
    drain = "scontrol update nodename={} state=drain reason=TY:roll"
    assert actions(site) == [text for name in names for text in (drain.format(name), f"up {name} forced")]
    assert {state for state, _ in site.states.values()} == {"idle"}


def test_a_failed_replacement_is_continued_by_the_same_command(site: Site) -> None:
    site.up_code, site.replaces_before_failure = 255, True
    code, _, err = yard("replace", "yard-gpu-0", "--yes")
    assert code == 255
    assert "run `yard replace yard-gpu-0` to continue" in err
    assert "`yard replace yard-gpu-0` is not finished; finish it" in refused("roll", "gpu")
    site.up_code = 0
    printed("replace", "yard-gpu-0", "--yes")
    assert actions(site)[-1] == "up yard-gpu-0 unforced"
    assert site.states["yard-gpu-0"] == ("idle", "")


@pytest.mark.parametrize(("reason", "final"), [("a@b: new cable", "drained"), ("TY:gpu-xid: Xid 79", "idle")])
def test_a_replaced_node_returns_unless_an_operator_drained_it(reason: str, final: str, site: Site) -> None:
    site.states["yard-gpu-1"] = ("drained", reason)
    polls = 0

    def pass_the_checks() -> None:
        nonlocal polls
        polls += 1
        if polls == 2:
            site.states["yard-gpu-1"] = ("idle", "")

    site.at_poll = pass_the_checks
    code, out, err = yard("replace", "yard-gpu-1", "--yes")
    assert code == 0, err
    assert site.states["yard-gpu-1"][0] == final
    assert ("run `yard undrain yard-gpu-1`" in err) is ("these stay drained: yard-gpu-1" in out) is bool("@" in reason)


def test_machines_that_cannot_be_replaced_are_refused(site: Site) -> None:
    assert "yard-head is the head, and its replacement interrupts all jobs" in refused("replace", "yard-head", "--yes")
    assert "no worker has the name x; the workers are yard-gpu-0, yard-gpu-1" in refused("replace", "x", "--yes")
    site.stack.deploy(replace(site.cluster, provider="hosts"))
    assert "repair or reinstall the host, and run `pulumi up`" in refused("replace", "yard-gpu-0", "--yes")
    assert actions(site) == []


def test_all_problems_are_reported_before_any_change(site: Site) -> None:
    site.cluster = replace(site.cluster, provider="hosts", scheduler="none")
    site.stack.deploy(site.cluster)
    with pytest.raises(StackError) as caught:
        run_roll(remote(), replace(ONE, target="cpu"))
    for part in ("no group 'cpu'", "existing hosts", "without Slurm", "nothing was changed"):
        assert part in str(caught.value)
    assert site.events == []


def test_another_group_waits_for_the_unfinished_roll(site: Site) -> None:
    site.up_code = 1
    run_roll(remote(), ONE)
    nodes = (*site.cluster.nodes, replace(site.cluster.nodes[0], name="yard-cpu-0", group="cpu"))
    site.stack.deploy(replace(site.cluster, nodes=nodes))
    with pytest.raises(StackError, match="`yard roll gpu` is not finished"):
        run_roll(remote(), replace(ONE, target="cpu"))


def test_the_plan_changes_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(remote(), ONE, as_json=True)
    plan = json.loads(capsys.readouterr().out)
    assert plan == {"version": 1, "group": "gpu", "pending": ["yard-gpu-0", "yard-gpu-1"], "first": ["yard-gpu-0"]}
    assert site.events == []


def test_a_damaged_record_is_reported(site: Site) -> None:
    record: Path = record_of(remote())
    record.parent.mkdir(parents=True)
    record.write_text("{")
    with pytest.raises(StackError, match=r"record of an unfinished roll.*cannot be read"):
        run_roll(remote(), ONE)


def urn(kind: str, name: str) -> str:
    return f"urn:pulumi:local::trainyard::trainyard:index:Cluster${kind}::{name}"


@pytest.fixture
def export(stack: FakeStack, tmp_path: Path) -> list[dict[str, object]]:
    resources: list[dict[str, object]] = [
        {
            "urn": urn(kind, f"{prefix}yard-gpu-{index}"),
            "type": kind,
            "created": f"time {index}",
            "inputs": {HOST_INPUTS[kind]: f"yard-gpu-{index}"},
        }
        for index, (prefix, kind) in enumerate(zip(("", "", "yard-local-"), sorted(HOST_INPUTS), strict=True))
    ]
    resources.append({"urn": urn("gcp:compute/disk:Disk", "yard-gpu-0"), "type": "gcp:compute/disk:Disk"})
    resources.append({"urn": urn("old", "yard-gpu-9"), "type": min(HOST_INPUTS), "delete": True})
    (tmp_path / "export.json").write_text(json.dumps({"deployment": {"resources": resources}}))
    stack.program("pulumi", f'[[ $1 == up ]] || cat "{tmp_path}/export.json"')
    return resources


@pytest.mark.usefixtures("export")
def test_machines_are_found_by_host_name() -> None:
    first, *_, local = sorted(HOST_INPUTS)
    assert machines("local", ["yard-gpu-0", "yard-gpu-2", "yard-gpu-9"]) == {
        "yard-gpu-0": Machine(urn=urn(first, "yard-gpu-0"), created="time 0"),
        "yard-gpu-2": Machine(urn=urn(local, "yard-local-yard-gpu-2"), created="time 2"),
    }


@pytest.mark.usefixtures("export")
def test_up_replaces_the_machines(stack: FakeStack, tmp_path: Path) -> None:
    (stack.root / "stacks").mkdir(exist_ok=True)
    committed = stack.root / "stacks" / "Pulumi.local.yaml"
    committed.write_text("config: {}\n")
    assert replace_resources("local", ["urn:a", "urn:b"]) == 0
    calls = (tmp_path / "programs" / "pulumi.calls").read_text().splitlines()
    # Pulumi writes the salt to the copy of the stack file, not to the committed file.
    copy = stack.root / ".trainyard" / "stacks" / "Pulumi.local.yaml"
    assert calls[-1] == (
        f"up -s local --config-file {copy} --non-interactive --suppress-outputs --yes --skip-preview "
        "--replace urn:a --replace urn:b"
    )


@pytest.mark.usefixtures("export")
def test_a_qualified_stack_has_no_copied_file(tmp_path: Path) -> None:
    wait_for_pulumi("team/trainyard/prod")
    assert replace_resources("team/trainyard/prod", []) == 0
    calls = (tmp_path / "programs" / "pulumi.calls").read_text().splitlines()
    assert calls[-1] == "up -s team/trainyard/prod --non-interactive --suppress-outputs --yes --skip-preview"


def test_a_roll_waits_for_a_running_pulumi(
    stack: FakeStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sleeper = subprocess.Popen(["bash", "-c", "exec -a pulumi sleep 60"])
    lock = put_lock(stack.root / "state", sleeper.pid)
    monkeypatch.setattr(pulumi, "_is_pulumi", lambda _: sleeper.poll() is None)

    def end(_seconds: float) -> None:
        sleeper.kill()
        sleeper.wait()

    # The real module stays unchanged, because threads of other tests can call time.sleep.
    monkeypatch.setattr(workspace, "time", SimpleNamespace(sleep=end))
    wait_for_pulumi("local")
    assert f"waiting: stack 'local' is in use: pulumi process {sleeper.pid}" in capsys.readouterr().out
    assert not lock.exists()
