"""Every file, heading, list and `yard` command in the documentation exists, and runnable blocks and examples run.

A block that starts with "```sh run" runs in a copy of the checkout, after the earlier runnable blocks on its page. The
examples, and the commands on docs/pulumi.md, run in a copy of the tracked files, on simulated clouds.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from health.node import load_checks
from typer import Exit

from components.platforms import PLATFORMS
from tests.conftest import ROOT, MakeProgram
from tests.plain_clone import PlainClone, commands
from tests.yard.conftest import command_tree, outputs_file
from yard.commands.cli import app
from yard.doctor.checks import CHECKS
from yard.environments.definition import environment_names
from yard.job.launcher import LAUNCHERS
from yard.job.spec import PROVIDED
from yard.run.queue import parse_scontrol
from yard.stack.workspace import PLUGINS, added_keys

PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*.md"), ROOT / "cloud-init" / "README.md"]
)
TOP = {path.name for path in ROOT.iterdir()} - {".git", ".trainyard", ".venv"}
STAGES = ROOT / "cloud-init" / "files" / "usr" / "local" / "lib" / "trainyard" / "stages"


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def paths_in(text: str) -> set[str]:
    """Return the repository paths in backticks, with `<name>` in a path replaced by `*`."""
    quoted = {re.sub(r"<[a-z]+>", "*", word) for word in re.findall(r"`([^`\s]+)`", text)}
    return {word.rstrip("/") for word in quoted if word.split("/")[0] in TOP and "NAME" not in word}


def test_tests_named_in_the_design_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "dev" / "design.md").read_text()))
    code = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert [name for name in sorted(named) if f"def {name}(" not in code] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_named_paths_links_and_targets_exist(page: Path) -> None:
    assert [path for path in sorted(paths_in(page.read_text())) if not list(ROOT.glob(path))] == []
    links = re.findall(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)", page.read_text())
    for link, anchor in links:
        target = (page.parent / link).resolve() if link else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    assert set(re.findall(r"`make ([a-z-]+)`", page.read_text())) <= targets


def first_column(page: str, heading: str) -> list[str]:
    """Return the first cell of each row in the first table after a heading on a page."""
    section = (ROOT / page).read_text().partition(heading)[2]
    table = re.search(r"(?m)^\| ?-+.*\n((?:\|.*\n)+)", section)
    assert table, f"{page} has no table after {heading}"
    return [line.split("|")[1].strip().strip("`") for line in table[1].splitlines()]


def test_every_platform_has_a_page() -> None:
    assert set(PLATFORMS) <= {page.stem for page in ROOT.glob("docs/platforms/*.md")}


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        ("docs/jobs.md", "## Choose a launcher", LAUNCHERS),
        ("docs/environments.md", "# Python environments", environment_names()),
        ("cloud-init/README.md", "\n| stage |", [path.name for path in STAGES.iterdir()]),
        ("docs/troubleshooting.md", "## Cluster checks", CHECKS),
        ("docs/health.md", "## Checks", load_checks()),
    ],
)
def test_a_table_lists_every_name(page: str, heading: str, names: Iterable[str]) -> None:
    listed = [name.strip("` ") for cell in first_column(page, heading) for name in cell.split(",")]
    assert sorted(listed) == sorted(names)


def test_every_command_is_listed() -> None:
    listed = " ".join(re.findall(r"(?m)^- \[?`yard ([^`]+)`", (ROOT / "docs" / "commands.md").read_text()))
    commands: Any = command_tree(app).commands  # type: ignore[attr-defined]
    assert [name for name in commands if not re.search(rf"\b{name}\b", listed)] == []


ELSEWHERE = (
    "QUOTA_EXCEEDED",
    "exceeding approved",
    "Permission denied",
    "the stack is currently locked",
    "failed to load checkpoint: EOF",
    "TY:",
    "use_libuv was requested",
    "[c10d] The server could not be initialized",
    "Not responding",
    "Watchdog caught collective operation timeout",
    "NET/Socket",
    "NET/IB",
    "CUDA out of memory",
    "Bus error",
    "/shared does not answer",
)
"""Starts of messages that the code does not contain, because other programs print them or they are composed."""


def test_messages_of_troubleshooting_are_current() -> None:
    files = [
        file
        for name in ("trainyard", "components", "yard", "cloud-init", "offline")
        for file in (ROOT / name).rglob("*")
    ]
    texts = [file.read_text(errors="ignore") for file in files if file.is_file() and file.suffix != ".pyc"]
    # Joins adjacent string literals of a message.
    code = "".join(re.sub(r'"\n *f?"', "", text) for text in texts)
    rows = (ROOT / "docs" / "troubleshooting.md").read_text().splitlines()
    messages = re.findall(r"`([^`]+)`", "".join(row.split("|")[1] for row in rows if row.startswith("| ")))
    parts = [part.strip() for message in messages for part in re.split(r"\.\.\.|<\w+>", message)]
    other = [part for part in parts if part not in code]
    assert [part for part in other if not part.startswith(ELSEWHERE)] == []
    assert [start for start in ELSEWHERE if not any(part.startswith(start) for part in other)] == []


TUTORIALS = sorted(ROOT.glob("docs/tutorials/*.md"))
VALUES = {
    "JOB": "7",
    "RANK": "1",
    "MODEL": "opt-125m",
    "GPU": "h100",
    "KEY": "admin",
    "POST": "abeja",
    "<stack>": "local",
    "...": "",
    "<node>": "node",
}
"""Replacements for placeholders that stand for a number, for one of several words, or that the shell cannot parse."""
USER = {"MY_NETWORK": "100.20.30.40/32", "MY_PROJECT": "my-project-1"}
"""Values that readers of the tutorials must set."""


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the info string and the content of each fenced block."""
    for found in re.finditer(r"(?ms)^```([^\n]*)\n(.*?)^```", text):
        yield found[1], found[2]


def command_lines(text: str) -> Iterator[str]:
    """Yield each line of a code block, and each inline code, that starts with `yard `."""
    indented = re.findall(r"(?m)^    (.*\S)$", text)
    for content in ["\n".join(indented), *(content for _, content in blocks(text))]:
        for line in content.replace("\\\n", " ").splitlines():
            # A line can contain several commands, a redirection or a loop.
            yield from (
                part.strip() for part in re.split(r"&&| \|\|? |;| ?>", line) if part.strip().startswith("yard ")
            )
    for inline in re.findall(r"`(yard\s[^`]+)`", re.sub(r"(?ms)^```.*?^```", "", text)):
        yield re.split(r" \|\|? | ?>", " ".join(inline.split()))[0]


def words_of(line: str) -> list[str]:
    for placeholder, value in VALUES.items():
        line = line.replace(placeholder, value)
    words = shlex.split(line.rstrip("&"), comments=True)
    # "[--provider azure|gcp]" is an optional argument with two values.
    return [re.sub(r"^\[|\]$|(?<=[a-z])\|[a-z]+", "", word) for word in words]


def parse(words: list[str]) -> None:
    """Parse a command as `yard` would, without running it. Raises UsageError."""
    command: Any = command_tree(app)
    if words == ["yard", "--install-completion"]:
        return  # parsing this option would write to the shell's start-up file
    parent = None
    name, rest = words[0], words[1:]
    while True:
        try:
            context = command.make_context(name, list(rest), parent=parent)
        except Exit:
            return  # --help
        command = context.command
        if not hasattr(command, "commands"):
            return
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        parent = context


def failure(line: str) -> str | None:
    words = words_of(line)
    # A sentence such as "`yard logs` prints ..." names a command without arguments, so it is not parsed.
    group: Any = command_tree(app)
    for word in words[1:] or [""]:
        group = getattr(group, "commands", {}).get(word)
        if group is None:
            break
    else:
        return None
    try:
        parse(words)
    except Exception as error:
        return f"{line}: {getattr(error, 'message', error)}"
    return None


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_on_a_page_exist(page: Path) -> None:
    failures = [failure(line) for line in command_lines(page.read_text())]
    assert [text for text in failures if text] == []


def test_wrong_commands_are_found() -> None:
    indented, block = "    yard wait 7 && yard lgos 7\n", "```sh run\nyard submit x \\\n  --node 2\n```\n"
    lines = list(command_lines(f"`yard ps` and `yard\nnodes`\n\n{indented}\n{block}"))
    assert [line for line in lines if failure(line)] == ["yard lgos 7", "yard submit x    --node 2"]
    assert len(lines) == 5


def test_every_tutorial_has_a_runnable_block() -> None:
    assert len(TUTORIALS) >= 4
    without = [page.name for page in TUTORIALS if not any(info == "sh run" for info, _ in blocks(page.read_text()))]
    assert without == []


def test_the_script_of_the_tutorial_runs_without_a_job_file() -> None:
    page = (ROOT / "docs" / "tutorials" / "your-own-script.md").read_text()
    script = page.partition("cat >train.py <<'EOF'\n")[2].partition("\nEOF\n")[0]
    required = set(re.findall(r'os\.environ\["(\w+)"\]', script))
    assert required
    assert required <= set(PROVIDED) - {"CHECKPOINT_DIR", "ARRAY_INDEX"}


@pytest.fixture
def checkout(tmp_path: Path, program: MakeProgram) -> Path:
    """A copy of the parts of the checkout that these commands use, with a Pulumi backend and failing cloud CLIs."""
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("components", "cloud-init", "offline", "stacks", "trainyard", "yard"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Pulumi.yaml", "__main__.py", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    for name in ("az", "gcloud"):
        program(name, "echo 'ERROR: not logged in' >&2; exit 1")
    (root / ".venv").symlink_to(ROOT / ".venv")
    state = root / ".trainyard"
    (state / "state").mkdir(parents=True)
    (state / "env.sh").write_text(
        f". {shlex.quote(str(ROOT))}/.trainyard/env.sh\nexport PULUMI_BACKEND_URL=file://{state}/state\n"
    )
    return root


@pytest.mark.engine
@pytest.mark.parametrize("page", TUTORIALS, ids=page_name)
def test_runnable_blocks_run(page: Path, checkout: Path) -> None:
    script = "\n".join(content for info, content in blocks(page.read_text()) if info == "sh run")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PULUMI", "TRAINYARD"))}
    command = ["/bin/bash", "-euxo", "pipefail", "-c", f". .trainyard/env.sh\nexport PYTHONPATH=$PWD\n{script}"]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=checkout, env=environment | USER, **pipes, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


SUBMIT = ROOT / "examples" / "submit-and-wait"
EXAMPLES = sorted(folder for folder in (ROOT / "examples").iterdir() if folder.is_dir() and folder != SUBMIT)
LOGIN = """
mkdir ~/states
export PULUMI_CONFIG_PASSPHRASE=x PULUMI_BACKEND_URL="file://$HOME/states"
"""
EXPECTED = {
    "automation-api": ("head: 203.0.113.", "+ 40 to create"),
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
    assert clone.resources("mine")
    assert clone.changed() == []


ANSWERS = r"""
case "$*" in
  *"exec bash -c"*) printf 'rank 0 of 1\n\036JobId=12 JobName=x UserId=t(1) JobState=%s ExitCode=1:0\n' "$STATE" ;;
  *"sbatch --parsable"*) cat >/dev/null; echo 12 ;;
  *"scontrol -o show job"*) echo "JobId=12 JobName=x UserId=t(1) JobState=$STATE ExitCode=1:0" ;;
esac
"""
"""A fake ssh for a cluster whose job has ended in the state $STATE."""


Cluster = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def stand_in(program: MakeProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a function that runs a command with a cluster whose job has ended in the given state."""
    outputs = outputs_file(tmp_path / "outputs.json")
    program("ssh", ANSWERS)
    program("yard", f'exec {sys.executable} -m yard "$@"')
    program("pip", "exit 0")
    program("pulumi", f'case "$*" in *version*) echo v{version("pulumi")} ;; *output*) cat {outputs} ;; esac')
    monkeypatch.setenv("TRAINYARD_OUTPUTS", str(outputs))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("print()\n")

    def run(state: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"STATE": state} | variables
        return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.mark.engine
@pytest.mark.parametrize("words", ["submit.py", "automation.py . local", "prefect_flow.py"])
def test_the_example_awaits_a_job_and_fails_with_it(words: str, stand_in: Cluster) -> None:
    """Prefect is not installed, so its example runs the function of the task without it."""
    file, *first = words.split()
    command = (sys.executable, str(SUBMIT / file), *first)
    done = stand_in("COMPLETED", *command, "hello")
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"job 12 in /shared/jobs/hello-.*\nrank 0 of 1\nCOMPLETED: every rank ended with exit code 0\n", done.stdout
    )
    done = stand_in("FAILED", *command, "hello")
    assert done.returncode == 1
    assert "FAILED: a rank failed with exit code 1\n" in done.stdout
    done = stand_in("FAILED", *command, "no-such-recipe")
    assert done.returncode == 1
    assert "recipe not found" in done.stderr


@pytest.mark.engine
@pytest.mark.parametrize(
    ("state", "failed", "result"),
    [
        ("COMPLETED", [], "COMPLETED: every rank ended with exit code 0"),
        ("FAILED", ["Wait"], "FAILED: a rank failed with exit code 1"),
    ],
)
def test_the_steps_of_the_workflow_run(
    state: str, failed: list[str], result: str, stand_in: Cluster, tmp_path: Path
) -> None:
    values = {"secrets.TRAINYARD_OUTPUTS": (tmp_path / "outputs.json").read_text(), "inputs.nodes": "2"}
    files = {name: tmp_path / name for name in ("GITHUB_ENV", "GITHUB_STEP_SUMMARY", "RUNNER_TEMP")}
    files["RUNNER_TEMP"].mkdir()
    (tmp_path / "GITHUB_ENV").touch()
    broken: list[str] = []
    printed = ""
    steps = yaml.safe_load((SUBMIT / "train.yml").read_text())["jobs"]["train"]["steps"]
    for step in (step for step in steps if "run" in step):
        exported = dict(line.split("=", 1) for line in files["GITHUB_ENV"].read_text().splitlines())
        runs = {None: not broken, "always() && env.JOB": "JOB" in exported, "cancelled() && env.JOB": False}
        if not runs[step.get("if")]:
            continue
        own = {
            name: values[text.removeprefix("${{ ").removesuffix(" }}")] for name, text in step.get("env", {}).items()
        }
        shell = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"])
        done = stand_in(state, *shell, **{name: str(file) for name, file in files.items()}, **exported, **own)
        printed += done.stdout
        broken += [step["name"]] if done.returncode else []
    assert broken == failed, printed
    assert "rank 0 of 1\n" in printed
    assert files["GITHUB_STEP_SUMMARY"].read_text() == f"{result} \n"
    assert (files["RUNNER_TEMP"] / "outputs.json").stat().st_mode & 0o077 == 0


def test_the_docs_list_every_key_of_a_job() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    table = page.partition("| key of a job | content |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    listed = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    [job] = parse_scontrol("JobId=12 JobName=x UserId=t(1) JobState=COMPLETED ExitCode=0:0")
    assert listed == set(job.as_json())


PAGE = ROOT / "docs" / "pulumi.md"
STACK_FILE = "stacks/Pulumi.mine.yaml"
SECOND_OPERATOR = """
pulumi login "$BACKEND"
pulumi install
pulumi stack select mine
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
    assert clone.resources("mine")
    assert clone.changed() == []
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
