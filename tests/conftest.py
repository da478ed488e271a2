"""What the tests share: golden files, and plans of every kind that the renderers must handle."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.main import get_command

from components.catalog import Machine, images, machines
from components.plan import ClusterPlan, plan_cluster
from components.spec import ClusterSpec
from components.stackfile import read_stack

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden"

# The SDKs' classes live to the end: looking through them time and again takes a tenth of the tests' time.
gc.set_threshold(100_000, 50, 1000)

CheckGolden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden instead of comparing with it")


@pytest.fixture(scope="session", autouse=True)
def _commands_once() -> Iterator[None]:
    """Build yard's commands once: for each call anew, as typer's runner does, takes longer than most calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", functools.cache(get_command))
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> CheckGolden:
    """Compare a text with the golden file of that relative path, or write it with --update-golden."""

    def check(path: str, text: str) -> None:
        file = GOLDEN / path
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        assert file.exists(), f"{path} is missing; write it with --update-golden and review it"
        assert text == file.read_text(), f"{path} differs; if that is meant, rewrite it with --update-golden"

    return check


@pytest.fixture(scope="session")
def local_plan() -> ClusterPlan:
    """The plan of the stack `local`."""
    return read_stack(ROOT / "stacks" / "Pulumi.local.yaml").plan


@pytest.fixture(scope="session")
def wide_plan() -> ClusterPlan:
    """A plan with everything that the local stack lacks: a large GPU group beyond one /24, one GPU, and no GPU."""
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
    spec = ClusterSpec.model_validate(
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
    """The local plan as it would be on each image of the catalog, and so on each version of Slurm."""
    return replace(local_plan, image=images()[request.param])


@pytest.fixture(scope="session")
def local_machines() -> dict[str, Machine]:
    """The machine types of the local platform."""
    return machines("local")
