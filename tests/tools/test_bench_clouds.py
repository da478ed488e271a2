"""What `make bench-clouds` measures: stacks as large as it says, and time told by whose code takes it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import FrameType

import pytest

from components.stackfile import parse_stack
from tools.bench_clouds import FEW, MANY, STACKS, sized
from tools.environment import ROOT
from tools.program_cost import ALL, IMPORTS, MEMORY, OURS, SDK, owner, recorded


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("nodes", [FEW, MANY])
def test_a_stack_becomes_as_large_as_asked(stack: str, nodes: int) -> None:
    assert len(parse_stack(sized(stack, nodes), "test").plan.workers) == nodes


def frame_in(file: str, called: str = "called", name: str = "", inner: str = "") -> FrameType:
    """Return a frame of a function in a file of that name; `inner` is the file of a function that it calls."""
    places = {"sys": sys}
    exec(compile(f"def {called}(name, then):\n    return then()", file, "exec"), places)  # noqa: S102
    deepest = sys._getframe if not inner else lambda: frame_in(inner)
    made: FrameType = places[called](name, deepest)  # type: ignore[operator]
    return made


def test_a_frame_belongs_to_whoever_asked_for_the_work() -> None:
    ours, sdk, library = f"{ROOT}/components/plan.py", "/v/site-packages/pulumi/output.py", "/v/site-packages/yaml/x.py"
    assert owner(frame_in(ours)) == OURS
    assert owner(frame_in(sdk)) == SDK
    assert owner(frame_in(ours, inner=library)) == OURS
    assert owner(frame_in(ours, inner=sdk)) == SDK
    assert owner(frame_in("<frozen importlib>", "_find_and_load", "pulumi_gcp.compute")) == IMPORTS
    assert owner(frame_in("<frozen importlib>", "_find_and_load", "components.plan")) == OURS


def test_the_report_adds_up(tmp_path: Path) -> None:
    with recorded(tmp_path / "report"):
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
    report = json.loads((tmp_path / "report").read_text())
    assert sum(report[name] for name in (OURS, IMPORTS, SDK)) == pytest.approx(report[ALL], abs=0.02)
    assert report[MEMORY] > 1
