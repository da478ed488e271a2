"""Definitions of environments: the included locks, users' requirements files, and a job's `environment` key."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from trainyard.errors import JobFileError
from yard.environments.definition import FOLDER, Definition, definition_of, environment_names, included
from yard.job.loader import LoadedJob, check_job

KEYS = {"name": "mine", "run": "true"}


@pytest.mark.parametrize("name", environment_names())
def test_a_lock_has_hashes_and_no_index(name: str) -> None:
    found, lock = included(name), included(name).requirements
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", lock)[1:]
    pattern = re.compile(r"[\w.-]+(\[[\w,-]+\])?==\S+( ; [^\n]+?)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n")
    assert [entry for entry in entries if not pattern.fullmatch(entry)] == []
    wanted = re.findall(r"(?m)^([A-Za-z0-9][\w.-]*)(==\S+)?", (FOLDER / name / "requirements.in").read_text())
    for package, version in wanted:
        assert f"\n{package.replace('_', '-').lower()}{version or '=='}" in f"\n{lock.lower()}", package
    assert "http" not in re.sub(r"(?m)^http[\w-]*==", "", lock)
    for checkout in found.checkouts:
        assert set(checkout) <= {"name", "url", "commit", "install"}
        assert re.fullmatch(r"[0-9a-f]{40}", checkout["commit"])
    assert set(found.source) <= set(found.packages)


def test_the_digest_covers_requirements_and_settings() -> None:
    first = Definition(name="a", requirements="x==1\n")
    others = [{"requirements": "x==2\n"}, {"system_packages": True}, {"name": "b"}]
    made = [first, *(replace(first, **change) for change in others)]  # type: ignore[arg-type]
    assert len({definition.digest for definition in made}) == len(made)
    assert first.digest == replace(first, about="text").digest


def test_a_requirements_file_is_an_environment(tmp_path: Path) -> None:
    file = tmp_path / "My packages.txt"
    file.write_text("# mine\nrich>=1\n")
    found = definition_of(str(file))
    assert (found.name, found.packages, found.hashed) == ("my-packages", ["rich"], False)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("# nothing\n", "names no package"),
        ("rich\n-r other.txt\n", "line 2 names a local file"),
        ("rich\n-e .\n", "line 2 names a local file"),
        ("./wheels/a.whl\nrich\n", "line 1 names a local file"),
        ("mine @ file:///home/me/mine\n", "line 1 names a local file"),
        ("--index-url https://me:secret@example.org/simple\nrich\n", "line 1 contains a password"),
        ("rich\0\udcff\n", "it is not text in UTF-8"),
    ],
)
def test_a_file_that_cannot_be_sent_is_refused(text: str, rule: str, tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(JobFileError, match=rule):
        definition_of(str(file))


def test_unknown_environments_are_refused() -> None:
    with pytest.raises(JobFileError, match=r"there is no environment 'troch'\. Fix: use cpu, deepspeed, neox, torch"):
        definition_of("troch")
    with pytest.raises(JobFileError, match=r"cannot be read \(No such file or directory\)"):
        definition_of("./absent.txt")


def job(folder: Path, **keys: object) -> LoadedJob:
    return check_job("job.yaml", folder, {**KEYS, **keys}, {}, ())


def test_a_job_names_an_environment(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("rich\n")
    assert job(tmp_path).environment is None
    assert job(tmp_path, environment="none").environment is None
    assert job(tmp_path, environment="torch").environment == included("torch")
    own = job(tmp_path, environment="own.txt").environment
    assert own is not None
    assert own.requirements == "rich\n"


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("troch", "there is no environment 'troch'"),
        (["torch"], "must be an environment or a requirements file"),
        ({"gpu": "torch"}, "must be an environment or a requirements file"),
        ("absent.txt", "cannot be read"),
        ("../out.txt", "is in neither the job file's folder nor the current directory"),
    ],
)
def test_wrong_values_are_refused(value: object, rule: str, tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("rich\n")
    (tmp_path / "job").mkdir()
    with pytest.raises(JobFileError, match=re.escape(rule)):
        job(tmp_path / "job", environment=value)


def test_a_container_with_an_environment_is_refused(tmp_path: Path) -> None:
    container = {"image": "torch:1", "runtime": "docker"}
    with pytest.raises(JobFileError, match="a container has its own Python packages"):
        job(tmp_path, environment="torch", container=container)
    assert job(tmp_path, environment="none", container=container).environment is None
