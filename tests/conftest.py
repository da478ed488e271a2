"""Fixtures for all tests: golden files, plans, SSH servers, and fake programs that record their calls."""

from __future__ import annotations

import functools
import gc
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from typer.main import get_command

from components.catalog import Machine, images
from components.plan.plan import ClusterPlan, plan_cluster
from components.stackfile.read import cluster_spec, read_stack
from tests.offline.loopback_sshd import Sshd, new_server, running, sshd_binary
from tests.trainyard.tunnel_programs import TunnelPrograms

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden"

# The SDKs' classes stay in memory until the tests end. Repeated garbage collection would take a tenth of the test time.
gc.set_threshold(100_000, 50, 1000)

CheckGolden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden instead of comparing with it")
    parser.addoption("--official", metavar="HOME", help="Pulumi home with an official plugin (tools/official.sh)")


@pytest.fixture(scope="session", autouse=True)
def _commands_once() -> Iterator[None]:
    """Cache yard's commands. Otherwise, Typer's runner builds them for each call, which takes longer than most
    calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", functools.cache(get_command))
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> CheckGolden:
    """Compare a text with the golden file at a relative path, or write the file with --update-golden."""

    def check(path: str, text: str) -> None:
        file = GOLDEN / path
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        assert file.exists(), f"{path} is missing; write it with --update-golden and review it"
        assert text == file.read_text(), f"{path} differs; if the change is intended, run with --update-golden"

    return check


@pytest.fixture(scope="session")
def local_plan() -> ClusterPlan:
    return read_stack(ROOT / "stacks" / "Pulumi.local.yaml").plan


@pytest.fixture(scope="session")
def wide_plan() -> ClusterPlan:
    """A plan with a large GPU group that spans several /24 networks, a node with one GPU, and nodes without GPUs."""
    fact = {"provider": "test", "fabric": "ethernet", "source": "made up", "dated": "2026-01-01"}
    gpu = {"gpu_type": "h100", "gpu_device": "/dev/nvidia"}
    kinds = [
        Machine.model_validate(row | fact)
        for row in (
            {"name": "head", "vcpus": 8, "memory_mib": 32768, "gpus": 0},
            {"name": "eight", "vcpus": 96, "memory_mib": 1900544, "gpus": 8, **gpu},
            {"name": "one", "vcpus": 40, "memory_mib": 327680, "gpus": 1, **gpu},
            {"name": "none", "vcpus": 4, "memory_mib": 16384, "gpus": 0},
        )
    ]
    spec = cluster_spec(
        {
            "name": "wide",
            "platform": {"provider": "local"},
            "network": {"cidr": "10.64.0.0/16"},
            "head": {"machine": "head"},
            "nodes": {
                "big": {"machine": "eight", "count": 300},
                "single": {"machine": "one", "count": 1},
                "cpu": {"machine": "none", "count": 2},
            },
        }
    )
    return plan_cluster(spec, {kind.name: kind for kind in kinds}, images()["debian-13"])


@pytest.fixture(scope="session", params=sorted(images()))
def plan_of_each_image(request: pytest.FixtureRequest, local_plan: ClusterPlan) -> ClusterPlan:
    """The local plan with each image in the catalog, and therefore with each Slurm version."""
    return replace(local_plan, image=images()[request.param])


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """Folder for the files of an sshd. The folder is not in tmp_path, because sshd requires a folder that all users can
    access."""
    folder = Path(tempfile.mkdtemp(prefix="ty-sshd-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def new_sshd(server_folder: Path) -> Sshd:
    """An sshd that is not started. The test is skipped if sshd is not installed."""
    if not sshd_binary():
        pytest.skip("needs sshd (Debian: apt-get install openssh-server)")
    return new_server(server_folder)


@pytest.fixture
def sshd(new_sshd: Sshd) -> Iterator[Sshd]:
    with running(new_sshd) as found:
        yield found


@pytest.fixture
def tunnel_programs(sshd: Sshd, tmp_path: Path) -> Iterator[TunnelPrograms]:
    """Fake `az` and `gcloud` that open tunnels to the sshd. Every tunnel must be closed at the end of the test."""
    programs = TunnelPrograms(tmp_path / "bin")
    programs.install(sshd.port)
    yield programs
    deadline = time.monotonic() + 20
    while programs.running:
        assert time.monotonic() < deadline, "a tunnel is still running"
        time.sleep(0.05)


@dataclass(frozen=True, kw_only=True)
class Program:
    folder: Path
    name: str

    @property
    def calls(self) -> list[str]:
        """The arguments of each call, one line per call."""
        notes = self.folder / f"{self.name}.calls"
        return notes.read_text().splitlines() if notes.exists() else []

    @property
    def stdin(self) -> bytes:
        return (self.folder / f"{self.name}.stdin").read_bytes()


MakeProgram = Callable[[str, str], Program]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeProgram:
    """Return a function that creates a fake bash program in the first folder on PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def make(name: str, body: str) -> Program:
        path = folder / name
        note = f'printf "%s\\n" "${{*//$\'\\n\'/ }}" >>"{folder}/{name}.calls"\n'
        path.write_text(f"#!/usr/bin/env bash\n{note}{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return Program(folder=folder, name=name)

    return make
