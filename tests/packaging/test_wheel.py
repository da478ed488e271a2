"""The wheel contains only yard, and yard works from the wheel without a checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT, MakeProgram
from tests.yard.conftest import outputs_file

pytestmark = pytest.mark.engine

DATA = ("*.yaml", "*.sh", "*.in", "*.lock", "*.Dockerfile", "*.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the project, because setuptools writes files to the source folder."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "Pulumi.yaml"):
        shutil.copy(ROOT / name, copy)
    for name in ("trainyard", "yard", "components", "tools", "offline"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(copy)]
    subprocess.run([sys.executable, "-m", *command], check=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """The Python interpreter in an environment with the wheel and with the dependencies of the current environment."""
    folder = wheel.parent / "environment"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # Python does not read .pth files in folders that a .pth file adds, so the editable installation of this project has
    # no effect.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # An installation of the wheel without extras does not include these packages.
    for name in ("pulumi", "pulumi_azure_native", "pulumi_command", "pulumi_gcp", "pydantic"):
        (packages / f"{name}.py").write_text(f"raise ImportError('{name} is not installed')\n")
    return folder / "bin" / "python"


@pytest.fixture
def home(tmp_path: Path, program: MakeProgram) -> Path:
    """A home folder with a stack's outputs, and a fake ssh on PATH that simulates the head."""
    program("ssh", f"[[ $* != *'exec bash -c'* ]] || {{ echo 'text of the log'; exit 0; }}\necho '{JOB}'")
    outputs_file(tmp_path / "outputs.json", admin_private_key="not a key")
    return tmp_path


JOB = "JobId=7 JobName=hello UserId=trainer(1001) JobState=RUNNING RunTime=00:00:05 Partition=gpu NumNodes=2"


def run(python: Path, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRAINYARD", "PULUMI"))}
    variables = {**kept, "HOME": str(home), "PATH": f"{home / 'programs'}:/usr/bin:/bin"}
    return subprocess.run(
        [python, "-m", *words], cwd=home, env=variables, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_wheel_contains_yard_and_the_foundation(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    folders = (ROOT / "trainyard", ROOT / "yard")
    files = {path.relative_to(ROOT).as_posix() for folder in folders for kind in DATA for path in folder.rglob(kind)}
    assert names == files
    assert {"yard/job/recipes/hello.yaml", "yard/doctor/probes/health.sh", "yard/workloads/train.py"} < names


def test_other_packages_are_not_importable(python: Path, home: Path) -> None:
    code = "from importlib.util import find_spec; print([n for n in %r if find_spec(n)])"
    (home / "look.py").write_text(code % (("components", "jobs", "tools", "offline", "yard"),))
    assert run(python, home, "look").stdout == "['yard']\n"


def test_a_job_is_rendered_for_the_outputs_in_a_file(python: Path, home: Path) -> None:
    assert "train-tiny" in run(python, home, "yard", "recipes").stdout
    done = run(python, home, "yard", "submit", "hello", "--dry-run", "--outputs", "outputs.json")
    assert "#SBATCH --partition=gpu" in done.stdout, done.stderr
    assert done.stderr == ""


def test_jobs_and_logs_are_read_over_ssh(python: Path, home: Path) -> None:
    done = run(python, home, "yard", "ps", "--json", "--outputs", "outputs.json")
    assert [job["name"] for job in json.loads(done.stdout)] == ["hello"], done.stderr
    assert "text of the log" in run(python, home, "yard", "logs", "7", "--outputs", "outputs.json").stdout


@pytest.mark.parametrize("command", [("preview", "--all"), ("checks",), ("schema",), ("prices",)])
def test_a_command_that_needs_a_checkout_reports_it(python: Path, home: Path, command: tuple[str, ...]) -> None:
    done = run(python, home, "yard", *command)
    assert done.returncode == 1
    assert f"`yard {command[0]}` needs a checkout of trainyard" in done.stderr
    assert "Fix: clone the repository" in done.stderr
