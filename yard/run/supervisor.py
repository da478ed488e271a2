"""Runs a command on a node until the command or the SSH session ends. yard sends this program to the node.

Without a terminal, sshd does not signal a command whose client has disconnected, so an allocation would remain. sshd
closes its end of the command's output, which poll(2) reports as POLLERR or POLLHUP. Needs only the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

_GRACE_SECONDS = 20


def main() -> int:
    """Run the command in the arguments. Return its exit code, or 128 plus the number of the signal that ended it."""
    child = subprocess.Popen(sys.argv[1:], start_new_session=True)
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    poll.register(os.pidfd_open(child.pid), select.POLLIN)
    poll.poll()
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGTERM)
    try:
        code = child.wait(_GRACE_SECONDS) if child.poll() is None else child.returncode
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
