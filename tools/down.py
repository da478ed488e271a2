"""`make down`: delete the local stack and its files, except the caches and the set-up.

If `pulumi destroy` fails, for example because the engine was killed, `make down` itself ends the machines' processes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from components.platforms.local.paths import runs_folder
from components.platforms.local.process import sweep_run
from tools.stack import Stack
from trainyard import project
from trainyard.errors import StackError
from yard.stack.load import forget

STACK = "local"
_SIGNALLED = 128


def down() -> int:
    """Remove the stack. Return 0, or the exit code of an interrupted `destroy` or a failed `rm`."""
    stack = Stack(STACK)
    code = stack.destroy()
    if code >= _SIGNALLED:
        return code
    if code:
        sys.stderr.write("pulumi destroy failed; ending the virtual machines directly\n")
    ended = sweep_run(runs_folder() / STACK)
    if ended:
        sys.stderr.write(f"ended {ended} processes that were not in the Pulumi state\n")
    code = stack.rm(["--force"] if code else [])
    if code:
        return code
    ssh_files = project.state() / "ssh" / STACK
    forget(ssh_files)
    shutil.rmtree(ssh_files, ignore_errors=True)
    remove_empty_state()
    remove_salt(project.ROOT / project.stack_file(STACK))
    sys.stdout.write("the local cluster was removed. `make clean` also deletes the cache of all checkouts\n")
    return 0


def remove_salt(file: Path) -> None:
    """Remove the salt that `pulumi up` and `pulumi stack select --create` added to the removed stack's file."""
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith("encryptionsalt:")))


def remove_empty_state() -> None:
    """Remove Pulumi's logs and, if no stack is left, its history, backups and old locks."""
    backend = project.state() / "state" / ".pulumi"
    if not any((backend / "stacks").rglob("*.json")):
        shutil.rmtree(backend, ignore_errors=True)
    for name in ("logs", "workspaces"):
        shutil.rmtree(project.state() / "pulumi-home" / name, ignore_errors=True)


def main() -> int:
    try:
        return down()
    except StackError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
