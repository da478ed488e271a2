"""Arrays and dependencies: the submissions on the head."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.yard.conftest import FakeStack, MakeProgram
from tests.yard.test_cli import yard
from yard.job.spec import parse_array

SSH = """
case "$*" in
  *'show job 12 '*) echo 'JobId=12 JobState=RUNNING' ;;
  *'show job 13 '*) echo 'JobId=13 JobState=COMPLETED' ;;
  *'show job 14 '*) echo 'JobId=14 JobState=FAILED' ;;
  *'show job'*) ;;
  *) cat >/dev/null; echo x >>"@/count"; wc -l <"@/count" ;;
esac
"""


@pytest.fixture
def job(stack: FakeStack, program: MakeProgram, tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text("name: sweep\nrun: echo $ARRAY_INDEX\n")
    program("ssh", SSH.replace("@", str(tmp_path)))
    return file


def submissions(tmp_path: Path) -> list[str]:
    calls = (tmp_path / "programs" / "ssh.calls").read_text().splitlines()
    return [call for call in calls if "tar -xC" in call]


@pytest.mark.parametrize(
    ("text", "indices", "at_once"),
    [("0-3", (0, 1, 2, 3), None), ("1,5,3", (1, 5, 3), None), ("0-6:3%2", (0, 3, 6), 2), ("7", (7,), None)],
)
def test_array_notation_is_parsed(text: str, indices: tuple[int, ...], at_once: int | None) -> None:
    found = parse_array(text)
    assert found is not None
    assert (found.indices, found.at_once) == (indices, at_once)


@pytest.mark.parametrize("text", ["", "a", "3-1", "0-4:0", "1,1", "0-3%0", "-1", "0-3%", "1,,2", "0-200"])
def test_wrong_array_is_refused(text: str, job: Path) -> None:
    code, _, err = yard("submit", str(job), "--array", text, "--dry-run")
    assert code == 1
    assert f"{job}:array: must " in err


def test_array_is_one_job_for_each_number(job: Path, tmp_path: Path) -> None:
    code, out, _ = yard("submit", str(job), "--array", "4-6%2", "--json")
    assert code == 0
    answers = [json.loads(line) for line in out.splitlines()]
    assert [(answer["id"], answer["name"]) for answer in answers] == [(1, "sweep-4"), (2, "sweep-5"), (3, "sweep-6")]
    options = [re.findall(r"--dependency=(\S+)", call) for call in submissions(tmp_path)]
    assert options == [[], [], ["afterany:1"]]


def test_element_knows_its_number(job: Path) -> None:
    code, out, _ = yard("submit", str(job), "--array", "4-6", "--dry-run", "--json")
    seen = json.loads(out)
    assert (code, seen["jobs"], seen["name"]) == (0, 3, "sweep-4")
    assert "  export ARRAY_INDEX=4\n" in seen["files"]["job.sbatch"]
    assert "#SBATCH --job-name=sweep-4\n" in seen["files"]["job.sbatch"]


def test_index_without_an_array_is_refused(job: Path) -> None:
    code, _, err = yard("submit", str(job), "--set", "SEED=$ARRAY_INDEX", "--dry-run", "--", "$ARRAY_INDEX")
    assert code == 1
    assert "args[0]: $ARRAY_INDEX is set only in arrays" in err
    assert "env.SEED: $ARRAY_INDEX is set only in arrays" in err


def test_job_waits_only_for_jobs_that_have_not_ended(job: Path, tmp_path: Path) -> None:
    code, _, _ = yard("submit", str(job), "--after", "12", "--after", "13")
    assert code == 0
    assert "sbatch --parsable --dependency=afterok:12 --kill-on-invalid-dep=yes job.sbatch" in submissions(tmp_path)[0]


@pytest.mark.parametrize(("number", "words"), [(14, "job 14 is FAILED"), (15, "job 15 does not exist")])
def test_job_after_a_failed_job_is_refused(number: int, words: str, job: Path, tmp_path: Path) -> None:
    code, _, err = yard("submit", str(job), "--after", str(number))
    assert code == 1
    assert words in err
    assert submissions(tmp_path) == []


def test_log_of_an_array_cannot_be_followed(job: Path, tmp_path: Path) -> None:
    code, _, err = yard("submit", str(job), "--array", "0-1", "--follow")
    assert code == 2
    assert "yard logs" in err


def test_options_and_keys_are_checked_together(job: Path) -> None:
    job.write_text("name: sweep\nrun: ls\nafter: [0, x]\narray: 5\ngroup: a b\n")
    code, _, err = yard("submit", str(job), "--time", "soon")
    assert code == 1
    paths = [line.strip().removeprefix(f"{job}:").split(": ")[0] for line in err.splitlines()[1:]]
    assert paths == ["group", "after[0]", "after[1]", "array", "time"]
