"""The command line of `yard init`: prompts, exit codes, JSON, and the use of the clouds' CLIs."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.conftest import ROOT
from tests.yard.checkout_root import use_root
from tests.yard.conftest import MakeProgram
from tests.yard.init.conftest import WriteStack
from yard.commands.cli import app
from yard.init.command import init
from yard.init.interview import Terminal
from yard.init.render import comments_in, render
from yard.preview.content import NOT_INCLUDED
from yard.quota.account import available_machines

A100 = ("--provider", "azure", "--region", "eastus", "--machine", "Standard_ND96amsr_A100_v4")
COMPLETE = ("new", *A100, "--count", "2", "--budget", "70")


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["init", *words])
    return result.exit_code, result.stdout, result.stderr


def answering(*answers: str) -> tuple[Terminal, list[str]]:
    """Return a terminal that gives these answers, and a list to which it adds the prompts and the printed lines."""
    shown: list[str] = []
    left: Iterator[str] = iter(answers)

    def ask(text: str) -> str:
        shown.append(text)
        return next(left)

    return Terminal(ask=ask, say=shown.append), shown


def test_the_price_and_the_next_commands_are_printed(stacks: Path) -> None:
    code, out, _ = run(*COMPLETE, "--offline")
    assert code == 0
    assert "wrote stacks/Pulumi.new.yaml: 3 hosts, 16 GPUs\n" in out
    assert "list price: $66.11/h ($48,260 a month), plus unknown prices\n" in out
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
    assert (document["usd_per_hour"], document["usd_per_month"], document["all_prices_known"]) == (66.109, 48260, False)
    assert document["price"]["regions"] == ["eastus"]
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


def test_missing_values_are_asked_until_they_are_valid(write: WriteStack) -> None:
    terminal, shown = answering(
        "Bad", "", "new", "1", "", "Standard_ND96asr_v5", "1", "westus9", "eastus", "x", "", "50", "60", ""
    )
    new = write(terminal=terminal)
    assert new.description["plan"] is not None
    assert [host["machine"] for host in new.description["plan"]["hosts"]] == [
        "Standard_D8s_v5",
        *["Standard_ND96asr_v4"] * 2,
    ]
    text = "\n".join(shown)
    assert "NAME: must be 1 to 16 lowercase letters" in text
    assert shown.count("  an answer is required") == 2
    assert len(new.description["plan"]["hosts"]) == 3
    prompts = [line.partition(" (")[0].partition(" [")[0] for line in shown if line.endswith(": ")]
    assert list(dict.fromkeys(prompts))[2:6] == [
        "Machine type of the nodes",
        "Region or zone",
        "Number of nodes",
        "Maximum list price in US dollars per hour, or none: ",
    ]
    assert "--region: must be a region or zone of the platform. Fix: write westus2." in text
    assert "Standard_ND96asr_v4: 8 x a100, infiniband-hdr, list price $27.20/h" in text
    assert "known list prices: 2 x $27.20/h for the nodes, $0.57/h for head and storage, in total $54.96/h" in text
    assert "--count: 2 machines with head and storage cost 54.96 dollars an hour; the budget is 50" in text


def test_given_options_are_not_asked(write: WriteStack) -> None:
    terminal, shown = answering("2", "203.0.113.0/24")
    options = {"name": "new", "provider": "azure", "region": "eastus", "machine": "Standard_ND96asr_v4"}
    new = write(terminal=terminal, budget="none", **options)
    assert "access: {allow_ssh_from: [203.0.113.0/24], via: public}" in new.file.read_text()
    assert [line for line in shown if line.endswith(": ")] == [
        "Number of nodes [2]: ",
        "Networks that may connect over SSH, such as your public address as a /32. Empty: the cloud's SSH gateway: ",
    ]


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


def test_only_machines_of_the_account_are_offered(stacks: Path, program: MakeProgram) -> None:
    usable = [{"name": "Standard_D8s_v5"}, {"name": "Standard_NC24ads_A100_v4"}]
    az = program("az", f"echo '{json.dumps(usable)}'")
    terminal, shown = answering("1", "1", "none", "")
    given = {"name": "new", "provider": "azure", "region": "eastus"}
    init(given, post=None, force=False, offline=False, terminal=terminal)
    assert az.calls[0] == "vm list-skus --resource-type virtualMachines --location eastus --output json"
    assert "   1  Standard_NC24ads_A100_v4: 1 x a100, ethernet, list price $3.67/h" in shown
    assert any(line.startswith("  not available to your account: Standard_ND96asr_v4, ") for line in shown)
    assert "machine: Standard_NC24ads_A100_v4" in (stacks / "Pulumi.new.yaml").read_text()


def test_google_machines_are_read_for_the_zone(program: MakeProgram) -> None:
    gcloud = program("gcloud", """echo '[{"name": "a2-highgpu-8g"}]'""")
    platform = {"provider": "gcp", "project": "my-project-1", "zone": "us-central1-f"}
    assert available_machines(platform) == {"a2-highgpu-8g"}
    zones = "compute machine-types list --zones us-central1-f --project my-project-1 --format json"
    assert gcloud.calls == [zones]


def test_without_a_cli_all_machines_are_offered(stacks: Path, program: MakeProgram) -> None:
    program("az", "exit 1")
    terminal, shown = answering("1", "1", "none", "")
    given = {"name": "new", "provider": "azure", "region": "eastus"}
    init(given, post=None, force=False, offline=False, terminal=terminal)
    assert any("note: all machine types in the catalog are listed: az failed" in line for line in shown)
    assert "machine: Standard_ND96asr_v4" in (stacks / "Pulumi.new.yaml").read_text()


@pytest.mark.parametrize("body", ["echo 'run az login' >&2; exit 1", "exec sleep 60", "echo nonsense"])
def test_a_failing_cli_is_only_a_note(
    body: str, stacks: Path, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yard.init.command._SECONDS", 0.5)
    program("az", body)
    code, out, _ = run(*COMPLETE)
    assert code == 0
    assert "note: quotas were not checked, because the account could not be read: az " in out
    assert (stacks / "Pulumi.new.yaml").exists()


def test_rendered_values_are_read_back() -> None:
    section = {
        "name": "yes",
        "platform": {"a": "1", "b": ["x, y", "null", "10.0.0.0/8"], "c": {"d": 1.5, "e": True, "f": "# no"}},
        "nodes": {"on": {"count": 2}, "no": {"name": "x" * 90}},
        "hosts": [{"key": "ssh-ed25519 " + "A" * 80, "port": 22}, {"key": "k: v", "port": 23}],
    }
    comments = {"platform.c": "word " * 40, "hosts": "two"}
    text = render(section, comments, "about")
    assert yaml.safe_load(text) == {"config": {"trainyard:cluster": section}}
    assert comments_in(text) == {"platform.c": ("word " * 40).strip(), "hosts": "two"}
    assert max(map(len, text.splitlines())) <= 120
