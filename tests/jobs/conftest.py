"""What the tests of yard share: clusters of two kinds, a stack in a folder of its own, and programs that take notes."""

from __future__ import annotations

import json
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import jobs.stack
from components.outputs import ClusterOutputs, HeadOut, NodeOut
from jobs.facts import Cluster, cluster_of

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFoRtHeTeStSoNlYnOtARealHoStKeYaTaLl00000000"


def outputs(
    gpus: int, gpu_type: str | None, count: int, floor: float | None, pair: float | None = None
) -> ClusterOutputs:
    """Outputs of a cluster with one group, `gpu`."""
    return ClusterOutputs(
        name="yard",
        provider="local",
        scheduler="slurm",
        head=HeadOut(
            name="yard-head",
            address="127.0.0.1",
            port=22001,
            private_ip="10.77.0.4",
            user="trainer",
            admin_user="ops",
            host_key=HOST_KEY,
        ),
        nodes=tuple(
            NodeOut(
                name=f"yard-gpu-{index}",
                private_ip=f"10.77.2.{index + 1}",
                group="gpu",
                gpus=gpus,
                gpu_type=gpu_type,
                fabric="ethernet",
                host_key=HOST_KEY,
                # Only the first can be reached directly, as behind a cloud's single public address.
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


@pytest.fixture
def local_outputs() -> ClusterOutputs:
    """What the stack `local` exports, in kind."""
    return outputs(2, "fake", 2, None)


@pytest.fixture
def local(local_outputs: ClusterOutputs) -> Cluster:
    """Two workers with two fake GPUs each."""
    return cluster_of(local_outputs.model_dump(mode="json"))


@pytest.fixture
def wide() -> Cluster:
    """Four workers with eight real GPUs each, and known floors of all-reduce bandwidth."""
    return cluster_of(outputs(8, "h100", 4, 300.0, 300.0).model_dump(mode="json"))


@dataclass(frozen=True, kw_only=True)
class Program:
    """A stand-in for a program on PATH that notes each call: its arguments, and what it was given on stdin."""

    folder: Path
    name: str

    @property
    def calls(self) -> list[str]:
        """The arguments of each call, one line each."""
        notes = self.folder / f"{self.name}.calls"
        return notes.read_text().splitlines() if notes.exists() else []

    @property
    def stdin(self) -> bytes:
        """What the last call found on stdin."""
        return (self.folder / f"{self.name}.stdin").read_bytes()


MakeProgram = Callable[[str, str], Program]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeProgram:
    """Put a program in front of PATH; its body is bash, after the notes are taken."""
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


@dataclass(frozen=True, kw_only=True)
class FakeStack:
    """A checkout of its own whose pulumi answers with given outputs."""

    root: Path
    pulumi: Program

    def export(self, value: dict[str, Any]) -> None:
        """Change what the stack exports."""
        (self.root / "outputs.json").write_text(json.dumps(value))

    def touch_state(self, text: str) -> None:
        """Change the state file of pulumi's file backend, as `pulumi up` does."""
        state = self.root / "state" / ".pulumi" / "stacks" / "trainyard" / "local.json"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text(text)

    @property
    def folder(self) -> Path:
        """Where yard keeps the stack's files."""
        return self.root / ".trainyard" / "ssh" / "local"


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a short path, which tmp_path has not."""
    folder = Path(tempfile.mkdtemp(prefix="yard-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def stack(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: MakeProgram,
    local_outputs: ClusterOutputs,
    sockets: Path,
) -> FakeStack:
    """A deployed stack `local`."""
    monkeypatch.setattr(jobs.stack, "CHECKOUT", tmp_path)
    monkeypatch.setattr(jobs.stack, "SOCKETS", sockets)
    monkeypatch.delenv("TRAINYARD_STACK", raising=False)
    (tmp_path / ".trainyard").mkdir()
    (tmp_path / ".trainyard" / "env.sh").write_text(f'export PULUMI_BACKEND_URL="file://{tmp_path}/state"\n')
    made = FakeStack(root=tmp_path, pulumi=program("pulumi", f'cat "{tmp_path}/outputs.json"'))
    made.touch_state("one")
    made.export({"cluster": local_outputs.model_dump(mode="json"), "ssh_private_key": "not a key"})
    return made
