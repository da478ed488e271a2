"""Definitions of environments: the included locks, users' requirements files, and a job's `environment` key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trainyard.errors import JobFileError
from yard.environments.definition import FOLDER, LOCK, Definition, definition_of, environment_names, included
from yard.job.loader import LoadedJob, check_job

NAMES = environment_names()
KEYS = {"name": "mine", "run": "true"}


@pytest.mark.parametrize("name", NAMES)
def test_every_package_of_a_lock_has_hashes(name: str) -> None:
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", included(name).requirements)[1:]
    pattern = re.compile(r"[\w.-]+(\[[\w,-]+\])?==\S+( ; [^\n]+?)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n")
    assert [entry for entry in entries if not pattern.fullmatch(entry)] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_contains_its_input(name: str) -> None:
    wanted = re.findall(r"(?m)^([A-Za-z0-9][\w.-]*)(==\S+)?", (FOLDER / name / "requirements.in").read_text())
    lock = included(name).requirements.lower()
    for package, version in wanted:
        assert f"\n{package.replace('_', '-').lower()}{version or '=='}" in f"\n{lock}", package


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_names_no_index(name: str) -> None:
    assert "http" not in re.sub(r"(?m)^http[\w-]*==", "", (FOLDER / name / LOCK).read_text())


@pytest.mark.parametrize("name", NAMES)
def test_checkouts_have_full_commits(name: str) -> None:
    for checkout in included(name).checkouts:
        assert set(checkout) <= {"name", "url", "commit", "install"}
        assert re.fullmatch(r"[0-9a-f]{40}", checkout["commit"])
    assert set(included(name).source) <= set(included(name).packages)


def test_the_digest_covers_requirements_and_settings() -> None:
    made = [
        Definition(name="a", requirements="x==1\n"),
        Definition(name="a", requirements="x==2\n"),
        Definition(name="a", requirements="x==1\n", system_packages=True),
        Definition(name="b", requirements="x==1\n"),
    ]
    assert len({definition.digest for definition in made}) == len(made)
    assert made[0].digest == Definition(name="a", requirements="x==1\n", about="text").digest


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
    chosen = job(tmp_path, environment={"gpus": "torch"}).spec.environment
    assert chosen is not None
    assert chosen.gpus_only


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
