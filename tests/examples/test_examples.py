"""The examples and docs/pulumi.md: their commands run in a copy of the tracked files, on simulated clouds."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT, MakeProgram
from tests.plain_clone import PlainClone, commands
from tests.yard.conftest import outputs_file
from yard.run.queue import parse_scontrol
from yard.stack.workspace import PLUGINS, added_keys

SUBMIT = ROOT / "examples" / "submit-and-wait"
EXAMPLES = sorted(folder for folder in (ROOT / "examples").iterdir() if folder.is_dir() and folder != SUBMIT)
LOGIN = """
mkdir ~/states
export PULUMI_CONFIG_PASSPHRASE=x PULUMI_BACKEND_URL="file://$HOME/states"
"""
EXPECTED = {
    "automation-api": ("head: 203.0.113.", "+ 37 to create"),
    "own-network": ("trainyard:gcp:NodeGroup", '"trainer-1"'),
    "own-program": ('disk             : "datasets-', "own-gpu-1 slots=1"),
    "stack-reference": ('"opt-gpu-1"', '"gpus": 16'),
}
"""Expected parts of each example's output."""


def test_every_example_is_complete_and_current() -> None:
    assert {folder.name for folder in EXAMPLES} == set(EXPECTED)
    text = (ROOT / "examples" / "stack-reference" / "requirements.txt").read_text()
    assert text == f"pulumi=={version('pulumi')}\n"


@pytest.mark.full
@pytest.mark.engine
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda folder: str(folder.name))
def test_commands_of_the_example_succeed(example: Path, tmp_path: Path) -> None:
    clone = PlainClone(tmp_path)
    # requirements.txt of an example installs the checkout, so that its packages can be imported.
    printed = clone.run(LOGIN + commands(example / "README.md", example.name), PYTHONPATH=str(clone.root))
    for part in EXPECTED[example.name]:
        assert part in printed
    assert clone.resources("azure-a100" if example.name in {"automation-api", "stack-reference"} else "dev")


ANSWERS = r"""
case "$*" in
  *"exec bash -c"*) printf 'rank 0 of 1\n\036JobId=12 JobState=%s ExitCode=1:0\n' "$STATE" ;;
  *"sbatch --parsable"*) cat >/dev/null; echo 12 ;;
  *"scontrol -o show job"*) echo "JobId=12 JobState=$STATE ExitCode=1:0" ;;
esac
"""
"""A fake ssh for a cluster whose job has ended in the state $STATE."""


Submit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def submit(program: MakeProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    program("ssh", ANSWERS)
    program("yard", f'exec {sys.executable} -m yard "$@"')
    monkeypatch.setenv("TRAINYARD_OUTPUTS", str(outputs_file(tmp_path / "outputs.json")))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(state: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(SUBMIT / "submit.py"), *words]
        variables = os.environ | {"STATE": state}
        return subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)

    return run


def test_the_example_awaits_a_job_and_fails_with_it(submit: Submit) -> None:
    done = submit("COMPLETED", "hello")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0].startswith("job 12 in /shared/jobs/hello-")
    assert lines[1:] == ["rank 0 of 1", "COMPLETED: every rank ended with exit code 0"]
    done = submit("FAILED", "hello")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "FAILED: a rank failed with exit code 1")
    done = submit("FAILED", "no-such-recipe")
    assert done.returncode == 1
    assert "recipe not found" in done.stderr


def test_the_docs_list_every_key_of_a_job() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    table = page.partition("| key of a job | content |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    listed = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    [job] = parse_scontrol("JobId=12 JobState=COMPLETED ExitCode=0:0")
    assert listed == set(job.as_json())


PAGE = ROOT / "docs" / "pulumi.md"
STACK_FILE = "stacks/Pulumi.azure-a100.yaml"
SECOND_OPERATOR = """
pulumi login "$BACKEND"
pulumi install
pulumi stack select azure-a100
pulumi preview --diff --expect-no-changes
.venv/bin/python -m yard refresh --save ~/jobs.json
.venv/bin/python -m yard hostfile --outputs ~/jobs.json
"""


def test_versions_on_the_page_are_current() -> None:
    text = PAGE.read_text()
    for plugin, package in PLUGINS.items():
        assert f"| plugin {plugin} | {version(package)} |" in text
    wanted = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["requiredPulumiVersion"]
    assert f"| {wanted.removeprefix('>=')} or newer |" in text


@pytest.mark.engine
def test_a_clone_is_deployed_with_the_cli_alone(tmp_path: Path) -> None:
    clone = PlainClone(tmp_path)
    printed = clone.run(commands(PAGE, "plain-pulumi"))
    assert "opt-gpu-0 slots=8\nopt-gpu-1 slots=8\n" in printed
    assert clone.resources("azure-a100")
    # The page states which keys Pulumi adds to the stack file.
    assert list(added_keys((clone.root / STACK_FILE).read_text())) == ["encryptionsalt"]
    assert "`encryptionsalt`" in PAGE.read_text()
    # A second clone with the same stack file sees no changes, and saves a file for a job user.
    first, second = clone, PlainClone(tmp_path / "second")
    shutil.copy(first.root / STACK_FILE, second.root / STACK_FILE)
    printed = second.run(
        SECOND_OPERATOR,
        BACKEND=f"file://{first.home}/states?metadata=skip",
        PULUMI_CONFIG_PASSPHRASE_FILE=str(first.home / "passphrase"),
        TRAINYARD_OFFLINE=str(first.home / "clouds"),
    )
    assert printed.endswith("opt-gpu-0 slots=8\nopt-gpu-1 slots=8\n")
    assert (second.root / STACK_FILE).read_text() == (first.root / STACK_FILE).read_text()
    outputs = json.loads((second.home / "jobs.json").read_text())
    assert set(outputs) == {"cluster", "user_private_key"}
