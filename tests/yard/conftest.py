"""Fixtures for yard tests: clusters, and a stack in a temporary folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from typer.main import get_command
from typer.testing import CliRunner

import trainyard.project
from tests.architecture.modules import modules
from tests.conftest import ROOT, MakeProgram, Program
from trainyard.errors import RemoteError
from trainyard.outputs import Cluster, Head, Node, dumped
from yard.commands.cli import app
from yard.job.loader import LoadedJob, load_job
from yard.stack.load import KEY_VARIABLE, USER_VARIABLE, Stack

__all__ = ["MakeProgram", "Program"]

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFoRtHeTeStSoNlYnOtARealHoStKeYaTaLl00000000"


SCHEMAS = ROOT / "yard" / "schemas"

command_tree = cache(get_command)
# Typer builds the tree of all commands in each call, which takes longer than most commands. Nothing changes the tree.
typer.testing._get_command = command_tree  # type: ignore[attr-defined]


def yard(*words: str) -> tuple[int, str, str]:
    """Run a command of yard. Return its exit code and what it prints on stdout and stderr.

    The output of a command with --json must have the format of the command's schema.
    """
    result = CliRunner().invoke(app, list(words))
    options = words[: words.index("--")] if "--" in words else words
    if "--json" in options and (command := command_of(options)) != "schema" and result.exit_code != _WRONG_USAGE:
        for line in result.stdout.splitlines():
            validate(command, json.loads(line))
    return result.exit_code, result.stdout, result.stderr


_WRONG_USAGE = 2


def command_of(words: Sequence[str]) -> str:
    """Return the words that name the command, for example "env ls"."""
    group: Any = command_tree(app)
    found: list[str] = []
    for word in words:
        if word not in getattr(group, "commands", {}):
            break
        group = group.commands[word]
        found.append(word)
    return " ".join(found)


def validate(command: str, document: Any) -> None:
    """Check that a document has the format of a command's schema or that of an error, and no other keys."""
    name = "error" if "error" in document else command.replace(" ", "-")
    problem = best_match(_validator(name).iter_errors(document))
    assert problem is None, f"yard {command} --json: {problem and problem.message}; see tools/documents.py: {document}"


@cache
def _validator(name: str) -> Draft202012Validator:
    def without_other_keys(value: Any) -> Any:
        if isinstance(value, list):
            return [without_other_keys(each) for each in value]
        if not isinstance(value, dict):
            return value
        found = {key: without_other_keys(each) for key, each in value.items()}
        return {**found, "additionalProperties": False} if isinstance(value.get("properties"), dict) else found

    return Draft202012Validator(without_other_keys(json.loads((SCHEMAS / f"{name}.json").read_text())))


def printed(*words: str) -> str:
    """Run a command of yard that must succeed, and return what it prints on stdout."""
    code, out, err = yard(*words)
    assert code == 0, err
    return out


def refused(*words: str) -> str:
    """Run a command of yard that must end with exit code 1, and return what it prints on stderr."""
    code, out, err = yard(*words)
    assert code == 1, out
    return err


def use_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the folder of the project during a test."""
    _import_copies()
    monkeypatch.setattr(trainyard.project, "ROOT", root)


@cache
def _import_copies() -> None:
    """Import all modules that copy ROOT. A module first imported during a test would keep the folder of this test."""
    for name, path in modules().items():
        if "from trainyard.project import ROOT" in path.read_text() and not name.startswith(("tools.", "offline.")):
            import_module(name)


def outputs(gpus: int, gpu_type: str | None, count: int, floor: float | None, pair: float | None = None) -> Cluster:
    """Return the outputs for a cluster with one group, `gpu`."""
    return Cluster(
        name="yard",
        provider="local",
        scheduler="slurm",
        head=Head(
            name="yard-head",
            address="127.0.0.1",
            port=22001,
            private_ip="10.77.0.4",
            user="trainer",
            admin_user="ops",
            host_key=HOST_KEY,
        ),
        nodes=tuple(
            Node(
                name=f"yard-gpu-{index}",
                private_ip=f"10.77.2.{index + 1}",
                group="gpu",
                gpus=gpus,
                gpu_type=gpu_type,
                fabric="ethernet",
                host_key=HOST_KEY,
                # Only the first node has an address. SSH connections to the other nodes go through the head.
                address="127.0.0.1" if index == 0 else None,
                port=22002 if index == 0 else 22,
            )
            for index in range(count)
        ),
        env={"gpu": {"NCCL_IB_DISABLE": "1", "NCCL_IBEXT_DISABLE": "1"}},
        thresholds={"gpu": floor},
        pair_thresholds={"gpu": pair},
        usd_per_hour=None,
    )


def outputs_file(path: Path, **more: str) -> Path:
    """Write the outputs of `local` and the user's key to a file that only its owner can read. Return the file."""
    path.touch(mode=0o600)
    path.write_text(json.dumps({"cluster": dumped(outputs(2, "fake", 2, None)), "user_private_key": "a key", **more}))
    return path


@pytest.fixture
def local() -> Cluster:
    """A cluster with two workers that have two fake GPUs each."""
    return outputs(2, "fake", 2, None)


@pytest.fixture
def wide() -> Cluster:
    """A cluster with four workers that have eight real GPUs each, and published floors for all-reduce bandwidth."""
    return outputs(8, "h100", 4, 300.0, 300.0)


def job_of(folder: Path, text: str) -> LoadedJob:
    (folder / "job.yaml").write_text(text)
    return load_job(str(folder / "job.yaml"), {}, {}, [])


def git(folder: Path, *words: str) -> str:
    """Run git with the identity of a test, and return what it prints."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until `condition` returns a true value."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"still waiting after {seconds} s"
        time.sleep(0.05)


class LocalHead:
    """A replacement for Remote that runs the head's commands on this computer."""

    notices: tuple[str, ...] = ()

    def __init__(self, cluster: Cluster) -> None:
        self.stack = Stack(name="local", cluster=cluster, folder=Path("/nowhere"))
        self.lines: list[str] = []

    def run(self, line: str, stdin: bytes = b"") -> str:
        self.lines.append(line)
        done = subprocess.run(["bash", "-c", line], input=stdin, capture_output=True, check=False)
        if done.returncode:
            raise RemoteError(done.stderr.decode())
        return done.stdout.decode()

    run_with_notices = run


@dataclass(frozen=True, kw_only=True)
class FakeStack:
    """A temporary checkout with a fake pulumi that prints the given outputs."""

    root: Path
    pulumi: Program
    program: MakeProgram

    def export(self, value: dict[str, Any]) -> None:
        """Change the outputs and the state of the stack, as `pulumi up` does."""
        text = json.dumps(value)
        (self.root / "outputs.json").write_text(text)
        self.touch_state(text)

    def deploy(self, cluster: Cluster) -> None:
        keys = {"user_private_key": "not a key", "admin_private_key": "nor this"}
        self.export({"cluster": dumped(cluster), **keys})

    def touch_state(self, text: str) -> None:
        state = self.root / "state" / ".pulumi" / "stacks" / "trainyard" / "local.json"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text(text)

    @property
    def folder(self) -> Path:
        return self.root / ".trainyard" / "ssh" / "local"


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a short path, because Unix socket paths are limited to 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="yard-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def machines_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake clusters have no machines, whose SSH ports would accept connections."""
    monkeypatch.setattr("yard.stack.remote._is_refused", lambda *_: False)


@pytest.fixture
def stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: MakeProgram, local: Cluster, sockets: Path
) -> FakeStack:
    use_root(tmp_path, monkeypatch)
    (tmp_path / "Pulumi.yaml").write_text("name: trainyard\nstackConfigDir: stacks\n")
    monkeypatch.setattr("yard.stack.load.SOCKETS", sockets)
    # The backend and the stack of the developer's shell must not be used.
    own = ("TRAINYARD_STACK", "TRAINYARD_OUTPUTS", KEY_VARIABLE, USER_VARIABLE)
    for name in (*own, "PULUMI_STACK", "PULUMI_BACKEND_URL", "PULUMI_ACCESS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "pulumi-home"))
    (tmp_path / ".trainyard").mkdir()
    (tmp_path / ".trainyard" / "env.sh").write_text(f'export PULUMI_BACKEND_URL="file://{tmp_path}/state"\n')
    made = FakeStack(root=tmp_path, program=program, pulumi=program("pulumi", f'cat "{tmp_path}/outputs.json"'))
    made.deploy(local)
    return made
