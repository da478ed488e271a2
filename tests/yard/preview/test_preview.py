"""`yard preview`: options, descriptions, differences, the output formats, and the real engine with its output."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from components.plan.check import Finding, Level
from tests.components.platforms.recording import stack_text
from tests.conftest import ROOT
from tests.people import person
from tests.yard.conftest import git, yard
from trainyard.errors import ClusterError, Problem
from yard.preview import report as reports
from yard.preview.account import Account, Verdict
from yard.preview.describe import PLACEHOLDERS, Description, describe
from yard.preview.difference import Difference, FileDiff, UnknownRevision, commit_of, compare, snapshots_at
from yard.preview.engine import Resources, Step, read_answer
from yard.preview.printing import (
    MARKER,
    NOT_INCLUDED,
    as_markdown,
    costs,
    finding_line,
    findings,
    host_ranges,
    show,
    total_price,
)
from yard.preview.report import Preview, Report, as_json, stack_json
from yard.stack.workspace import stack_names

DescribeEdited = Callable[..., Description]
Render = Callable[[Preview], str]


@pytest.fixture
def edited(tmp_path: Path) -> DescribeEdited:
    def make(stack: str, name: str = "", **edits: object) -> Description:
        named = name or stack
        (tmp_path / f"Pulumi.{named}.yaml").write_text(stack_text(stack, **edits))
        return describe(named, tmp_path / f"Pulumi.{named}.yaml")

    return make


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the engine with a fake that reports no steps. Return the list of previewed stacks."""
    previewed: list[str] = []

    def preview_all(stacks: Sequence[str], *, live: bool, tell: Callable[[str], None]) -> dict[str, Resources]:
        previewed.extend(stacks)
        tell("working")
        return {stack: Resources(steps=()) for stack in stacks}

    monkeypatch.setattr(reports, "preview_all", preview_all)
    # The local cluster of another checkout may use the ports of the committed stack.
    monkeypatch.setattr("components.platforms.local.computer.port_in_use", lambda _: False)
    return previewed


@pytest.mark.parametrize(
    "line",
    ["", "local --all", "none", "../local", "local --offline --live", "local --json --markdown", "local --against x"],
)
def test_wrong_usage_runs_nothing(line: str, engine: list[str]) -> None:
    assert yard("preview", *line.split())[0] == 2
    assert engine == []


def test_stdout_has_only_json_and_stderr_the_progress(engine: list[str]) -> None:
    code, out, err = yard("preview", "local", "local", "--json")
    assert code == 0
    assert [stack["stack"] for stack in json.loads(out)["stacks"]] == ["local"]
    assert "working" in err


def test_other_stacks_are_previewed_beside_a_bad_one(
    engine: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "Pulumi.gcp-a2.yaml"
    file.write_bytes(b"\xff\xfe")
    monkeypatch.setattr(
        reports, "describe", lambda stack, computer: describe(stack, file if stack == "gcp-a2" else None)
    )
    code, out, _ = yard("preview", "gcp-a2", "local", "--json")
    bad, good = json.loads(out)["stacks"]
    assert code == 1
    assert bad["problems"][0]["rule"] == "is not UTF-8 text"
    assert good["fine"]
    assert engine == ["local"]


@pytest.mark.parametrize("stack", stack_names())
def test_every_stack_has_a_complete_description(stack: str) -> None:
    description = describe(stack)
    described = json.loads(json.dumps(stack_json(Report(description=description))))
    plan, files = described["plan"], description.snapshot.files
    assert described["problems"] == []
    roles = ["head", *dict.fromkeys(host["group"] for host in plan["hosts"] if host["group"])]
    assert list(described["user_data_bytes"]) == roles
    assert 0 < max(described["user_data_bytes"].values()) <= described["user_data_limit"]
    for role in roles:
        assert f"=== /etc/trainyard/birth.env\nTRAINYARD_CLUSTER={plan['name']}\n" in files[f"user-data of {role}"]
    assert plan["hosts"][-1]["name"].rpartition("-")[0] in files["slurm.conf"]


def test_an_unknown_price_does_not_count_as_zero(edited: DescribeEdited) -> None:
    price = stack_json(Report(description=edited("azure-h100", nodes__gpu__capacity={"kind": "spot"})))["price"]
    assert (price["usd"], price["total"]) == (0.384, None)
    assert price["unpriced"] == ["Standard_ND96isr_H100_v5 (Spot)"]
    assert price["dated"] > "2026"


def test_a_description_contains_no_secrets(tmp_path: Path) -> None:
    text = (ROOT / "stacks" / "Pulumi.local.yaml").read_text()
    (tmp_path / "Pulumi.x.yaml").write_text(text + "  other:token: hunter2\n  other:more: {secure: v1:abc}\n")
    description = describe("x", tmp_path / "Pulumi.x.yaml")
    described = json.dumps([stack_json(Report(description=description)), asdict(description.snapshot)])
    assert "hunter2" not in described
    assert "v1:abc" not in described
    assert PLACEHOLDERS.authority in described


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with the code from this checkout, and with three workers in the stack `local`."""
    for part in ("trainyard", "components", "cloud-init", "yard"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "stacks").mkdir()
    shutil.copy(ROOT / "Pulumi.yaml", tmp_path)
    stack = (ROOT / "stacks" / "Pulumi.local.yaml").read_text()
    (tmp_path / "stacks" / "Pulumi.local.yaml").write_text(stack.replace("count: 2", "count: 3"))
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    monkeypatch.setattr("trainyard.project.ROOT", tmp_path)
    return tmp_path


@pytest.mark.engine
def test_a_revision_is_described_as_committed(repository: Path) -> None:
    (repository / "stacks" / "Pulumi.local.yaml").write_text("broken")
    described = snapshots_at(commit_of("HEAD"))
    assert described["local"].hosts[-1] == "yard-gpu-2"
    assert list(described) == ["local"]
    assert git(repository, "worktree", "list").count("\n") == 0


@pytest.mark.engine
def test_unusable_revisions_are_reported(repository: Path) -> None:
    shape = repository / "yard" / "preview" / "describe.py"
    shape.write_text(shape.read_text().replace("CONTRACT = 3", "CONTRACT = 0"))
    git(repository, "commit", "--quiet", "-am", "two")
    with pytest.raises(ClusterError, match="describes stacks with contract 0, but this revision uses 3"):
        snapshots_at(commit_of("HEAD"))
    (repository / "components" / "plan" / "plan.py").write_text("raise RuntimeError('half done')\n")
    git(repository, "commit", "--quiet", "-am", "three")
    with pytest.raises(ClusterError, match="cannot describe its stacks: RuntimeError: half done"):
        snapshots_at(commit_of("HEAD"))
    git(repository, "rm", "--quiet", "-r", "yard/preview")
    git(repository, "commit", "--quiet", "-m", "four")
    with pytest.raises(ClusterError, match="cannot describe its stacks"):
        snapshots_at(commit_of("HEAD"))


def test_an_unknown_revision_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.project.ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UnknownRevision, match="not a git repository"):
        commit_of("HEAD")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "one")
    assert commit_of("HEAD") == git(tmp_path, "rev-parse", "HEAD")
    for ref in ("no-such", "--help", "HEAD~99", ""):
        with pytest.raises(UnknownRevision, match="git cannot resolve this revision"):
            commit_of(ref)


def between(before: Description | None, after: Description) -> Difference:
    return compare(before.snapshot if before else None, after.snapshot)


def test_a_stack_does_not_differ_from_itself() -> None:
    found = between(describe("azure-a100"), describe("azure-a100"))
    assert found.usd_per_hour == 0
    assert not any([found.new, found.hosts_added, found.hosts_removed, found.quota, found.files])


def test_more_nodes_change_price_hosts_quota_and_files(edited: DescribeEdited) -> None:
    found = between(edited("azure-a100"), edited("azure-a100", nodes__gpu__count=4, limits={}))
    assert found.usd_per_hour == 65.644
    assert found.hosts_added == ["opt-gpu-2", "opt-gpu-3"]
    assert {need.quota: need.amount for need in found.quota} == {"cores": 192, "standard NDAMSv4_A100Family": 192}
    [slurm] = [file for file in found.files if file.file == "slurm.conf"]
    assert "\n-NodeName=opt-gpu-[0-1] " in slurm.diff
    assert "\n+NodeName=opt-gpu-[0-3] " in slurm.diff


def test_an_unknown_price_makes_the_difference_unknown(edited: DescribeEdited) -> None:
    # No dated source contains Spot prices of this machine type.
    found = between(edited("azure-h100"), edited("azure-h100", **SPOT, nodes__gpu__count=1))
    assert (found.usd_per_hour, found.known_usd_per_hour) == (None, -196.692)
    assert found.hosts_removed == ["hopper-gpu-1"]


def test_new_and_refused_stacks_have_no_file_differences(edited: DescribeEdited) -> None:
    hosts = ["yard-head", "yard-gpu-0", "yard-gpu-1"]
    new = between(None, edited("local"))
    assert (new.new, new.files, new.hosts_added) == (True, [], hosts)
    refused = edited("local", nodes__gpu__count=0)
    assert between(refused, edited("local")).hosts_added == hosts
    assert between(edited("local"), refused).hosts_removed == hosts


def test_the_same_change_of_two_roles_is_shown_once() -> None:
    before, after = describe("local"), describe("local")
    for role in ("head", "gpu"):
        after.snapshot.files[f"user-data of {role}"] += "echo more\n"
    [file] = between(before, after).files
    assert (file.file, file.same_in) == ("user-data of head", ["user-data of gpu"])
    assert file.diff.endswith("+echo more\n")


VM = "gcp:compute/instance:Instance"
STEPS = (Step(op="create", type=VM, name="neox-head"), Step(op="replace", type=VM, name="neox-gpu-0"))


def preview_of(*reports: Report, offline: bool = True) -> Preview:
    return Preview(offline=offline, base="0123456789abcdef", base_problem=None, reports=reports)


def report(description: Description, before: Description | None = None) -> Report:
    return Report(
        description=description,
        resources=None if description.plan is None else Resources(steps=STEPS, warnings=("a plugin is old",)),
        difference=between(before, description),
    )


def on_terminal(preview: Preview) -> str:
    written = io.StringIO()
    show(preview, Console(file=written, width=200))
    return written.getvalue()


both_formats = pytest.mark.parametrize("render", [on_terminal, as_markdown])


@pytest.fixture
def grown(edited: DescribeEdited) -> Report:
    return report(edited("gcp-a2", nodes__gpu__count=4), edited("gcp-a2"))


@pytest.fixture
def refused(edited: DescribeEdited) -> Report:
    return report(edited("azure-a100", "bad", nodes__gpu__count=0, head__machine="x<b>|`y`"))


def test_only_the_fix_of_a_problem_is_called_a_fix(edited: DescribeEdited) -> None:
    found = findings(report(edited("azure-h100", **SPOT)))
    labelled = {each.level for each in found if ". Fix: " in finding_line(each)}
    assert labelled == {Level.WARNING}
    assert {each.level for each in found} == {Level.WARNING, Level.INFO}
    [note] = [finding_line(each) for each in found if each.check == "unconfirmed"]
    assert note.endswith("quota names. Compare them with your provider's documentation. [unconfirmed]")


@both_formats
def test_unknown_prices_are_named(render: Render, edited: DescribeEdited) -> None:
    text = render(preview_of(report(edited("azure-h100", **SPOT), edited("azure-h100"))))
    for words in ("/h plus unknown prices", "price unknown for Standard_ND96isr_H100_v5 (Spot)", "$/h of known prices"):
        assert words in text.replace("\\", "")


@both_formats
def test_the_cost_limits_and_people_are_shown(render: Render, edited: DescribeEdited) -> None:
    users = [person("ann", admin=True), person("ben")]
    given = {"limits__max_usd_per_hour": 1250.5, "limits__max_usd_per_month": 20_000, "users": users}
    text = render(preview_of(report(edited("azure-a100", **given)))).replace("\\", "")
    spent = "if all machines are on, the month's is spent after 12.6 days; then no job starts"
    assert f"cost limit: $1,250.5 per hour and $20,000 per month; {spent}" in text
    enough = {**given, "limits__max_usd_per_month": 2_000_000}
    text = render(preview_of(report(edited("azure-a100", **enough)))).replace("\\", "")
    assert "$2,000,000 per month; when the month's is spent, no job starts" in text
    assert "people: ann (admin), ben" in text
    text = render(preview_of(report(edited("local"))))
    assert "cost limit" not in text
    assert "people:" not in text


@both_formats
def test_terminal_and_markdown_show_all_parts(render: Render, grown: Report, refused: Report) -> None:
    text = render(preview_of(grown, refused)).replace("\\", "")
    for words in (
        "offline: the clouds are simulated",
        "compared with 0123456789ab",
        "list price $121.67/h",
        "list prices of us-central1, read on 2026-11-23 from Cyclenerd/google-cloud-pricing-cost-calculator at fd66",
        f"network traffic (to the internet $0.12 per GB, through NAT $0.045 per GB), {NOT_INCLUDED}",
        "+58.87 $/h",
        "adds neox-gpu-[2-3]",
        "10.77.2.1 to 10.77.2.4",
        "8 x a100",
        "NVIDIA_A100_GPUS",
        "user-data: head ",
        "1 to create, 1 to replace",
        "a plugin is old",
        "+NodeName=neox-gpu-[0-3]",
        "refused",
        "cluster.nodes.gpu.count: must be a whole number from 1 to 2000. Fix: ",
        "cluster.head.machine",
    ):
        assert words in text


def test_json_has_the_documented_keys(grown: Report, refused: Report) -> None:
    document = json.loads(json.dumps(as_json(preview_of(grown, refused))))
    assert sorted(document) == ["base", "base_problem", "fine", "offline", "stacks"]
    good, bad = document["stacks"]
    assert sorted(good) == sorted(bad)
    expected = "account difference file fine plan price problems quota remarks resources services stack storage"
    assert " ".join(sorted(good)) == f"{expected} user_data_bytes user_data_limit"
    assert good["resources"]["changes"][1] == {"op": "replace", "type": VM, "name": "neox-gpu-0"}
    assert bad["resources"] is None
    assert [document["fine"], good["fine"], bad["fine"]] == [False, True, False]
    assert not replace(grown, resources=Resources(steps=(), errors=("no",))).fine


def test_a_comment_never_exceeds_the_limit(grown: Report, refused: Report) -> None:
    assert grown.difference
    grown.difference.files[:] = [FileDiff(file="a", diff="+x\n" * 100_000), FileDiff(file="b", diff="+y\n" * 9_000)]
    whole = as_markdown(preview_of(grown, refused))
    assert len(whole) < 65_536
    assert "truncated; `yard preview" in whole
    many = as_markdown(preview_of(*[grown] * 40, refused))
    assert len(many) < 65_536
    assert "The comment would be too long" in many
    assert many.count("| gcp-a2 | fine |") == 40
    assert "<details open><summary><b>bad</b>" in many
    assert many.count("<details") == many.count("</details>") > 1


def test_a_stack_file_cannot_inject_markdown(edited: DescribeEdited) -> None:
    problem = Problem(path="cluster.</details>", rule="[x](http://y) @team | `z`", fix="no")
    found = Finding(check="", level=Level.ERROR, problem=problem)
    text = as_markdown(preview_of(report(replace(edited("local"), findings=(found,)))))
    assert text.count("</details>") == 1
    for forbidden in ("[x](", " @team", " `z`"):
        assert forbidden not in text


def test_errors_and_diffs_cannot_close_their_code_fence(grown: Report) -> None:
    assert grown.difference
    grown.difference.files[:] = [FileDiff(file="a", diff="+```\n+<b>\n")]
    text = as_markdown(preview_of(replace(grown, resources=Resources(steps=(), errors=("it died\n```\n<b>",)))))
    assert text.startswith(f"{MARKER}\n### Preview of gcp-a2\n")
    assert "- **Error**: \n\n````\nit died\n```\n<b>\n````\n" in text
    assert "\n````diff\n+```\n" in text


@both_formats
def test_usage_and_limits_of_the_account_are_shown(render: Render, grown: Report) -> None:
    short = Verdict(
        quota="NVIDIA_A100_GPUS", place="us-central1", needed=32, known=True, used=8, limit=16, command="gcloud a"
    )
    unread = replace(short, quota="A2_CPUS", known=False, used=None, limit=None, command="gcloud b")
    known = replace(grown, account=Account(verdicts=(short, unread), notes=("an API is not enabled",)))
    shown = render(preview_of(known, offline=False))
    for words in ("short by 24", "gcloud b", "an API is not enabled"):
        assert words in shown
    missing = replace(grown, account=Account(problem="gcloud is not on PATH"))
    assert "gcloud is not on PATH" in render(preview_of(missing, offline=False))


def test_host_names_are_merged_to_ranges() -> None:
    assert host_ranges(["c-head", "c-a-0", "c-a-1", "c-a-3", "c-b-4"]) == ["c-head", "c-a-[0-1]", "c-a-3", "c-b-4"]


SPOT = {"nodes__gpu__capacity": {"kind": "spot"}}
SPOT_WARNING = "Spot prices change at any time"


@pytest.mark.parametrize(
    ("stack", "edits", "total", "texts", "absent"),
    [
        (
            "azure-h100",
            SPOT,
            "list price $3.47/h plus unknown prices",
            [
                "netapp-Premium $2.48/h ($1,808 a month): list price of an unnamed region, dated 2021-11-04",
                "bastion-standard $0.40/h ($292 a month): list price of an unnamed region, dated 2025-01-01",
                "price unknown for Standard_ND96isr_H100_v5 (Spot)",
                "not included: network traffic (to the internet $0.087 per GB after 100 GB a month, through NAT $0.045 "
                f"per GB), {NOT_INCLUDED}",
            ],
            SPOT_WARNING,  # no Spot price is recorded for this machine type
        ),
        ("gcp-a2", SPOT, "list price", [SPOT_WARNING], "price unknown"),
        (
            "azure-a100",
            {},
            "list price $66.32/h",
            ["storage head_nfs, 1024 GiB: maximum write throughput 191 MiB/s, 12 MiB/s for each of 16 GPUs"],
            SPOT_WARNING,
        ),
        ("azure-a100", {"access": {"via": "bastion"}}, "list price $66.72/h", [], SPOT_WARNING),
        ("local", {}, "list price", [], "storage"),
    ],
)
def test_costs_name_prices_sources_and_throughput(  # noqa: PLR0913, PLR0917  (the table's columns)
    stack: str, edits: dict[str, object], total: str, texts: list[str], absent: str, edited: DescribeEdited
) -> None:
    plan = edited(stack, **edits).plan
    assert plan is not None
    assert total_price(plan).startswith(total)
    lines = "\n".join(costs(plan))
    assert [text for text in texts if text not in lines] == []
    assert absent not in lines


SECONDS = 600.0
"""The limit is much longer than needed, because the machine can be busy."""


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "yard", "preview", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def processes_of(folder: Path) -> Iterator[int]:
    """Yield the ids of all processes that use the folder as TMPDIR."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"TMPDIR={folder}\0".encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue


@pytest.mark.engine
def test_a_preview_of_two_stacks_leaves_no_files(tmp_path: Path) -> None:
    before = set((ROOT / ".trainyard").rglob("*local*"))
    with started(tmp_path, "local", "gcp-a2", "--offline", "--json", "--against", "HEAD") as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    document = json.loads(out)
    local, gcp = document["stacks"]
    assert (local["stack"], gcp["stack"]) == ("local", "gcp-a2")
    assert local["resources"]["by_type"]["pulumi-python:dynamic/local:Vm"] == 3
    assert gcp["resources"]["by_type"]["gcp:compute/instance:Instance"] == 3
    assert gcp["resources"]["by_operation"] == {"create": len(gcp["resources"]["changes"])}
    assert list(tmp_path.iterdir()) == []
    assert list(processes_of(tmp_path)) == []
    assert set((ROOT / ".trainyard").rglob("*local*")) == before


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_processes_and_files(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, "local", "azure-a100", "--offline") as process:
        deadline = time.monotonic() + SECONDS
        # Sends the interrupt after yard, the engine, its language host and the program have started.
        while len(list(processes_of(tmp_path))) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert out == ""
    assert list(processes_of(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


OWN = "stacks/Pulumi.x.yaml:"
PARENT = "urn:pulumi:x::trainyard::trainyard:index:Cluster"


def answer(*steps: tuple[str, str], messages: tuple[tuple[str, str], ...] = ()) -> str:
    return json.dumps(
        {
            "steps": [
                {"op": op, "urn": f"{PARENT}${kind}", "newState": {"inputs": {"key": "private"}}} for op, kind in steps
            ],
            "diagnostics": [{"severity": severity, "message": message} for severity, message in messages],
        }
    )


def test_only_operations_types_and_names_are_kept() -> None:
    kind = "gcp:compute/instance:Instance"
    found = read_answer(
        0, answer(("create", f"{kind}::a"), ("replace", f"{kind}::b::c"), ("same", "t:i:T::d")), "", OWN
    )
    assert found.changes == (Step(op="create", type=kind, name="a"), Step(op="replace", type=kind, name="b::c"))
    assert found.by_operation == {"create": 1, "replace": 1, "same": 1}
    assert found.by_type == {kind: 2, "t:i:T": 1}
    assert found.errors == ()
    assert "private" not in repr(found)


FALSE_ALARM = "error: Detected that /plugins/pulumi-resource-command exited prematurely. \n  This is *always* a bug"
DIED = (("info#err", "Traceback: no module\n"), ("error", "error: the program exited"), ("info", "all is well"))


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "errors"),
    [
        (255, answer(messages=(("error", "error: no quota"),)), "", ["no quota"]),
        (255, answer(messages=DIED), "", ["the program exited", "Traceback: no module"]),
        (255, answer(), "warning: a\nerror: the passphrase is wrong\n", ["the passphrase is wrong"]),
        (-9, "", "", ["pulumi ended with exit code -9"]),
        (0, "not JSON", "", ["not JSON"]),
        (0, answer(messages=(("error", FALSE_ALARM),)), "", []),
        (255, answer(messages=(("error", FALSE_ALARM),)), "", [FALSE_ALARM.removeprefix("error: ")]),
    ],
)
def test_errors_of_engine_and_program_are_reported(code: int, stdout: str, stderr: str, errors: list[str]) -> None:
    assert list(read_answer(code, stdout, stderr, OWN).errors) == errors


def test_messages_of_this_project_are_omitted() -> None:
    texts = (f"{OWN}cluster: x", "warning: offline: simulated", "old plugin\n")
    messages = tuple(("warning", text) for text in texts)
    assert read_answer(0, answer(messages=messages), "", OWN).warnings == ("old plugin",)
