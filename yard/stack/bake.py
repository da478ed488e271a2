"""`yard bake`: builds an image in which the one-time bootstrap stages have already run.

In a cloud, a Pulumi stack with the same name builds the image.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial

from components.node.bake import baked_name
from components.plan.plan import ClusterPlan
from components.platforms.registry import Baking, platform_facts
from components.stackfile.read import parse_stack
from trainyard.errors import StackError
from trainyard.machines import BAKE, BAKED_IMAGE, BUILD, KEEP
from trainyard.project import ROOT, stack_file
from yard.show import say, warn
from yard.stack import pulumi
from yard.stack.pulumi import interruptible, run_pulumi
from yard.stack.workspace import PLAIN, SHOW, Workspace, committed_text, short_name

_NO_QUESTIONS = (*SHOW, "--yes", "--skip-preview")


@dataclass(frozen=True, kw_only=True)
class Request:
    """The image that a stack file describes."""

    stack: str
    plan: ClusterPlan
    baking: Baking
    name: str


def request_of(stack: str) -> Request:
    """Return the image for a stack file. Raises StackFileError or StackError if the image cannot be built."""
    stack = short_name(stack)
    plan = parse_stack(committed_text(stack), stack_file(stack)).plan
    baking = platform_facts(plan.provider).baking
    if isinstance(baking, str):
        raise StackError(f"`yard bake` cannot build an image for stack {stack}: {baking}")
    return Request(stack=stack, plan=plan, baking=baking, name=baked_name(plan, baking.base(plan)))


def bake(request: Request, *, simulated: bool = False) -> str:
    """Build the image if it does not exist, and return the value for `baked_image` in the stack file.

    Raises PlatformError or StackError if the image cannot be built, and KeyboardInterrupt after an interruption. The
    builder is removed in both cases. If `simulated` is set, the cloud is simulated.
    """
    if request.baking.here is not None:
        with interruptible("removing the builder"):
            return request.baking.here(request.plan, request.name)
    return bake_in_cloud(Workspace(request.name, simulated=simulated, source=request.stack))


def bake_in_cloud(stack: Workspace) -> str:
    """Build the image if it does not exist, and return the value for `baked_image`.

    After a failure or an interruption, destroys the stack and raises StackError or KeyboardInterrupt.
    """
    if found := _output(stack):
        return found
    interrupts: list[None] = []
    stack.run = partial(run_pulumi, interrupted=lambda: interrupts.append(None))
    say(f"building the image {stack.name} in the Pulumi stack of the same name")
    for phase, purpose in ((BUILD, "builds the image"), (KEEP, "deletes the builder")):
        say(f"pulumi {purpose}")
        if code := stack.operate("up", (*_NO_QUESTIONS, "--config", f"{BAKE}={phase}")):
            _remove(stack)
            if interrupts:
                raise KeyboardInterrupt
            raise StackError(
                f"`pulumi up` ended with exit code {code}; its message is above. No image was stored. Fix: correct the "
                "cause, and run `yard bake` again"
            )
    return _output(stack)


def _output(stack: Workspace) -> str:
    if not stack.exists():
        return ""
    words = ["stack", "output", "--json", "--stack", stack.name, *PLAIN]
    done = pulumi.run(words, stack.environment, folder=ROOT)
    return str(json.loads(done.stdout).get(BAKED_IMAGE, "")) if done.returncode == 0 else ""


def _remove(stack: Workspace) -> None:
    warn(f"removing the builder of {stack.name}")
    if stack.operate("destroy", _NO_QUESTIONS):
        warn(f"the builder still exists. Fix: run `pulumi destroy --stack {stack.name}`")
        return
    stack.remove()
