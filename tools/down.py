"""`make down`: deletes the local stack and leaves nothing of it but the caches and the set-up.

The machines are this computer's own, so they also go when Pulumi cannot delete them any more: a broken state, a
killed engine, a missing folder.
"""

from __future__ import annotations

import shutil
import sys

from components.platforms.local.paths import runs_folder
from components.platforms.local.sweep import sweep_run
from jobs.stack import forget
from tools.environment import STATE, ToolError
from tools.stack import Stack

STACK = "local"
_SIGNALLED = 128


def down() -> int:
    """Remove the stack. Returns 0, or the exit code of the Pulumi command that was interrupted or failed last."""
    stack = Stack(STACK)
    code = stack.destroy()
    if code >= _SIGNALLED:
        return code
    if code:
        sys.stderr.write("pulumi destroy failed; ending the machines without it\n")
    ended = sweep_run(runs_folder() / STACK)
    if ended:
        sys.stderr.write(f"ended {ended} processes that Pulumi did not know any more\n")
    code = stack.rm(["--force"] if code else [])
    if code:
        return code
    ssh_files = STATE / "ssh" / STACK
    forget(ssh_files)
    shutil.rmtree(ssh_files, ignore_errors=True)
    remove_empty_state()
    return 0


def remove_empty_state() -> None:
    """Remove what Pulumi keeps after the last stack: history, backups, old locks and logs."""
    backend = STATE / "state" / ".pulumi"
    if not any((backend / "stacks").rglob("*.json")):
        shutil.rmtree(backend, ignore_errors=True)
    for name in ("logs", "workspaces"):
        shutil.rmtree(STATE / "pulumi-home" / name, ignore_errors=True)


def main() -> int:
    """Remove the stack, or say why that cannot be done now."""
    try:
        return down()
    except ToolError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
