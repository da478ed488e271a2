"""Files for GitHub and .ci: workflows, their credentials, previews of all stacks, the comment and owners."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, MakeProgram
from yard.preview.printing import LONGEST, MARKER

TEMPLATE = ROOT / "yard" / "init" / "project"
"""The files of a project from `yard new`."""
FILES = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
NEW_FILES = sorted((TEMPLATE / ".github" / "workflows").glob("*.y*ml"))
WORKFLOWS: dict[str, dict[Any, Any]] = {file.stem: yaml.safe_load(file.read_text()) for file in FILES}
NEW: dict[str, dict[Any, Any]] = {file.stem: yaml.safe_load(file.read_text()) for file in NEW_FILES}
MAY_WRITE = {("preview-comment", "pull-requests"), ("preview", "id-token"), ("heal", "id-token")}
LONG_LIVED = ("ARM_CLIENT_SECRET", "GOOGLE_CREDENTIALS", "PULUMI_ACCESS_TOKEN")
STACKS = sorted(file.name.split(".")[1] for file in (ROOT / "stacks").glob("Pulumi.*.yaml"))


@pytest.mark.parametrize(("name", "content"), [*WORKFLOWS.items(), *NEW.items()])
def test_tokens_are_read_only_with_listed_exceptions(name: str, content: dict[Any, Any]) -> None:
    assert {"check", "preview", "preview-comment"} <= set(WORKFLOWS)
    granted = {key: level for job in content["jobs"].values() for key, level in job.get("permissions", {}).items()}
    assert {(name, key) for key, level in granted.items() if level != "read"} <= MAY_WRITE


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_jobs_have_limits_and_guarded_credentials(workflow: str) -> None:
    assert not [name for name in LONG_LIVED if f"secrets.{name}" in json.dumps(WORKFLOWS[workflow])]
    for job in WORKFLOWS[workflow]["jobs"].values():
        text = json.dumps(job)
        assert job["timeout-minutes"] <= (120 if workflow == "heal" else 30)
        assert job["runs-on"] == "ubuntu-24.04"
        has_credentials = "secrets." in text or "id-token" in job.get("permissions", {})
        assert has_credentials == ("environment" in job)
        # A job that needs no approval can write to the cache, and other jobs of its pull request can read this cache.
        assert not has_credentials or "actions/cache" not in text


@pytest.mark.parametrize("workflows", [WORKFLOWS, NEW])
def test_comment_workflow_runs_no_code_of_a_pull_request(workflows: dict[str, dict[Any, Any]]) -> None:
    comment = workflows["preview-comment"]
    # YAML parses the key `on` as true.
    assert list(comment[True]) == ["workflow_run"]
    assert comment[True]["workflow_run"]["workflows"] == [workflows["preview"]["name"]]
    checkouts = [step for step in comment["jobs"]["comment"]["steps"] if "uses" in step]
    assert ["ref" in step["with"] or "repository" in step["with"] for step in checkouts] == [False]


def test_a_new_project_previews_all_stacks_as_here() -> None:
    assert NEW.keys() == {"preview", "preview-comment"}
    (script,) = (step["run"] for step in NEW["preview"]["jobs"]["offline"]["steps"] if "yard" in step.get("run", ""))
    here = [step["run"] for step in WORKFLOWS["preview"]["jobs"]["offline"]["steps"] if "yard" in step.get("run", "")]
    assert here == [f"source .trainyard/env.sh\n{script.replace('.venv/bin/yard', 'yard')}"]
    assert "secrets." not in json.dumps(NEW)
    texts = {stem: file.read_text() for file in NEW_FILES for stem in [file.stem]}
    used = {line for text in texts.values() for line in re.findall(r"uses: (.+)", text)}
    assert used <= {line for file in FILES for line in re.findall(r"uses: (.+)", file.read_text())}
    own = (ROOT / ".github" / "workflows" / "preview-comment.yml").read_text()
    assert texts["preview-comment"] == own.replace("yard/init/project/.github/", "bash .github/")
    # The CLI has the version of the SDK.
    assert f"pulumi-version: {version('pulumi')}\n" in texts["preview"]
    assert f"pulumi-python:{version('pulumi')}\n" in (TEMPLATE / ".gitlab-ci.yml").read_text()


def test_all_stacks_are_previewed() -> None:
    jobs = WORKFLOWS["preview"]["jobs"]
    output = subprocess.run([ROOT / "tools/ci/stacks.sh"], capture_output=True, text=True, check=True).stdout
    key, _, value = output.strip().partition("=")
    assert json.loads(value) == STACKS
    assert jobs["offline"]["outputs"] == {"stacks": f"${{{{ steps.stacks.outputs.{key} }}}}"}
    assert jobs["live"]["strategy"]["matrix"] == {"stack": "${{ fromJSON(needs.offline.outputs.stacks) }}"}
    assert any("yard preview --all --offline" in step.get("run", "") for step in jobs["offline"]["steps"])
    # Only branches of this repository get credentials, and they create no stack.
    assert "secrets." not in json.dumps(jobs["offline"])
    assert "head.repo.full_name == github.repository" in jobs["live"]["if"]
    assert "upsert" not in json.dumps(WORKFLOWS["preview"])


def zizmor(*inputs: str) -> subprocess.CompletedProcess[str]:
    """Run zizmor as tools/check.sh does, but with progress on stderr and no colors. `inputs` replaces the files.

    Without the option, zizmor colors its output wherever the variable CI is set.
    """
    text = (ROOT / "tools/check.sh").read_text().replace("\\\n", "")
    (line,) = (line for line in text.splitlines() if line.startswith("start zizmor "))
    words = [word for word in shlex.split(line)[1:] if word != "--quiet"]
    options = [word for word in words if ".github/" not in word]
    command = [*(options if inputs else words), "--color=never", *inputs]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)


def test_check_runs_zizmor_over_every_workflow() -> None:
    done = zizmor()
    assert done.returncode == 0, done.stdout
    completed = re.findall(r"completed (\S+)", done.stderr)
    files = [ROOT / ".github" / "dependabot.yml", *FILES, *NEW_FILES]
    assert sorted(completed) == sorted(file.relative_to(ROOT).as_posix() for file in files)


def test_zizmor_rejects_unsafe_steps(tmp_path: Path) -> None:
    steps = [{"uses": "actions/checkout@v5"}, {"run": "echo ${{ github.head_ref }}"}]
    job = {"runs-on": "ubuntu-24.04", "permissions": {"contents": "write"}, "steps": steps}
    workflow = {"on": "pull_request_target", "permissions": {"contents": "write"}, "jobs": {"job": job}}
    (tmp_path / "bad.yml").write_text(yaml.safe_dump(workflow))
    found = set(re.findall(r"(?m)^(?:error|warning)\[([\w-]+)\]", zizmor(str(tmp_path / "bad.yml")).stdout))
    assert {"artipacked", "dangerous-triggers", "excessive-permissions", "template-injection", "unpinned-uses"} <= found


def test_zizmor_ignores_only_the_trigger_of_the_comment() -> None:
    rules = yaml.safe_load((ROOT / ".github" / "zizmor.yml").read_text())["rules"]
    assert {name: rule["ignore"] for name, rule in rules.items() if "ignore" in rule} == {
        "dangerous-triggers": ["preview-comment.yml"]
    }


GH = """
case "$*" in
  "run download"*) cp "$NOTES/preview.md" "$7" ;;
  *"/pulls "*) cat "$NOTES/pulls" ;;
  *"-F body=@"*) all=$*; text=${all#*body=@}; cp "${text%% *}" "$NOTES/posted" ;;
  *"--paginate"*) cat "$NOTES/comments" ;;
esac
"""


@pytest.fixture
def gh(tmp_path: Path, program: MakeProgram) -> Path:
    """The folder of a fake `gh` that copies preview.md, and prints the files `pulls` and `comments`."""
    program("gh", GH)
    (tmp_path / "preview.md").write_text(f"{MARKER}\nwords\n")
    (tmp_path / "pulls").write_text("7\n")
    (tmp_path / "comments").write_text("")
    return tmp_path


def comment(notes: Path) -> tuple[int, list[str]]:
    names = {"RUN": "1", "OWNER": "o", "BRANCH": "b; touch x", "COMMIT": "abc", "NOTES": str(notes)}
    done = subprocess.run([TEMPLATE / ".github/comment.sh"], cwd=notes, env=os.environ | names, check=False)
    assert not (notes / "x").exists()
    return done.returncode, (notes / "programs" / "gh.calls").read_text().splitlines()


def test_comment_is_created_and_then_updated(gh: Path) -> None:
    code, calls = comment(gh)
    assert code == 0
    assert "head=o:b; touch x" in calls[1]
    assert "--method POST repos/{owner}/{repo}/issues/7/comments -F body=@" in calls[-1]
    marker, note, *rest = (gh / "posted").read_text().splitlines()
    assert (marker, note) == (MARKER, "_The code of this pull request computed the preview. Nobody has verified it._")
    assert rest == ["", "```text", "words", "", "```"]
    (gh / "comments").write_text("42\n43\n")
    _, calls = comment(gh)
    assert "--method PATCH repos/{owner}/{repo}/issues/comments/42 -F body=@" in calls[-1]


@pytest.mark.parametrize(
    "text",
    [
        "```\n@admin [verified](https://example.test) ![](https://example.test/a.png) <img src=x>",
        "a\n   `````````\n@admin",
        "a\r```\r@admin",
        "a\n```\0\n@admin",
        "~~~\n@admin\n~~~",
        "```",
    ],
)
def test_text_of_a_pull_request_stays_in_a_code_block(gh: Path, text: str) -> None:
    (gh / "preview.md").write_text(f"{MARKER}\n{text}")
    assert comment(gh)[0] == 0
    posted = (gh / "posted").read_bytes().decode()
    head, *blocks, end = re.split(r"(?m)^ {0,3}```", posted)
    assert head.splitlines()[0] == MARKER
    assert len(blocks) == 1
    assert blocks[0].startswith("text\n")
    assert end == "\n"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", posted)


def test_pull_request_with_newer_commits_gets_no_comment(gh: Path) -> None:
    (gh / "pulls").write_text("")
    code, calls = comment(gh)
    assert code == 0
    assert len(calls) == 2


@pytest.mark.parametrize("text", ["", "words", f"{MARKER}\n" + "x" * 66_000, None])
def test_only_a_valid_preview_is_posted(gh: Path, text: str | None) -> None:
    if text is None:
        (gh / "preview.md").unlink()
    else:
        (gh / "preview.md").write_text(text)
    code, calls = comment(gh)
    assert code == 1
    assert len(calls) == 1
    assert LONGEST < 66_000


def test_paths_with_owners_exist() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS").read_text().splitlines()
    owned = {path: owners for path, *owners in (line.split() for line in lines if line) if path[0] != "#"}
    assert {"/.github/", "/stacks/"} <= set(owned)
    assert [path for path in owned if not list(ROOT.glob(path.strip("/")))] == []
    # A user or a team, as defined on GitHub's page "About code owners" (read 2026-11-22).
    assert all(re.fullmatch(r"(@[A-Za-z0-9-]+(/[A-Za-z0-9._-]+)? ?)+", " ".join(owners)) for owners in owned.values())


CHECK = "423 passed, 14 deselected in 5.57s"
CLUSTER = "=============== 12 passed, 1 skipped in 611.20s (0:10:11) ==============="
FULL = "=============== 15 passed in 300.20s (0:05:00) ==============="
BROKEN = "== 2 failed, 10 passed, 1 error in 9.1s =="


@pytest.mark.parametrize(
    ("test", "full", "line", "verdict"),
    [
        ((f"{CHECK}\n{CLUSTER}", 0), (FULL, 0), "450 passed, 0 failed, 1 skipped", 0),
        ((f"{CHECK}\n{BROKEN}", 2), (FULL, 0), "448 passed, 3 failed, 0 skipped", 1),
        ((CHECK, 0), (BROKEN, 1), "433 passed, 3 failed, 0 skipped", 1),
        (("Found 3 errors.", 1), ("", 1), "0 passed, 1 failed, 0 skipped", 1),
        ((CHECK, 2), (FULL, 0), "438 passed, 1 failed, 0 skipped", 1),
        ((CHECK, 0), ("", 2), "423 passed, 1 failed, 0 skipped", 1),
        (("nothing", 0), ("", 0), "0 passed, 1 failed, 0 skipped", 1),
    ],
)
def test_closing_line_counts_all_parts(
    program: MakeProgram, test: tuple[str, int], full: tuple[str, int], line: str, verdict: int
) -> None:
    goals = {"test": test, "test-full": full}
    cases = "".join(f"  {goal}) echo '{said}'; exit {code};;\n" for goal, (said, code) in goals.items())
    program("make", f"case $1 in\n{cases}esac")
    done = subprocess.run(["bash", ROOT / ".ci" / "run"], capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines()[-1], done.returncode) == (line, verdict), done.stderr
