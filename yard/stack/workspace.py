"""Pulumi operations on a stack in this checkout."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainyard.checkout import ROOT, state
from trainyard.errors import StackError
from trainyard.machines import SOURCE
from yard.show import warn
from yard.stack import pulumi
from yard.stack.backend import backend_folder, backend_url, state_file
from yard.stack.locks import clear_stale
from yard.stack.pulumi import run_pulumi
from yard.stack.sessions import end_session
from yard.stack.simulated import HOME
from yard.stack.simulated import environment as simulated_environment
from yard.stack.stackfile import committed_text, copy_of, refresh_copy

PLAIN = ("--non-interactive",)
SHOW = ("--non-interactive", "--suppress-outputs")
"""Without --suppress-outputs, the long output `cluster` would hide the other messages on a terminal."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")

RunPulumi = Callable[[Sequence[str], Mapping[str, str], Path], int]
"""Function that runs pulumi with arguments, an environment and a working folder, and returns the exit code."""


class Workspace:
    """A stack and the environment for its operations. Operations never change the committed stack file.

    If `simulated` is set, the clouds are simulated and `home` is the folder for Pulumi's files. `run` starts pulumi.
    `source` is the name of the stack file if it differs from the name of the stack.
    """

    def __init__(
        self,
        name: str,
        *,
        simulated: bool = False,
        home: Path = HOME,
        run: RunPulumi = run_pulumi,
        source: str | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise StackError(f"'{name}' is not a stack name. Fix: use letters, digits, '-', '_' and '.'")
        self.name = name
        self._source = source or name
        self.simulated = simulated
        self.home = home if simulated else state()
        online = pulumi.environment(required=True)
        self.environment = simulated_environment(online, home) if simulated else online
        if url := backend_url(self.environment):
            # `pulumi stack` runs in a folder whose Pulumi.yaml has no backend.
            self.environment["PULUMI_BACKEND_URL"] = url
        if source is not None:
            self.environment[SOURCE] = source
        self.run = run
        self.backend = backend_folder(self.environment)

    def exists(self) -> bool:
        """Return whether the stack exists in the backend. The result for a remote backend is always True."""
        state_path = state_file(self.environment, self.name)
        return state_path is None or state_path.exists()

    def init(self, extra: Sequence[str] = ()) -> int:
        """Create the stack if it does not exist, and update the copy of its file. Returns the exit code."""
        committed_text(self._source)
        if self.backend is None:
            code = self._create("select", "--create", *extra)
        elif self.exists():
            code = 0
        else:
            copy_of(self.name, self.home).unlink(missing_ok=True)  # the copy contains the salt of a removed stack
            code = self._create("init", "--no-select", *extra)
        if code == 0:
            refresh_copy(self.name, self.home, self._source, with_secrets=not self.simulated)
        return code

    def _create(self, *arguments: str) -> int:
        # `pulumi stack` has no --config-file option. In self.home, it writes the salt to the copy of the stack file.
        return self.run(["stack", *arguments, *PLAIN, "--stack", self.name], self.environment, self.home)

    def preview(self, extra: Sequence[str] = ()) -> int:
        """Run `pulumi preview`. Returns the exit code."""
        return self.operate("preview", (*SHOW, *extra))

    def operate(self, verb: str, arguments: Sequence[str]) -> int:
        """Run an operation with the copy of the stack file. Returns the exit code."""
        self.clear_lock()
        code = self.init()
        if code:
            return code
        file = str(copy_of(self.name, self.home))
        return self.run([verb, "-s", self.name, "--config-file", file, *arguments], self.environment, ROOT)

    def clear_lock(self) -> None:
        """Remove the locks of dead pulumi processes, and end the plugins that those processes started."""
        if self.backend is None:
            return
        for pid in clear_stale(self.backend, self.name):
            end_session(pid)  # run_pulumi starts pulumi as the leader of a session
            warn(f"stack '{self.name}': removed the lock of pulumi process {pid}, which has ended")
