"""Runs Pulumi on a stack the way `make` does: `python -m tools.stack VERB STACK [PULUMI OPTION...]`.

Verbs: init, up, preview, refresh, destroy, rm, outputs. The environment is set-up's, the stack is made when missing,
a dead process's lock is cleared, and the committed stack file stays as it is. The exit code is Pulumi's.
With --offline the clouds are simulated (docs/offline.md): no network, no account, and a state of its own.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools import offline
from tools.engine import end_session, run_pulumi
from tools.environment import PROJECT, ROOT, STATE, ToolError, backend_folder, load
from tools.locks import clear_stale
from tools.protection import EXCLUDE, refuse_protected
from tools.stackfile import committed_text, copy_of, refresh_copy

_PLAIN = ("--non-interactive",)
# Outputs are for programs: printed, they would push what a person must read off the screen, the larger the further.
_SHOW = ("--non-interactive", "--suppress-outputs")
_NO_QUESTIONS = (*_SHOW, "--yes", "--skip-preview")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")

RunPulumi = Callable[[Sequence[str], Mapping[str, str], Path], int]
"""Runs pulumi with arguments, an environment and a working folder; returns its exit code."""


class Stack:
    """One stack of this checkout and the environment to run Pulumi in.

    `home` is where a simulated one keeps everything; `run` runs pulumi, for whoever wants its words.
    """

    def __init__(
        self, name: str, *, simulated: bool = False, home: Path = offline.HOME, run: RunPulumi = run_pulumi
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ToolError(f"'{name}' is no stack name. Fix: use letters, digits, '-', '_' and '.'")
        self.name = name
        self.simulated = simulated
        self.home = home if simulated else STATE
        self.environment = offline.environment(load(), home) if simulated else load()
        self._run = run
        self.backend = backend_folder(self.environment)

    def exists(self) -> bool:
        """Whether the backend has the stack. True when only Pulumi can tell."""
        if self.backend is None:
            return True
        return (self.backend / ".pulumi" / "stacks" / PROJECT / f"{self.name}.json").exists()

    def init(self, extra: Sequence[str] = ()) -> int:
        """Make the stack when it is missing, and bring the copy of its file up to date."""
        committed_text(self.name)
        if self.backend is None:
            code = self._create("select", "--create", *extra)
        elif self.exists():
            code = 0
        else:
            copy_of(self.name, self.home).unlink(missing_ok=True)  # its salt belonged to a stack that is gone
            code = self._create("init", "--no-select", *extra)
        if code == 0:
            refresh_copy(self.name, self.home)
        return code

    def _create(self, *arguments: str) -> int:
        # Under .trainyard, so that the salt lands in the copy: `pulumi stack` knows no --config-file.
        return self._run(["stack", *arguments, *_PLAIN, "--stack", self.name], self.environment, self.home)

    def up(self, extra: Sequence[str] = ()) -> int:
        """Make the stack's resources what its file says."""
        if self.simulated:
            offline.refuse_real_machines(self.name)
        return self._operate("up", (*_NO_QUESTIONS, *extra))

    def preview(self, extra: Sequence[str] = ()) -> int:
        """Show what `up` would do."""
        return self._operate("preview", (*_SHOW, *extra))

    def refresh(self, extra: Sequence[str] = ()) -> int:
        """Bring the state up to date with what is really there."""
        return self._operate("refresh", (*_NO_QUESTIONS, *extra))

    def destroy(self, extra: Sequence[str] = ()) -> int:
        """Delete the stack's resources. A stack that does not exist has none. Raises ToolError for protected ones."""
        if not self.exists():
            sys.stderr.write(f"stack '{self.name}' does not exist: nothing to destroy\n")
            return 0
        if EXCLUDE not in extra:
            refuse_protected(self.name, self.environment)
        return self._operate("destroy", (*_NO_QUESTIONS, *extra))

    def rm(self, extra: Sequence[str] = ()) -> int:
        """Forget the stack; Pulumi refuses while it has resources, unless `extra` holds --force."""
        if not self.exists():
            return 0
        self._clear_lock()
        # Without --preserve-config Pulumi would delete the committed stack file.
        command = ["stack", "rm", self.name, "--yes", "--preserve-config", *_PLAIN, *extra]
        code = self._run(command, self.environment, ROOT)
        if code == 0:
            copy_of(self.name, self.home).unlink(missing_ok=True)
        return code

    def outputs(self, extra: Sequence[str] = ()) -> int:
        """Print the outputs contract as JSON, secrets hidden."""
        return self._run(["stack", "output", "--json", "-s", self.name, *_PLAIN, *extra], self.environment, ROOT)

    def _operate(self, verb: str, arguments: Sequence[str]) -> int:
        """Run an operation that locks the stack and reads its file."""
        self._clear_lock()
        code = self.init()
        if code:
            return code
        file = str(copy_of(self.name, self.home))
        return self._run([verb, "-s", self.name, "--config-file", file, *arguments], self.environment, ROOT)

    def _clear_lock(self) -> None:
        if self.backend is None:
            return
        for pid in clear_stale(self.backend, self.name):
            # A pulumi that run_pulumi started led a session of its own; its plugins may have outlived both.
            end_session(pid)
            sys.stderr.write(f"stack '{self.name}': cleared the lock of pulumi process {pid}, which is dead\n")


def main() -> int:
    """Run the verb named on the command line."""
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
    except ToolError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
