"""Runs a command on a node until the command or the SSH session ends. yard sends this program to the node.

When the client of a session without a terminal disconnects, sshd does not signal the command, so its allocation would
remain. However, sshd closes its end of the command's output, which poll(2) reports as POLLERR or POLLHUP.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

_GRACE_SECONDS = 20


def main() -> int:
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
