"""Run Pulumi on a stack in the same way as `make`: `python -m tools.stack VERB STACK [PULUMI OPTION...]`.

Verbs: init, up, preview, refresh, destroy, rm, outputs. The environment comes from .trainyard/env.sh, and the exit code
from Pulumi. With --offline, the clouds are simulated, without network or account, and have a state of their own
(docs/dev/offline.md).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence

from components.platforms.local.image import ensure_image
from offline.boot.machine import DIFFERENCES, IMAGE, hypervisor
from offline.cloud.world import World
from trainyard.errors import StackError
from trainyard.project import ROOT, stack_file
from yard.stack import pulumi
from yard.stack.workspace import PLAIN, SHOW, Workspace, refuse_real_machines

EXCLUDE = "--exclude-protected"
"""The option of `pulumi destroy` that keeps protected resources and their dependencies."""
_NO_QUESTIONS = (*SHOW, "--yes", "--skip-preview")


class Stack(Workspace):
    """A workspace that can also change its stack's resources. Each operation returns an exit code."""

    def up(self, extra: Sequence[str] = ()) -> int:
        """Run `pulumi up`. Raises StackError if --offline would create real machines."""
        if self.simulated:
            refuse_real_machines(self.name)
        if self.boots:
            sys.stderr.write("".join(f"booted: {line}\n" for line in DIFFERENCES))
            ensure_image(IMAGE)
            file = self.write_environment()
            sys.stderr.write(f"booted: to use the cluster, run `. {file}`, then `yard nodes --stack {self.name}`\n")
        code = self.operate("up", (*_NO_QUESTIONS, *extra))
        if self.simulated:
            destroy, rm = self._command("destroy", EXCLUDE), self._command("rm", "--force")
            sys.stderr.write(f"offline: all resources are simulated. To delete them, run {destroy}, and then {rm} ")
            sys.stderr.write("for those that are protected\n")
        return code

    def refresh(self, extra: Sequence[str] = ()) -> int:
        return self.operate("refresh", (*_NO_QUESTIONS, *extra))

    def destroy(self, extra: Sequence[str] = ()) -> int:
        """Run `pulumi destroy` if the stack exists. Raises StackError if the stack's data is protected."""
        if not self.exists():
            sys.stderr.write(f"stack '{self.name}' does not exist: nothing to destroy\n")
            return 0
        if EXCLUDE not in extra:
            refuse_protected(self.name, self.environment)
        code = self.operate("destroy", (*_NO_QUESTIONS, *extra))
        if self.simulated and not code:
            sys.stderr.write("offline: the protected resources are kept. ")
            sys.stderr.write(f"To delete them as well, run {self._command('rm', '--force')}\n")
        return code

    def rm(self, extra: Sequence[str] = ()) -> int:
        """Remove the stack from the backend. Pulumi requires --force if the stack has resources.

        If the clouds are simulated, their resources are deleted as well, unless they were booted.
        """
        if not self.exists():
            return 0
        self.clear_lock()
        code = self.remove(extra)
        cloud = World(self.name, self.home / "clouds").folder
        # The folder of booted machines contains what is needed to stop them.
        if self.simulated and not code:
            if not hypervisor(cloud).run.exists():
                shutil.rmtree(cloud, ignore_errors=True)
            sys.stderr.write(f"offline: {stack_file(self.name)} was kept\n")
        return code

    def outputs(self, extra: Sequence[str] = ()) -> int:
        """Print the stack's outputs as JSON, without secrets."""
        return self.run(["stack", "output", "--json", "-s", self.name, *PLAIN, *extra], self.environment, ROOT)

    def _command(self, verb: str, option: str) -> str:
        """Return the command that runs an operation of this simulated stack."""
        boot = " --boot" if self.boots else ""
        return f"`python -m tools.stack {verb} {self.name} --offline{boot} {option}`"


def refuse_protected(stack: str, environment: Mapping[str, str]) -> None:
    """Raise StackError if the stack has protected resources. The message lists these and says how to delete them."""
    done = pulumi.run(["stack", "export", "--non-interactive", "-s", stack], environment)
    if done.returncode:
        raise StackError(f"stack '{stack}': the state cannot be read: {done.stderr.strip()}")
    resources = (json.loads(done.stdout).get("deployment") or {}).get("resources") or []
    found = [f"{one['urn'].rpartition('::')[2]} ({one['type']})" for one in resources if one.get("protect")]
    if found:
        raise StackError(
            f"stack '{stack}' has protected data: {', '.join(found)}. Nothing was deleted. Fix: to keep the "
            f"data and delete the rest, add {EXCLUDE}; to delete the data as well, set "
            f"cluster.platform.protect_storage to false in stacks/Pulumi.{stack}.yaml, run `up`, then `destroy`"
        )


def main() -> int:
    verbs: dict[str, Callable[[Stack, Sequence[str]], int]] = {
        "init": Stack.init,
        "up": Stack.up,
        "preview": Stack.preview,
        "refresh": Stack.refresh,
        "destroy": Stack.destroy,
        "rm": Stack.rm,
        "outputs": Stack.outputs,
    }
    parser = argparse.ArgumentParser(prog="python -m tools.stack", description=__doc__)
    parser.add_argument("verb", choices=verbs)
    parser.add_argument("stack", help="a stack file stacks/Pulumi.STACK.yaml")
    parser.add_argument("--offline", action="store_true", help="simulate the clouds: no network, no account")
    parser.add_argument(
        "--boot", action="store_true", help="with --offline: boot the machines as local virtual machines"
    )
    chosen, extra = parser.parse_known_args()
    if chosen.boot and not chosen.offline:
        parser.error("--boot requires --offline")
    try:
        return verbs[chosen.verb](Stack(chosen.stack, simulated=chosen.offline, boots=chosen.boot), extra)
    except StackError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
