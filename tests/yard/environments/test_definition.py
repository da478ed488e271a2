"""Definitions of environments, and `yard env` and `yard submit --env` with a fake ssh that runs commands locally."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_init.stage_sandbox import function
from tests.conftest import ROOT
from tests.yard.conftest import FakeStack, MakeProgram, Program, printed, refused, yard
from tests.yard.environments.test_build import lock_line, make_wheel
from trainyard.errors import JobFileError
from trainyard.outputs import Cluster
from yard.environments import build
from yard.environments.definition import FOLDER, Definition, definition_of, environment_names, included
from yard.environments.packages import uv_program
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
    document = {"version": 1, "name": "own", "path": str(path)}
    assert yard("env", "build", "own.lock", "--json") == (0, json.dumps(document) + "\n", "")
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
    assert ("`--with` needs no index" in err) is (build.UNREACHABLE in failure)


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
    assert "/envs. Fix: use one of: torch-1234" in yard("env", "rm", "torhc")[2]


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


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package index on this computer that needs a password, which pip's settings contain."""
    folder = tmp_path / "simple"

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *words: Any) -> None:
            super().__init__(*words, directory=str(tmp_path))

        def do_GET(self) -> None:
            if self.headers["Authorization"] == f"Basic {b64encode(b'me:secret').decode()}":
                super().do_GET()
            else:
                self.send_error(401)

        def log_message(self, *_: Any) -> None:
            pass

    for name, version, needs in (("gamma", "1.0", "alpha>=1"), ("delta", "2.0", "alpha<1")):
        wheel = make_wheel(folder / name, name, version, script=True, needs=needs)
        link = f"{wheel.name}#sha256={hashlib.sha256(wheel.read_bytes()).hexdigest()}"
        (folder / name / "index.html").write_text(f'<a href="{link}">{wheel.name}</a>')
    (folder / "source").mkdir()
    (folder / "source" / "source-1.0.tar.gz").touch()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        for name in [name for name in os.environ if name.startswith(("UV_", "PIP_"))]:
            monkeypatch.delenv(name)
        values = {
            "UV_CACHE_DIR": tmp_path / "cache",
            "UV_HTTP_RETRIES": 0,
            "XDG_CONFIG_HOME": tmp_path,
            "PIP_NO_INDEX": 1,
        }
        values |= {"PIP_INDEX_URL": f"http://me:secret@127.0.0.1:{server.server_port}/simple"}
        values |= {"PIP_FIND_LINKS": tmp_path / "index"}
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.chdir(tmp_path)
        yield folder
        server.shutdown()


MYLIB = """
import tarfile
import zipfile

def build_sdist(folder, settings=None):
    with tarfile.open(folder + "/mylib-1.0.tar.gz", "w:gz") as archive:
        for name in ("pyproject.toml", "backend.py", "mylib.py"):
            archive.add(name, "mylib-1.0/" + name)
    return "mylib-1.0.tar.gz"

def build_wheel(folder, settings=None, metadata=None):
    with zipfile.ZipFile(folder + "/mylib-1.0-py3-none-any.whl", "w") as archive:
        archive.write("mylib.py")
        archive.writestr("mylib-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: mylib\\nVersion: 1.0\\n")
        archive.writestr("mylib-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        archive.writestr("mylib-1.0.dist-info/RECORD", "")
    return "mylib-1.0-py3-none-any.whl"
"""


@pytest.mark.engine
def test_packages_are_added_without_the_index(ssh: Program, stack: FakeStack, index: Path, tmp_path: Path) -> None:
    folder, envs = tmp_path / "mylib", tmp_path / "shared" / "envs"
    folder.mkdir()
    build_system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (folder / "pyproject.toml").write_text(build_system)
    (folder / "backend.py").write_text(MYLIB)
    (folder / "mylib.py").write_text("VALUE = 1\n")
    (tmp_path / "train.py").write_text("import mylib\n")

    def submit(*packages: str) -> set[str]:
        """Submit a job, and return the names of all environments."""
        given = [word for package in packages for word in ("--with", package)]
        code, _, err = yard("submit", "train.py", "--env", "own.lock", *given, "--json")
        assert code == 0, err
        return {path.parent.name for path in envs.glob(f"*/{build.MARKER}")}

    stack.program("ssh", 'head -c 4096 | bash -c "${!#}"')  # a connection that is lost
    refused("submit", "train.py", "--env", "own.lock", "--with", "gamma")
    assert list(envs.iterdir()) == []
    stack.program("ssh", HERE)
    base, added = sorted(submit("gamma==1.0", "./mylib"))
    assert (base[:4], added[:9]) == ("own-", "own-plus-")
    assert f"{envs / added}\n".encode() in ssh.stdin
    show = "import alpha, gamma, mylib; print(alpha.__file__, gamma.__file__, mylib.VALUE)"
    packages = "lib/python{}.{}/site-packages".format(*sys.version_info)
    for command, output in (
        ([f"{envs / added}/bin/python3", "-c", show],
         f"{envs}/{base}/{packages}/alpha.py {envs}/{added}/{packages}/gamma.py 1\n"),
        ([f"{envs / added}/bin/gamma-run"], "gamma 1.0\n"),
        ([f"{envs / added}/bin/alpha-run"], "alpha 1.0\n"),
    ):  # fmt: skip
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == output
    # A script of the base must find the added packages, so it runs with the new environment's Python.
    assert f"{envs / added}/bin/python" in (envs / added / "bin" / "alpha-run").read_text().splitlines()[0]
    private = re.compile(
        rb"secret|127\.0\.0\.1|/yard-"
    )  # the index, its password, and this computer's temporary folder
    # The links to Python refer to a file of this computer.
    sent = [path for path in (envs / added).rglob("*") if path.is_file() and not path.is_symlink()]
    assert [path for path in sent if private.search(path.read_bytes())] == []
    assert not any(word in str(ssh.calls) for word in ("secret", "127.0.0.1"))

    (folder / "mylib.py").touch()
    assert submit("./mylib", "gamma") == {base, added}
    assert submit("alpha") == {base, added}
    session = json.loads(
        printed("run", "--env", "own.lock", "--with", "gamma", "--with", "mylib/", "--json", "--", "x")
    )
    assert f"VIRTUAL_ENV={envs / added} " in session["argv"][-1]
    (folder / "mylib.py").write_text("VALUE = 2\n")
    assert len(submit("./mylib", "gamma==1.0")) == 3
    assert yard("env", "rm", "own")[0] == 0
    assert list(envs.glob("own*")) == []


@pytest.mark.engine
@pytest.mark.parametrize(
    ("packages", "message"),
    [
        (["gama"], "job.yaml:with: Because gama was not found in the package registry"),
        (["gamma==9"], "there is no version of gamma==9"),
        (["source"], "source==1.0 has no usable wheels"),
        (["alpha<1"], "environment own contains alpha 1.0, which cannot be changed. Because only alpha>=1"),
        (["delta"], "environment own contains alpha 1.0, which cannot be changed. Because only alpha>=1"),
        (["x @ git+https://example.org/x"], "must be a package, a file or a folder"),
        (["./absent"], "job.yaml:with: '{folder}/absent' does not exist. Fix: for example 'transformers==4.57'"),
        (["own.lock"], "own.lock"),
        (["../out.whl"], "is in neither the job file's folder nor the current directory"),
        (["--index-url=http://me:secret@127.0.0.1/simple"], "must be a package, a file or a folder"),
    ],
)
def test_packages_that_cannot_be_added_are_refused(
    packages: list[str], message: str, stack: FakeStack, index: Path, tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path / "index", "alpha")
    (tmp_path / "own.lock").write_text(lock_line(wheel))
    (tmp_path.parent / "out.whl").touch()
    keys = {**KEYS, "environment": "own.lock", "with": packages}
    (tmp_path / "job.yaml").write_text(json.dumps(keys))
    assert message.format(folder=tmp_path) in refused("submit", "job.yaml", "--dry-run")


@pytest.mark.engine
@pytest.mark.parametrize("job", ["hello", "job.sbatch"])
def test_a_dry_run_resolves_packages(
    job: str, stack: FakeStack, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(tmp_path / "index", "alpha")
    (tmp_path / "small.txt").write_text("gamma\n")
    (tmp_path / "wrong.txt").write_text("gama\n")
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=1\nhostname\n")
    resolved = "\n# packages resolved for Python 3.13 in addition to {}: alpha 1.0, gamma 1.0"
    out = printed("submit", job, "--with", "gamma", "--dry-run")
    assert resolved.format("the nodes' own Python") + "; the nodes' own packages were not considered\n" in out
    assert resolved.format("environment small") + "\n" in printed("submit", job, "--env", "small.txt", "--dry-run")
    assert "Because gama was not found" in refused("submit", job, "--env", "wrong.txt", "--dry-run")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_CACHE_DIR", "other")
    (line,) = json.loads(printed("submit", job, "--with", "gamma", "--dry-run", "--json"))["environment"]
    assert line.startswith("the packages were not resolved, because an index is unreachable: Failed to fetch: ")


@pytest.mark.engine
def test_the_hashes_of_a_uv_lock_apply(ssh: Program, index: Path, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["gamma"]\n'
    )
    variables = {
        **os.environ,
        "UV_DEFAULT_INDEX": os.environ["PIP_INDEX_URL"],
        "UV_FIND_LINKS": str(tmp_path / "index"),
    }
    subprocess.run([uv_program(), "lock", "-q", "--python", sys.executable], env=variables, check=True, cwd=tmp_path)
    assert "gamma 1.0" in printed("submit", "hello", "--with", "pyproject.toml", "--dry-run")
    code, _, err = yard("submit", "hello", "--env", "own.lock", "--with", "uv.lock")
    assert code == 0, err
    lock = tmp_path / "uv.lock"
    lock.write_text(re.sub("sha256:[0-9a-f]{8}", "sha256:00000000", lock.read_text()))
    err = refused("submit", "hello", "--env", "own.lock", "--with", "uv.lock")
    assert "Hash mismatch for `gamma==1.0`" in err


@pytest.mark.engine
@pytest.mark.parametrize("where", ["folder", "requirements", "project", "environment"])
def test_a_job_file_runs_no_build_program(where: str, stack: FakeStack, index: Path, tmp_path: Path) -> None:
    ran, source = tmp_path / "ran", tmp_path / "evil-1.0"
    source.mkdir()
    build_system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (source / "pyproject.toml").write_text(build_system)
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (source / "backend.py").write_text(f"open({str(ran)!r}, 'w')\n")
    make_wheel(tmp_path / "index", "alpha")
    with tarfile.open(tmp_path / "index" / "evil-1.0.tar.gz", "w:gz") as archive:
        archive.add(source, "evil-1.0")
    (tmp_path / "evil.txt").write_text("--no-binary evil\nevil\n")
    if where == "project":
        (tmp_path / "uv.toml").write_text('[pip]\nno-binary = ["evil"]\n')
    keys: dict[str, dict[str, Any]] = {
        "folder": {"with": ["./evil-1.0"]},
        "requirements": {"with": ["evil.txt"]},
        "project": {"with": ["evil"]},
        "environment": {"environment": "evil.txt"},
    }
    (tmp_path / "job.yaml").write_text(json.dumps({**KEYS, **keys[where]}))
    _, out, err = yard("submit", "job.yaml", "--dry-run")
    message = {
        "folder": f"{source} would be built; its dependencies are not known",
        "requirements": "contains --no-binary, -r or -c",
        "project": "evil==1.0 has no usable wheels",
        "environment": "were not resolved, because --no-binary needs a build",
    }
    assert message[where] in out + err
    if where == "folder":
        assert f"job.yaml:with: '{source}' would run" in refused("submit", "job.yaml")
    assert not ran.exists()
