"""What runs on GitHub: every stack is seen, nobody may do more than needed, and actions are pinned by commit."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.preview.markdown import LONGEST, MARKER

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
WORKFLOWS: dict[str, dict[Any, Any]] = {file.stem: yaml.safe_load(file.read_text()) for file in FILES}
JOBS = [
    pytest.param(workflow, job, id=f"{workflow}:{name}")
    for workflow, content in WORKFLOWS.items()
    for name, job in content["jobs"].items()
]
STEPS = [
    pytest.param(step, id=f"{workflow}:{name}:{at}")
    for workflow, content in WORKFLOWS.items()
    for name, job in content["jobs"].items()
    for at, step in enumerate(job["steps"])
]
MAY_WRITE = {("preview-comment", "pull-requests"), ("preview", "id-token")}
LONG_LIVED = ("ARM_CLIENT_SECRET", "GOOGLE_CREDENTIALS", "PULUMI_ACCESS_TOKEN")
STACKS = sorted(file.name.split(".")[1] for file in (ROOT / "stacks").glob("Pulumi.*.yaml"))


def test_the_workflows_that_there_must_be() -> None:
    assert {"check", "preview", "preview-comment"} <= set(WORKFLOWS)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_token_may_read_and_no_more(name: str) -> None:
    content = WORKFLOWS[name]
    # YAML reads the key `on` as true.
    assert "pull_request_target" not in content[True], "it would run a fork's code with our token"
    assert content["permissions"] in ({}, {"contents": "read"})
    granted = {key: level for job in content["jobs"].values() for key, level in job.get("permissions", {}).items()}
    assert {(name, key) for key, level in granted.items() if level != "read"} <= MAY_WRITE


@pytest.mark.parametrize(("workflow", "job"), JOBS)
def test_a_job_ends(workflow: str, job: dict[str, Any]) -> None:
    assert job["timeout-minutes"] <= 30
    assert job["runs-on"] == "ubuntu-24.04"


@pytest.mark.parametrize("step", STEPS)
def test_a_step_runs_no_text_of_a_stranger(step: dict[str, Any]) -> None:
    assert "${{" not in step.get("run", ""), "hand it over in env: it may hold shell code"
    if "uses" in step:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", step["uses"])
    if step.get("uses", "").startswith("actions/checkout@"):
        assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_pinned_action_says_its_version(file: Path) -> None:
    for line in file.read_text().splitlines():
        if "uses:" in line:
            assert re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_whoever_may_write_runs_nothing_of_a_pull_request() -> None:
    comment = WORKFLOWS["preview-comment"]
    assert list(comment[True]) == ["workflow_run"]
    assert comment[True]["workflow_run"]["workflows"] == [WORKFLOWS["preview"]["name"]]
    checkouts = [step for step in comment["jobs"]["comment"]["steps"] if "uses" in step]
    assert ["ref" in step["with"] or "repository" in step["with"] for step in checkouts] == [False]


def test_no_stack_is_forgotten() -> None:
    jobs = WORKFLOWS["preview"]["jobs"]
    said = subprocess.run([ROOT / "tools/ci/stacks.sh"], capture_output=True, text=True, check=True).stdout
    key, _, value = said.strip().partition("=")
    assert json.loads(value) == STACKS
    assert jobs["offline"]["outputs"] == {"stacks": f"${{{{ steps.stacks.outputs.{key} }}}}"}
    assert jobs["live"]["strategy"]["matrix"] == {"stack": "${{ fromJSON(needs.offline.outputs.stacks) }}"}
    assert any("yard preview --all --offline" in step.get("run", "") for step in jobs["offline"]["steps"])


def test_credentials_are_for_our_own_branches() -> None:
    jobs = WORKFLOWS["preview"]["jobs"]
    assert "secrets." not in json.dumps(jobs["offline"])
    assert "head.repo.full_name == github.repository" in jobs["live"]["if"]


@pytest.mark.parametrize(("workflow", "job"), JOBS)
def test_credentials_need_a_protected_environment(workflow: str, job: dict[str, Any]) -> None:
    has_credentials = "secrets." in json.dumps(job) or "id-token" in job.get("permissions", {})
    assert has_credentials == ("environment" in job)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_workflow_uses_a_long_lived_cloud_key(file: Path) -> None:
    assert not [name for name in LONG_LIVED if f"secrets.{name}" in file.read_text()]


def test_a_live_preview_creates_no_stack() -> None:
    assert "upsert" not in json.dumps(WORKFLOWS["preview"])


@pytest.fixture
def gh(tmp_path: Path) -> Path:
    """A gh that notes its calls, hands over the file `preview.md` and answers with the files pulls and comments."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "gh").write_text(
        """#!/usr/bin/env bash
echo "$*" >>"$NOTES/calls"
case "$*" in
  "run download"*) cp "$NOTES/preview.md" "$7" ;;
  *"/pulls "*) cat "$NOTES/pulls" ;;
  *"-F body=@"*) all=$*; text=${all#*body=@}; cp "${text%% *}" "$NOTES/posted" ;;
  *"--paginate"*) cat "$NOTES/comments" ;;
esac
"""
    )
    (programs / "gh").chmod(0o755)
    (tmp_path / "preview.md").write_text(f"{MARKER}\nwords\n")
    (tmp_path / "pulls").write_text("7\n")
    (tmp_path / "comments").write_text("")
    return tmp_path


def comment(notes: Path) -> tuple[int, list[str]]:
    names = {"RUN": "1", "OWNER": "o", "BRANCH": "b; touch x", "COMMIT": "abc", "NOTES": str(notes)}
    environment = {**os.environ, **names, "PATH": f"{notes / 'programs'}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / "tools/ci/comment.sh"], cwd=notes, env=environment, capture_output=True, check=False)
    assert not (notes / "x").exists()
    return done.returncode, (notes / "calls").read_text().splitlines()


def test_the_first_comment_and_the_next(gh: Path) -> None:
    code, calls = comment(gh)
    assert code == 0
    assert "head=o:b; touch x" in calls[1]
    assert "--method POST repos/{owner}/{repo}/issues/7/comments -F body=@" in calls[-1]
    assert (gh / "posted").read_text().splitlines()[:3] == [
        MARKER,
        "_The code of this pull request computed the preview. Nobody has verified it._",
        "",
    ]
    (gh / "comments").write_text("42\n43\n")
    _, calls = comment(gh)
    assert "--method PATCH repos/{owner}/{repo}/issues/comments/42 -F body=@" in calls[-1]


def test_a_pull_request_that_moved_on_gets_none(gh: Path) -> None:
    (gh / "pulls").write_text("")
    code, calls = comment(gh)
    assert code == 0
    assert len(calls) == 2


@pytest.mark.parametrize("text", ["", "words", f"{MARKER}\n" + "x" * 66_000, None])
def test_what_is_no_preview_is_not_posted(gh: Path, text: str | None) -> None:
    if text is None:
        (gh / "preview.md").unlink()
    else:
        (gh / "preview.md").write_text(text)
    code, calls = comment(gh)
    assert code == 1
    assert len(calls) == 1
    assert LONGEST < 66_000
