"""Tests that each additional node adds a constant number of resources, dependencies and invokes."""

from __future__ import annotations

import asyncio
from typing import Any

import pulumi
import pytest
from pulumi.runtime.mocks import MockMonitor

from components.cluster.cluster import Cluster, ClusterArgs
from components.stackfile.read import parse_stack
from tests.components.platforms.recording import Recorder, stack_text
from tests.components.platforms.test_contract import contract, whole_answer

# Importing the command SDK causes a warning about a resource that this project does not use.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore:This resource is deprecated:DeprecationWarning"),
]

STEP = 8


class Counting(MockMonitor):
    """Mock monitor that counts resource dependencies and records invokes."""

    def __init__(self, mocks: pulumi.runtime.Mocks) -> None:
        super().__init__(mocks)
        self.named: list[int] = []
        self.asked: list[str] = []

    def RegisterResource(self, request: Any) -> Any:
        if not request.custom:
            return super().RegisterResource(request)  # type: ignore[no-untyped-call]
        by_property = sum(len(named.urns) for named in request.propertyDependencies.values())
        self.named.append(len(request.dependencies) + by_property + len(request.aliases))
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]

    def Invoke(self, request: Any) -> Any:
        self.asked.append(request.tok)
        return super().Invoke(request)  # type: ignore[no-untyped-call]


def counted(provider: str, nodes: int) -> Counting:
    """Declare a cluster with a number of nodes."""
    part = contract(provider)
    stack = parse_stack(stack_text(part.stack, nodes__gpu__count=nodes, limits={}), "test")
    counting = Counting(Recorder(whole_answer(part), part.tell))
    pulumi.runtime.set_mocks(counting.mocks, preview=False, monitor=counting)

    def program() -> pulumi.Output[Any]:
        cluster = Cluster(stack.plan.name, ClusterArgs(plan=stack.plan))
        return cluster.outputs

    pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]
    return counting


@pytest.mark.parametrize(("provider", "resources", "questions"), [("azure", 3, 1), ("gcp", 1, 1)])
def test_an_additional_node_has_constant_cost(
    loops: asyncio.AbstractEventLoop, provider: str, resources: int, questions: int
) -> None:
    some, more, most = (counted(provider, nodes) for nodes in (STEP, 2 * STEP, 3 * STEP))
    assert len(more.named) - len(some.named) == STEP * resources
    assert len(more.asked) - len(some.asked) == STEP * questions
    assert sum(most.named) - sum(more.named) == sum(more.named) - sum(some.named)
