"""Building an environment, with real virtual environments and wheels that the test creates."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.yard.conftest import git
from yard.environments import build, imports

pytestmark = pytest.mark.engine

PROGRAM = str(build.__file__)
REQUEST: dict[str, Any] = {
    "name": "own", "digest": "d" * 64, "system_packages": False, "source": [], "checkouts": [], "hashed": True,
    "locked": True, "packages": 2,
}  # fmt: skip


def make_wheel(folder: Path, name: str, version: str = "1.0", *, script: bool = False, needs: str = "") -> Path:
    """Write a wheel with one module, a console script if `script` is set, and the dependency `needs`."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n\ndef main():\n    print({name!r}, VERSION)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name}-run = {name}:main\n"
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def make_source(folder: Path, name: str, needs: str) -> Path:
    """Write a source package whose build imports the module `needs`, as DeepSpeed's build imports torch."""

    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(name=name, needs=needs),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
    }
    path = folder / f"{name}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{file}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


BACKEND = """
import zipfile
import {needs}

def build_wheel(folder, settings=None, metadata=None):
    file, info = "{name}-1.0-py3-none-any.whl", "{name}-1.0.dist-info/"
    with zipfile.ZipFile(folder + "/" + file, "w") as archive:
        archive.writestr("{name}.py", "BUILT_WITH = " + repr({needs}.VERSION) + "\\n")
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(info + "RECORD", "")
    return file
"""


def lock_line(path: Path) -> str:
    """Return the line of a lock for a wheel or a source package, with its hash."""
    name, version = path.name.removesuffix(".tar.gz").split("-")[:2]
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return make_wheel(tmp_path / "index", "alpha", script=True).parent


@pytest.fixture
def variables(wheels: Path, tmp_path: Path) -> dict[str, str]:
    """The job user's environment variables: pip reads only the folder with the wheels."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "VIRTUAL_ENV"))}
    home = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    return {**kept, **home, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}


@pytest.fixture
def lock(wheels: Path) -> str:
    return lock_line(next(wheels.glob("alpha-*")))


def run(tmp_path: Path, variables: dict[str, str], lock: str, **changes: Any) -> tuple[int, list[str], str]:
    """Run build.py. Returns its exit code, the lines of its output and its error message."""
    folder = tmp_path / f"request-{threading.get_ident()}"
    folder.mkdir(exist_ok=True)
    (folder / "request.json").write_text(json.dumps({**REQUEST, **changes}))
    (folder / "requirements.txt").write_text(lock)
    shutil.copy(str(imports.__file__), folder / build.IMPORTS)
    command = [sys.executable, PROGRAM, str(folder), str(tmp_path / "envs")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout.splitlines(), done.stderr


def left(tmp_path: Path) -> list[str]:
    """Return the names of the environments, complete or not. Lock files are not listed."""
    return sorted(path.name for path in (tmp_path / "envs").iterdir() if path.is_dir())


def test_an_environment_is_built_once(tmp_path: Path, lock: str, variables: dict[str, str]) -> None:
    code, lines, error = run(tmp_path, variables, lock)
    assert (code, error) == (0, "")
    target = Path(lines[-1])
    assert lines[0].startswith(f"building {target} with Python ")
    assert "installing the packages" in lines
    assert left(tmp_path) == [target.name]
    facts = json.loads((target / build.MARKER).read_text())
    assert (facts["name"], facts["python"]) == ("own", sys.version.split()[0])
    assert not list(target.glob(".*"))
    assert json.loads((target / imports.LIST).read_text()) == []  # without PyTorch
    assert run(tmp_path, variables, lock) == (0, [str(target)], "")
    # Scripts contain the path of the environment and not that of the temporary folder.
    activate = f"source {target}/bin/activate; command -v alpha-run; alpha-run"
    shell = subprocess.run(["bash", "-c", activate], capture_output=True, text=True, check=True)
    assert shell.stdout == f"{target}/bin/alpha-run\nalpha 1.0\n"


def test_an_interrupted_build_is_not_used(tmp_path: Path, lock: str, variables: dict[str, str]) -> None:
    target = tmp_path / "envs" / build.folder_name(REQUEST["name"], REQUEST["digest"])
    for rest in (target, target.parent / f".{target.name}.abc"):
        rest.mkdir(parents=True)
    code, lines, _ = run(tmp_path, variables, lock)
    assert (code, lines[-1], left(tmp_path)) == (0, str(target), [target.name])
    assert (target / build.MARKER).exists()


def test_a_source_package_is_built_with_the_wheels(
    tmp_path: Path, wheels: Path, lock: str, variables: dict[str, str]
) -> None:
    lock += lock_line(make_source(wheels, "beta", needs="alpha"))
    code, _, error = run(tmp_path, variables, lock)
    assert code == 1
    assert error.startswith("environment: beta==1.0: the package index has no file for Python ")
    code, lines, error = run(tmp_path, variables, lock, source=["beta"])
    assert (code, error) == (0, "")
    show = [f"{lines[-1]}/bin/python3", "-c", "import beta; print(beta.BUILT_WITH)"]
    assert subprocess.run(show, capture_output=True, text=True, check=True).stdout == "1.0\n"


def test_simultaneous_builds_share_one_result(tmp_path: Path, lock: str, variables: dict[str, str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        results = [job.result() for job in [pool.submit(run, tmp_path, variables, lock) for _ in range(2)]]
    assert [code for code, _, _ in results] == [0, 0]
    assert len({lines[-1] for _, lines, _ in results}) == 1
    assert sum(line.startswith("building ") for _, lines, _ in results for line in lines) == 1
    assert len(left(tmp_path)) == 1


@pytest.mark.parametrize(
    ("package", "printed"),
    [
        ("absent==2.0", "environment: absent==2.0: the package index has no file for Python "),
        ("alpha==1.0", ": the index serves a file whose hash is not in the lock. Fix: "),
    ],
)
def test_a_missing_or_changed_package_is_named(
    package: str, printed: str, tmp_path: Path, variables: dict[str, str]
) -> None:
    code, _, error = run(tmp_path, variables, f"{package} --hash=sha256:{'0' * 64}\n")
    assert (code, left(tmp_path)) == (1, [])
    assert package[:5] in error
    assert printed in error


def test_an_unreachable_index_is_reported(tmp_path: Path, lock: str, variables: dict[str, str]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        port = server.server_port  # closed when the block ends, so connections are refused
    del variables["PIP_NO_INDEX"], variables["PIP_FIND_LINKS"]
    variables["PIP_INDEX_URL"] = f"http://127.0.0.1:{port}/simple"
    code, _, error = run(tmp_path, variables, lock)
    assert (code, left(tmp_path)) == (1, [])
    assert error.startswith("environment: alpha==1.0: the package index cannot be reached. Fix: set `mirrors: {pypi:")


def test_a_file_without_hashes_is_installed(tmp_path: Path, variables: dict[str, str]) -> None:
    code, lines, error = run(tmp_path, variables, "alpha>=0.5\n", hashed=False, locked=False)
    assert (code, error) == (0, "")
    assert (Path(lines[-1]) / "bin" / "alpha-run").exists()


def test_a_damaged_archive_changes_nothing(tmp_path: Path, lock: str, variables: dict[str, str]) -> None:
    folder = tmp_path / f"request-{threading.get_ident()}"
    folder.mkdir()
    with tarfile.open(folder / build.ARCHIVE, "w:gz") as archive:
        archive.add(PROGRAM, "alpha.py")
    content = (folder / build.ARCHIVE).read_bytes()
    for text, (expected, environments) in {content[:-200]: (1, 0), content: (0, 1)}.items():
        (folder / build.ARCHIVE).write_bytes(text)
        code, _, error = run(tmp_path, variables, lock)
        assert (code, len(left(tmp_path))) == (expected, environments), error
        assert ("the packages cannot be unpacked (" in error) is bool(code)


def test_progress_is_a_line_for_each_package() -> None:
    pip: Any = SimpleNamespace(done=0, packages=2)
    lines = ["Collecting alpha", "  Downloading http://h/alpha-1.0-py3-none-any.whl.metadata", "Installing collected"]
    assert [build.Pip.progress(pip, line) for line in lines] == [None, None, None]
    downloading = "  Downloading http://h/alpha-1.0-py3-none-any.whl (2 kB)"
    assert build.Pip.progress(pip, downloading) == "[1/2] alpha 1.0 (2 kB)"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (
            "Collecting torch==2.10.0\nERROR: Could not install packages: [Errno 28] No space left on device",
            "torch==2.10.0: No space left on device. Cause: the shared file system is full. Fix: remove environments",
        ),
        (
            "ERROR: Exception:\nTraceback (most recent call last):\nAttributeError: no attribute 'ImpImporter'",
            "the first package: AttributeError: no attribute 'ImpImporter'",
        ),
    ],
    ids=["full disk", "exception"],
)
def test_the_cause_of_a_failure_of_pip_is_named(output: str, message: str) -> None:
    assert build.reason(output.splitlines(), "pip").startswith(message)


def test_the_wheel_of_pip_belongs_to_this_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Debian's Python sets WHEEL_PKG_DIR. Other builds of Python contain a wheel of pip."""
    own = tmp_path / "ensurepip" / "_bundled" / "pip-99-py3-none-any.whl"
    own.parent.mkdir(parents=True)
    own.touch()
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _: None)
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert build.pip_wheel() == own


def test_checkouts_have_the_pinned_commit(tmp_path: Path, variables: dict[str, str], lock: str) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "file").write_text("pinned\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        git(origin, *words)
    commit = git(origin, "rev-parse", "HEAD")
    checkout = {"name": "tool", "url": f"file://{origin}", "commit": commit}
    code, lines, error = run(tmp_path, variables, lock, checkouts=[checkout])
    assert (code, error) == (0, "")
    assert (Path(lines[-1]) / "src" / "tool" / "file").read_text() == "pinned\n"
    gone = {**checkout, "url": f"file://{tmp_path}/gone"}
    code, _, error = run(tmp_path, variables, lock, checkouts=[gone], digest="e" * 64)
    assert code == 1
    assert f"tool: file://{tmp_path}/gone at {commit} cannot be fetched (" in error
    assert left(tmp_path) == [Path(lines[-1]).name]
