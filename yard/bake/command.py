"""`yard bake`: builds the image of a stack, unless it exists."""

from __future__ import annotations

from dataclasses import dataclass

from components.node.bake import baked_name
from components.plan.plan import ClusterPlan
from components.platforms.registry import Baking, platform_facts
from components.stackfile.read import parse_stack
from trainyard.errors import StackError
from yard.bake.stack import bake_in_cloud
from yard.stack.pulumi import interruptible
from yard.stack.workspace import Workspace, committed_text, short_name


@dataclass(frozen=True, kw_only=True)
class Request:
    """The image that a stack file describes."""

    stack: str
    plan: ClusterPlan
    baking: Baking
    name: str


def request_of(stack: str) -> Request:
    """Return the image for a stack file. Raises StackFileError or StackError if no image can be built for it."""
    stack = short_name(stack)
    plan = parse_stack(committed_text(stack), f"stacks/Pulumi.{stack}.yaml").plan
    baking = platform_facts(plan.provider).baking
    if isinstance(baking, str):
        raise StackError(f"`yard bake` cannot build an image for stack {stack}: {baking}")
    return Request(stack=stack, plan=plan, baking=baking, name=baked_name(plan, baking.base(plan)))


def bake(request: Request, *, simulated: bool = False) -> str:
    """Build the image if it does not exist, and return the value of `baked_image` in the stack file.

    Raises PlatformError or StackError if the image cannot be built, and KeyboardInterrupt after an interruption. In
    both cases, the builder has been removed. With `simulated`, a simulated cloud is used.
    """
    if request.baking.here is not None:
        with interruptible("removing the builder"):
            return request.baking.here(request.plan, request.name)
    return bake_in_cloud(Workspace(request.name, simulated=simulated, source=request.stack))
