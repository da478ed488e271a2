"""The Pulumi stack of an image in a cloud. Its name is the name of the image."""

from __future__ import annotations

import json
from functools import partial

from trainyard.checkout import ROOT
from trainyard.errors import StackError
from trainyard.machines import BAKE, BAKED_IMAGE, BUILD, KEEP
from yard.show import say, warn
from yard.stack import pulumi
from yard.stack.pulumi import run_pulumi
from yard.stack.workspace import PLAIN, SHOW, Workspace, copy_of

_NO_QUESTIONS = (*SHOW, "--yes", "--skip-preview")


def bake_in_cloud(stack: Workspace) -> str:
    """Build the image if it does not exist, and return the value of `baked_image`.

    After an error or an interruption, the stack is destroyed. Raises StackError or KeyboardInterrupt.
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
    """Return the output BAKED_IMAGE, or "" if the stack or the output does not exist."""
    if not stack.exists():
        return ""
    words = ["stack", "output", "--json", "--stack", stack.name, *PLAIN]
    done = pulumi.run(words, stack.environment, folder=ROOT)
    return str(json.loads(done.stdout).get(BAKED_IMAGE, "")) if done.returncode == 0 else ""


def _remove(stack: Workspace) -> None:
    """Destroy the stack. Prints a warning if resources remain."""
    warn(f"removing the builder of {stack.name}")
    if stack.operate("destroy", _NO_QUESTIONS):
        warn(f"the builder still exists. Fix: run `pulumi destroy --stack {stack.name}`")
        return
    words = ["stack", "rm", stack.name, "--yes", "--preserve-config", *PLAIN]
    if stack.run(words, stack.environment, ROOT) == 0:
        copy_of(stack.name, stack.home).unlink(missing_ok=True)
