"""The command line of `yard init`: prompts, exit codes, JSON, and the use of the clouds' CLIs."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.conftest import ROOT
from tests.yard.checkout_root import use_root
from tests.yard.conftest import MakeProgram
from tests.yard.init.conftest import WriteStack
from yard.commands.cli import app
from yard.init.answers import InitError
from yard.init.stack_text import cluster_section, with_values
from yard.preview.printing import NOT_INCLUDED

A100 = ("--provider", "azure", "--region", "eastus", "--machine", "Standard_ND96amsr_A100_v4")
COMPLETE = ("new", *A100, "--count", "2", "--budget", "70")
NETWORK = ("--ssh-from", "203.0.113.0/24")


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["init", *words])
    return result.exit_code, result.stdout, result.stderr


def answer(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """Make prompts return these answers."""
    left = iter(answers)
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", lambda text: next(left))


def test_the_price_and_the_next_commands_are_printed(stacks: Path) -> None:
    code, out, _ = run(*COMPLETE, *NETWORK, "--offline")
    assert code == 0
    assert "wrote stacks/Pulumi.new.yaml: 3 hosts, 16 GPUs, list price $66.11/h\n" in out
    assert "203.0.113.0/24 is reserved for documentation (RFC 5737)" in out
    assert "list prices of eastus, read on 2026-" in out
    assert f"not included: {NOT_INCLUDED}\n" in out
    assert out.endswith(
        "note: no stack has been created on a real Azure or Google Cloud yet (docs/verification.md); start with a "
        "small count\nnext:\n  yard preview new\n  az login\n  pulumi stack select --create new\n  pulumi up -s new\n"
        "  yard submit hello --stack new --follow\n"
    )


def test_json_contains_the_same_facts(stacks: Path) -> None:
    code, out, _ = run(*COMPLETE, "--offline", "--json")
    assert code == 0
    document = json.loads(out)
    assert (document["price"]["usd"], document["price"]["regions"]) == (65.924, ["eastus"])
    assert document["next"][0] == "yard preview new"
    assert document["account"] is None


def test_missing_options_end_with_code_1(stacks: Path) -> None:
    code, out, err = run("new", "--provider", "azure", "--yes")
    assert (code, out) == (1, "")
    assert "4 problems in yard init; nothing was written." in err
    code, out, err = run("new", "--provider", "azure", "--json")
    assert (code, err) == (1, "")
    assert "--region: is missing" in json.loads(out)["error"]


def test_it_needs_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_root(tmp_path, monkeypatch)
    code, _, err = run(*COMPLETE)
    assert code == 1
    assert "`yard init` needs a checkout of trainyard" in err


def test_missing_values_are_asked_until_they_are_valid(
    write: WriteStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("Bad", "new", "1", "", "Standard_ND96asr_v5", "1", "westus9", "eastus", "x", "", "50", "60", "")
    answer(monkeypatch, *given)
    new = write(prompt=True)
    assert "gpu: {machine: Standard_ND96asr_v4, count: 2, placement: same_fabric}" in new.file.read_text()
    assert new.file.name == "Pulumi.new.yaml"
    shown = capsys.readouterr().out
    for text in (
        "Error: must be 1 to 16 lowercase letters",
        "Error: must be a machine type of the platform azure. Fix: write Standard_ND96asr_v4",
        "Standard_ND96asr_v4: 8 x a100, infiniband-hdr, list price $27.20/h",
        "Fix: write westus2",
        "Error: must be a whole number",
        "known list prices with 2 nodes: $54.96/h",
        "the limit is 50. Fix: use a budget of 55 or more, or a count of 1 or fewer",
    ):
        assert text in shown
    order = ("Name of", "Platform", "Machine type", "Region", "Number of nodes", "Maximum list price", "Networks")
    assert sorted(order, key=shown.index) == list(order)


def test_given_options_are_not_asked(
    write: WriteStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, "2", "203.0.113.0/24")
    options = {"name": "new", "provider": "azure", "region": "eastus", "machine": "Standard_ND96asr_v4"}
    new = write(prompt=True, budget="none", **options)
    assert "access: {allow_ssh_from: [203.0.113.0/24], via: public}" in new.file.read_text()
    shown = capsys.readouterr().out
    assert "Number of nodes [2]" in shown
    assert "Machine type" not in shown


def test_a_wrong_option_is_reported_before_a_prompt(write: WriteStack, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch)
    with pytest.raises(InitError, match=r"--count: must be a whole number"):
        write(prompt=True, name="new", provider="azure", count="two")


@pytest.mark.engine
def test_ctrl_c_at_a_prompt_leaves_no_file() -> None:
    before = sorted((ROOT / "stacks").iterdir())
    leader, follower = pty.openpty()
    # A shell starts background commands with SIGINT ignored. `env` restores the default action.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "yard", "init", "new", "--provider", "local"]
    with subprocess.Popen(command, cwd=ROOT, stdin=follower, stdout=follower, stderr=follower) as process:
        try:
            shown = b""
            while b"Machine type of the nodes" not in shown:
                shown += os.read(leader, 4096)
            # input() misses a SIGINT between its prompt and its read() (measured with CPython 3.11 on a busy machine),
            # so the test presses Ctrl-C again like a user.
            for _ in range(12):
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=5)
                    break
            assert process.wait(timeout=1) == 130
        finally:
            process.kill()
            os.close(follower)
            os.close(leader)
    assert sorted((ROOT / "stacks").iterdir()) == before


USAGE = [{"currentValue": "0", "limit": "100", "name": {"value": "cores"}}]


def test_quotas_are_read_with_the_cli(stacks: Path, program: MakeProgram) -> None:
    az = program("az", f"case \"$*\" in vm\\ list-usage*) echo '{json.dumps(USAGE)}';; *) echo '[]';; esac")
    code, out, err = run(*COMPLETE)
    assert code == 0
    assert "reading quotas" in err
    assert "short by 100" in out
    assert "eastus does not offer Standard_ND96amsr_A100_v4" in out
    # Only these CLI calls are made, and all of them only read data.
    assert {" ".join(call.split()[:2]) for call in az.calls} == {
        "network list-usages",
        "provider list",
        "vm image",
        "vm list-skus",
        "vm list-usage",
    }


@pytest.mark.parametrize("body", ["echo 'run az login' >&2; exit 1", "exec sleep 60", "echo nonsense"])
def test_a_failing_cli_is_only_a_note(
    body: str, stacks: Path, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yard.init.new_stack._SECONDS", 0.5)
    program("az", body)
    code, out, _ = run(*COMPLETE)
    assert code == 0
    assert "note: quotas were not checked, because the account could not be read: az " in out
    assert (stacks / "Pulumi.new.yaml").exists()


TEXT = """\
config:
  trainyard:cluster:
    # one
    name: new
    # two
    nodes:
      # three
      gpu: {machine: a, hosts: [b]}
    # four
    silence: [x]
    # five
    storage:
      - a: b
    # six
    last: 1
"""


def test_changed_values_are_read_back() -> None:
    values = {
        ("name",): "yes",
        ("nodes", "gpu"): {"machine": "x, y", "hosts": ["h" * 20] * 9},
        ("silence",): None,
        ("storage",): [{"key": "k: v", "port": 22, "long": "x" * 100}],
        ("last",): 1,
        ("limits",): {"usd": 1.5},
    }
    expected = {path[0]: value for path, value in values.items() if value is not None and len(path) == 1}
    for keep in (True, False):
        text = with_values(TEXT, values, keep_comments=keep)
        assert cluster_section(text) == expected | {"nodes": {"gpu": values["nodes", "gpu"]}}
        assert max(map(len, text.splitlines())) <= 120
        assert all((f"# {word}\n" in text) == keep for word in ("one", "two", "three", "five"))
        assert "# six\n" in text
