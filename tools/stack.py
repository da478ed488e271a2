"""Run Pulumi on a stack in the same way as `make`: `python -m tools.stack VERB STACK [PULUMI OPTION...]`.

Verbs: init, up, preview, refresh, destroy, rm, outputs. The environment is defined by .trainyard/env.sh. The exit code
is Pulumi's exit code. With --offline, the clouds are simulated (docs/offline.md) without network or account, and the
state is separate.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from tools.protection import EXCLUDE, refuse_protected
from trainyard.checkout import ROOT
from trainyard.errors import StackError
from yard.stack.workspace import PLAIN, SHOW, Workspace, copy_of, refuse_real_machines

_NO_QUESTIONS = (*SHOW, "--yes", "--skip-preview")


class Stack(Workspace):
    """A workspace with the operations that change resources."""

    def up(self, extra: Sequence[str] = ()) -> int:
        """Run `pulumi up`. Raises StackError if --offline would create real machines."""
        if self.simulated:
            refuse_real_machines(self.name)
        return self.operate("up", (*_NO_QUESTIONS, *extra))

    def refresh(self, extra: Sequence[str] = ()) -> int:
        """Run `pulumi refresh`. Returns the exit code."""
        return self.operate("refresh", (*_NO_QUESTIONS, *extra))

    def destroy(self, extra: Sequence[str] = ()) -> int:
        """Run `pulumi destroy`. Returns 0 if the stack does not exist. Raises StackError for protected data."""
        if not self.exists():
            sys.stderr.write(f"stack '{self.name}' does not exist: nothing to destroy\n")
            return 0
        if EXCLUDE not in extra:
            refuse_protected(self.name, self.environment)
        return self.operate("destroy", (*_NO_QUESTIONS, *extra))

    def rm(self, extra: Sequence[str] = ()) -> int:
        """Remove the stack from the backend. Pulumi requires --force for a stack with resources."""
        if not self.exists():
            return 0
        self.clear_lock()
        # Without --preserve-config, Pulumi would delete the committed stack file.
        command = ["stack", "rm", self.name, "--yes", "--preserve-config", *PLAIN, *extra]
        code = self.run(command, self.environment, ROOT)
        if code == 0:
            copy_of(self.name, self.home).unlink(missing_ok=True)
        return code

    def outputs(self, extra: Sequence[str] = ()) -> int:
        """Print the stack's outputs as JSON, without secrets. Returns the exit code."""
        return self.run(["stack", "output", "--json", "-s", self.name, *PLAIN, *extra], self.environment, ROOT)


def main() -> int:
    """Run the verb given on the command line. Returns the exit code."""
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
    chosen, extra = parser.parse_known_args()
    try:
        return verbs[chosen.verb](Stack(chosen.stack, simulated=chosen.offline), extra)
    except StackError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
