"""Stacks measured by `make bench-clouds`."""

from __future__ import annotations

import pytest

from components.stackfile.read import parse_stack
from tools.bench_clouds import FEW, MANY, STACKS, sized


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("nodes", [FEW, MANY])
def test_stack_has_the_requested_number_of_nodes(stack: str, nodes: int) -> None:
    assert len(parse_stack(sized(stack, nodes), "test").plan.workers) == nodes
