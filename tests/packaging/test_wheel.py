"""The wheel contains everything that a project needs. The checkout is not importable in these tests."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, MakeProgram
from tests.offline.cloud.stack import require_pulumi
from tests.yard.conftest import outputs_file

pytestmark = pytest.mark.engine

FOLDERS = ("trainyard", "components", "yard", "offline", "cloud-init", "stacks")
LARGEST = 5_000_000
AZURE = ("--provider", "azure", "--region", "eastus", "--machine", "Standard_ND96amsr_A100_v4")
GOOGLE = ("--provider", "gcp", "--region", "us-central1-f", "--machine", "a2-highgpu-8g", "--project", "my-project-1")
COMMON = ("--count", "2", "--budget", "none", "--offline", "--json")


def build(folder: Path, number: str) -> Path:
    """Build a wheel with this version from a copy of the repository, because setuptools writes files to its folder."""
    copy = folder / "source"
    copy.mkdir(parents=True)
    for name in ("setup.py", "README.md", "LICENSE", "Pulumi.yaml", "__main__.py"):
        shutil.copy(ROOT / name, copy)
    text = (ROOT / "pyproject.toml").read_text()
    (copy / "pyproject.toml").write_text(re.sub(r'(?m)^version = ".*"$', f'version = "{number}"', text))
    for name in (*FOLDERS, "tools"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(copy)]
    subprocess.run([sys.executable, "-m", *command], check=True)
    (made,) = folder.glob("*.whl")
    return made


def forbid(folder: Path, *packages: str) -> None:
    """Write modules that cannot be imported, and that hide these packages."""
    folder.mkdir(exist_ok=True)
    for name in packages:
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} is not installed')\n")


class User:
    """A person with the wheel in a virtual environment, and without a clone."""

    def __init__(self, folder: Path) -> None:
        self.home, self.environment = folder / "home", folder / "environment"
        self.home.mkdir()
        self.more: dict[str, str] = {}
        """More environment variables."""
        venv.create(self.environment, symlinks=True)
        (self.packages,) = self.environment.glob("lib/python*/site-packages")
        # Python does not read .pth files in folders that a .pth file adds, so the editable installation of this
        # repository has no effect.
        (self.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        forbid(self.packages, "asyncssh", "hypothesis", "jsonschema", "requests")  # only for development

    def install(self, wheel: Path) -> None:
        """Install the wheel, without its dependencies, in place of another version."""
        python = str(self.environment / "bin" / "python")
        command = ["pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall"]
        subprocess.run([sys.executable, "-m", *command, str(wheel)], check=True)

    def run(self, folder: Path, *command: str, code: int = 0, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TRAINYARD", "PULUMI"))
        }
        programs = os.environ["PATH"].replace(str(Path(sys.executable).parent), "")
        path = f"{self.environment / 'bin'}:{programs}"
        variables = {**kept, "HOME": str(self.home), "PATH": path, **self.more}
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=seconds
        )
        assert done.returncode == code, f"{command}: {done.stdout}{done.stderr}"
        return done

    def document(self, folder: Path, *command: str, code: int = 0) -> Any:
        return json.loads(self.run(folder, *command, code=code).stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"), "0.1.0")


@pytest.fixture(scope="module")
def user(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> User:
    made = User(tmp_path_factory.mktemp("user"))
    made.install(wheel)
    return made


@pytest.fixture
def project(user: User, tmp_path: Path) -> Path:
    """A project with the stack `big`, created in an empty folder."""
    require_pulumi()
    user.run(tmp_path, "yard", "new", "big", *AZURE, *COMMON)
    (tmp_path / "big" / ".venv").symlink_to(user.environment)  # instead of `pulumi install`
    return tmp_path / "big"


def test_the_wheel_contains_every_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    files = {path.relative_to(ROOT).as_posix() for path in paths if path.suffix != ".pyc"}
    assert names == {re.sub("^(cloud-init|stacks)/", r"trainyard/\1/", name) for name in files}
    assert wheel.stat().st_size < LARGEST


def test_nothing_comes_from_the_checkout(user: User, tmp_path: Path) -> None:
    code = "from importlib import import_module as get; print(*(get(name).__file__ for name in {}))"
    names = ("trainyard", "components", "yard", "offline")
    files = user.run(tmp_path, "python", "-c", code.format(names)).stdout.split()
    assert [file for file in files if not file.startswith(str(user.environment))] == []
    missing = user.run(tmp_path, "python", "-c", "import tools", code=1)
    assert "No module named 'tools'" in missing.stderr


def test_a_new_project_is_previewed_and_rehearsed(user: User, project: Path) -> None:
    user.run(project, "yard", "init", "small", *GOOGLE, *COMMON)
    for command in (["init", "-q"], ["add", "--all", ":!stacks/Pulumi.small.yaml"], ["commit", "-qm", "one"]):
        user.run(project, "git", "-c", "user.name=me", "-c", "user.email=me@example.test", *command)
    (project / "sub").mkdir()
    preview = user.document(project / "sub", "yard", "preview", "--all", "--offline", "--against", "HEAD", "--json")
    assert preview["fine"], preview
    big, small = preview["stacks"]
    assert (big["difference"]["new"], small["difference"]["new"]) == (False, True)
    assert big["difference"]["files"] == []
    assert big["resources"]["by_type"]["azure-native:compute:VirtualMachine"] == 3
    assert small["resources"]["by_type"]["gcp:compute/instance:Instance"] == 3
    rehearsal = user.run(project, "yard", "submit", "hello", "--dry-run", "--stack", "big")
    assert "#SBATCH --nodes=2" in rehearsal.stdout
    # Pulumi and yard have changed no committed file.
    assert user.run(project, "git", "status", "--porcelain").stdout == "?? stacks/Pulumi.small.yaml\n"


def test_a_package_that_hides_components_is_reported(user: User, project: Path) -> None:
    (project / "components").mkdir()
    (project / "components" / "__init__.py").touch()
    done = user.document(project, "yard", "preview", "big", "--json", code=1)
    (message, *_) = done["stacks"][0]["resources"]["errors"]
    assert f"{project}/components/__init__.py hides trainyard's package `components`. Fix: rename it" in message


UPDATE = """
import sys
from yard.stack.workspace import Workspace
sys.exit(Workspace("big", simulated=True).operate(sys.argv[1], sys.argv[2:]))
"""


def test_an_upgrade_replaces_nothing(user: User, wheel: Path, project: Path, tmp_path: Path) -> None:
    update = (str(user.environment / "bin" / "python"), "-c", UPDATE)
    user.run(project, *update, "up", "--yes", "--skip-preview", "--non-interactive")
    user.install(build(tmp_path / "next", "0.2.0"))
    try:
        assert user.run(project, "yard", "--version").stdout == "yard 0.2.0\n"
        user.run(project, *update, "preview", "--non-interactive", "--expect-no-changes")
    finally:
        user.install(wheel)


def test_pulumi_new_writes_the_same_project(user: User, project: Path, tmp_path: Path) -> None:
    template = ROOT / "yard" / "init" / "project"
    words = ["--generate-only", "--yes", "--offline", "--name", "big", "--dir", str(tmp_path / "other")]
    user.run(tmp_path, "pulumi", "new", str(template), *words)
    written = {path.relative_to(tmp_path / "other"): path for path in (tmp_path / "other").rglob("*") if path.is_file()}
    for path, file in written.items():
        if path.name == "Pulumi.yaml":
            # Pulumi adds a tag with the template's path.
            found = yaml.safe_load(file.read_text())
            assert found.pop("config").keys() == {"pulumi:tags"}
            assert found == yaml.safe_load((project / path).read_text())
        else:
            assert file.read_text() == (project / path).read_text()
    own = {path.relative_to(project) for path in project.rglob("*") if path.is_file() and ".venv" not in path.parts}
    assert own - written.keys() == {Path("stacks/Pulumi.big.yaml"), Path("stacks/schema.json")}


JOB = "JobId=7 JobName=hello UserId=trainer(1001) JobState=RUNNING RunTime=00:00:05 Partition=gpu NumNodes=2"


def test_a_job_user_needs_no_project_and_no_pulumi(
    user: User, tmp_path: Path, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(tmp_path / "absent", "pulumi", "pulumi_azure_native", "pulumi_command", "pulumi_gcp", "pydantic")
    monkeypatch.setattr(user, "more", {"PYTHONPATH": str(tmp_path / "absent")})
    ssh = program("ssh", f"[[ $* != *'exec bash -c'* ]] || {{ echo 'text of the log'; exit 0; }}\necho '{JOB}'")
    outputs_file(tmp_path / "outputs.json", admin_private_key="not a key")
    assert "train-tiny" in user.run(tmp_path, "yard", "recipes").stdout
    done = user.run(tmp_path, "yard", "submit", "hello", "--dry-run", "--outputs", "outputs.json")
    assert "#SBATCH --partition=gpu" in done.stdout
    jobs = user.document(tmp_path, "yard", "ps", "--json", "--outputs", "outputs.json")
    assert [job["name"] for job in jobs] == ["hello"]
    assert "text of the log" in user.run(tmp_path, "yard", "logs", "7", "--outputs", "outputs.json").stdout
    assert ssh.calls
    refused = user.run(tmp_path, "yard", "preview", "--all", code=1)
    assert (
        f"needs a Pulumi project, but neither {tmp_path} nor a folder above it contains a Pulumi.yaml" in refused.stderr
    )
    refused = user.run(tmp_path, "yard", "prices", "update", code=1)
    assert "Fix: run it in a clone of the repository" in refused.stderr
