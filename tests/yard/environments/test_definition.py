"""Definitions of environments, and `yard env` and `yard submit --env` with a fake ssh that runs commands locally."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import function
from tests.conftest import ROOT
from tests.yard.conftest import FakeStack, MakeProgram, Program, printed, refused, yard
from tests.yard.environments.test_build import lock_line, make_wheel
from trainyard.errors import JobFileError
from trainyard.outputs import Cluster
from yard.environments import build
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


HERE = """
case "${!#}" in
  *'scontrol -o show jobs'*) cat "$JOBS" ;;
  *sbatch*) cat >"$STDIN"; echo 12 ;;
  *) exec bash -c "${!#}" ;;
esac
"""
"""Body of a fake `ssh` that runs the given command locally, except commands of Slurm."""


@pytest.fixture
def ssh(stack: FakeStack, local: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A cluster whose shared path is a local folder, and whose head is this computer."""
    shared = tmp_path / "shared"
    shared.mkdir()
    stack.deploy(replace(local, shared_path=str(shared)))
    (tmp_path / "jobs.txt").touch()
    for name, value in {"JOBS": "jobs.txt", "STDIN": "programs/ssh.stdin"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    for name in ("PIP_INDEX_URL", "PIP_CERT", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "programs" / "python3").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    wheel = make_wheel(tmp_path / "index", "alpha", script=True)
    (tmp_path / "own.lock").write_text(lock_line(wheel))
    return stack.program("ssh", HERE)


@pytest.mark.engine
def test_an_environment_is_built_listed_and_removed(ssh: Program, tmp_path: Path) -> None:
    code, out, err = yard("env", "build", "own.lock")
    assert code == 0, err
    path = Path(out.strip())
    assert path.parent == tmp_path / "shared" / "envs"
    assert (path / build.MARKER).exists()
    assert "yard: building environment own on yard-head; later jobs use the result\n" in err
    assert "  installing the packages\n" in err
    calls = len(ssh.calls)
    assert yard("env", "build", "own.lock", "--json") == (0, json.dumps({"name": "own", "path": str(path)}) + "\n", "")
    assert len(ssh.calls) == calls + 1
    (listed,) = json.loads(yard("env", "ls", "--json")[1])
    assert (listed["folder"], listed["name"]) == (path.name, "own")
    assert path.name in yard("env", "ls")[1]
    assert yard("env", "rm", "own") == (0, f"removed {path.name}\n", "")
    assert not path.exists()


@pytest.mark.engine
def test_a_job_is_submitted_with_its_environment(ssh: Program, tmp_path: Path) -> None:
    lock, folder = tmp_path / "own.lock", tmp_path / "shared" / "envs"
    right = lock.read_text()
    lock.write_text("absent==2.0 --hash=sha256:" + "0" * 64 + "\n")
    code, out, err = yard("submit", "hello", "--env", "own.lock")
    assert (code, out) == (1, "")
    assert "environment own was not built: absent==2.0: the package index has no file for Python" in err
    assert not any("sbatch" in call for call in ssh.calls)
    assert [path for path in folder.iterdir() if path.is_dir()] == []
    lock.write_text(right)
    code, _, err = yard("submit", "hello", "--env", "own.lock", "--json")
    assert code == 0, err
    (made,) = folder.glob("own-*")
    assert f"{made}\n".encode() in ssh.stdin


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("mktemp: full", "mktemp: full. Fix: run `yard doctor`"),
        # On the local stack, the message also says what works there.
        (f"environment: six: {build.UNREACHABLE}. Fix: x", "six: the package index cannot be reached. Fix: x. The vir"),
    ],
)
def test_a_failure_on_the_head_is_reported(failure: str, message: str, stack: FakeStack) -> None:
    # The lock is larger than the buffer of a pipe, so the write is incomplete when the remote command ends.
    absent = "*sha256sum*) echo absent /shared/envs/neox-1 ;;"
    stack.program("ssh", f'case "${{!#}}" in {absent} *) echo "{failure}" >&2; exit 1 ;; esac')
    err = refused("env", "build", "neox")
    assert f"environment neox was not built: {message}" in err
    assert ("use `--env none`" in err) is (build.UNREACHABLE in failure)


def made(tmp_path: Path, folder: str) -> Path:
    path = tmp_path / "shared" / "envs" / folder
    path.mkdir(parents=True)
    facts = {"name": folder.rpartition("-")[0], "python": "3.13.5", "built": 0, "bytes": 2_000_000_000, "seconds": 9}
    (path / build.MARKER).write_text(json.dumps(facts) + "\n")
    return path


def test_an_environment_in_use_is_not_removed(ssh: Program, tmp_path: Path) -> None:
    path, other = made(tmp_path, "torch-1234"), made(tmp_path, "torch-5678")
    run_dir = tmp_path / "run-20260102-030405-ab12"
    run_dir.mkdir()
    (run_dir / "environment").write_text(f"{path}\n")
    (tmp_path / "jobs.txt").write_text(f"JobId=7 JobName=run UserId=t(1) JobState=RUNNING WorkDir={run_dir}\n")
    err = refused("env", "rm", "torch")
    assert "job 7 uses environment torch-1234. Fix: wait until the job has ended, or run `yard cancel 7`" in err
    assert path.exists()
    assert other.exists()
    assert yard("env", "rm", "torch-5678")[0] == 0
    assert not other.exists()
    assert "there is no environment 'torhc'. Fix: use one of: torch-1234" in yard("env", "rm", "torhc")[2]


def test_a_missing_python_is_reported(ssh: Program, program: MakeProgram) -> None:
    program("python3.10", "exit 127")
    err = refused("env", "build", "neox")
    assert "environment neox: yard-head has no python3.10. Fix: install python3.10 and python3.10-venv" in err


def test_a_dry_run_lists_the_packages(stack: FakeStack) -> None:
    ssh = stack.program("ssh", "exit 1")
    out = printed("env", "build", "torch", "--dry-run")
    assert "for the head's python3; built once in /shared/envs/torch-HASH" in out
    assert " torchao " in out
    assert json.loads(yard("env", "build", "torch", "--dry-run", "--json")[1])["digest"] == included("torch").digest
    out = printed("submit", "hello", "--env", "cpu", "--dry-run")
    assert "\n# environment cpu: up to 3 packages with hashes" in out
    assert ssh.calls == []


def test_recipes_use_torch_only_on_gpus(stack: FakeStack, wide: Cluster) -> None:
    assert "# environment" not in yard("submit", "train-tiny", "--dry-run")[1]
    stack.deploy(wide)
    assert "\n# environment torch: " in yard("submit", "train-tiny", "--dry-run")[1]
    assert "# environment" not in yard("submit", "train-tiny", "--env", "none", "--dry-run")[1]


def test_programs_run_in_the_environment(tmp_path: Path) -> None:
    """Runs use_environment from shared.sh with the folder of an environment."""
    folder, run_dir = tmp_path / "torch-1234", tmp_path / "run"
    version = "{}.{}".format(*sys.version_info)
    (folder / "bin").mkdir(parents=True)
    run_dir.mkdir()
    (folder / "bin" / "python3").symlink_to(sys.executable)
    (run_dir / "environment").write_text(f"{folder}\n")
    use = function(ROOT / "yard" / "run" / "shared.sh", "use_environment")
    program = f'say() {{ echo "yard: $*"; }}\n{use}\nset -eu; use_environment; '
    program += 'echo "$VIRTUAL_ENV $(command -v python3) $(readlink "$RUN_DIR/venv")"'

    def run() -> tuple[int, str]:
        variables = {"RUN_DIR": str(run_dir), "NODE_RANK": "1", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(["bash", "-c", program], env=variables, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    code, out = run()
    assert code == 1
    assert f"yard: environment {folder} does not exist on node 1; submit the job again" in out
    (folder / build.MARKER).touch()
    code, out = run()
    assert code == 1
    assert f"yard: node 1 has a different Python than the head ({sys.version.split()[0]})" in out
    (folder / "lib" / f"python{version}").mkdir(parents=True)
    assert run() == (0, f"{folder} {folder}/bin/python3 {folder}\n")
    (folder / "bin" / "python3").unlink()
    code, out = run()
    assert code == 1
    assert "yard: node 1 has a different Python than the head" in out


@pytest.mark.parametrize("job", ["hello", "job.sbatch"])
@pytest.mark.parametrize(("text", "is_named"), [("sixx\n", True), (f"six==1 --hash=sha256:{'0' * 64}\n", False)])
def test_a_dry_run_says_that_packages_were_not_looked_up(  # noqa: PLR0913, PLR0917  (three columns and three fixtures)
    job: str, text: str, is_named: bool, stack: FakeStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.txt").write_text(text)
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=1\nhostname\n")
    out = printed("submit", job, "--dry-run", "--env", "small.txt")
    assert "\n# environment small: up to 1 packages" in out
    assert ("does not look up packages without hashes" in out) is is_named
