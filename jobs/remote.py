"""Commands on the cluster, over OpenSSH with the generated configuration. One shared connection serves them all."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jobs.errors import RemoteError
from jobs.ssh_config import ADMIN_SUFFIX, TUNNEL_LOG, host_names
from jobs.stack import Stack, load_stack

_SSH_FAILED = 255
_NEVER_STARTED = (
    "Host key verification failed",
    "Connection refused",
    "Connection timed out",
    "Connection closed by",
    "Connection reset by",
    "No route to host",
    "Could not resolve hostname",
    "Permission denied",
    "kex_exchange_identification",
    "banner exchange",
)
"""What ssh says when no command was run, so that trying again can do no harm."""


class Remote:
    """A stack's hosts. A first failure to connect is answered by asking pulumi for the outputs anew, once."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._refreshed = False

    def host(self, name: str | None, *, admin: bool = False) -> str:
        """Return the ssh name of a host; None is the head. Raises RemoteError for one that is not of the cluster."""
        known = host_names(self.stack.cluster)
        chosen = name or known[0]
        if chosen not in known:
            raise RemoteError(f"there is no host '{chosen}' in this cluster; it has {', '.join(known)}")
        return chosen + ADMIN_SUFFIX if admin else chosen

    def argv(self, command: str | None, host: str, *options: str) -> list[str]:
        """Return the OpenSSH command line; `command` is one line for the remote shell."""
        line = [] if command is None else [command]
        return ["ssh", "-F", str(self.stack.ssh_config), *options, host, *line]

    def run(self, command: str, *, stdin: bytes = b"", seconds: float = 60) -> str:
        """Run `command` on the head as the job user and return what it prints. Raises RemoteError when it fails."""
        done = self._attempt(command, stdin, seconds)
        if self._worth_another(done):
            self._refreshed = True
            self.stack = load_stack(self.stack.name, refresh=True)
            done = self._attempt(command, stdin, seconds)
        if done.returncode == 0:
            return done.stdout.decode(errors="replace")
        said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        head = self.stack.cluster.head
        if done.returncode != _SSH_FAILED:
            raise RemoteError(said)
        if head.tunnel and (reason := self._tunnel_reason()):
            raise RemoteError(
                f"cannot reach {head.name}: no tunnel: {reason}. Fix: log in if it asks for that; otherwise start the "
                f"head if it has stopped ({self._start_command()})"
            )
        raise RemoteError(
            f"cannot reach {head.name} ({head.address} port {head.port}): {said}; "
            f"start the head if it has stopped ({self._start_command()})"
        )

    def _start_command(self) -> str:
        # Azure-native has no property for the power state, so no `up` starts a deallocated machine.
        return f"Azure: `az vm start`; elsewhere: `pulumi up -s {self.stack.name} --refresh`"

    @contextmanager
    def lines(self, command: str) -> Iterator[Iterator[str]]:
        """Yield the lines that `command` prints on the head, as they come. Leaving ends the command."""
        self.run("true")
        process = subprocess.Popen(
            self.argv(command, self.host(None)),
            # Kept open on purpose: a closed stdin tells the far end that nobody listens any more.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        with process:
            assert process.stdout is not None  # noqa: S101  (PIPE above; tells the type checker)
            try:
                yield iter(process.stdout)
            finally:
                process.terminate()

    def _attempt(self, command: str, stdin: bytes, seconds: float) -> subprocess.CompletedProcess[bytes]:
        argv = self.argv(command, self.host(None))
        try:
            return subprocess.run(argv, input=stdin, capture_output=True, timeout=seconds, check=False)
        except FileNotFoundError:
            raise RemoteError("ssh is missing on this machine; install the openssh-client package") from None
        except subprocess.TimeoutExpired:
            raise RemoteError(f"{argv[3]} did not finish within {seconds:.0f} s; look with `yard doctor`") from None

    def _tunnel_reason(self) -> str:
        log = self.stack.folder / TUNNEL_LOG
        return log.read_text().strip() if log.is_file() else ""

    def _worth_another(self, done: subprocess.CompletedProcess[bytes]) -> bool:
        if done.returncode != _SSH_FAILED or self._refreshed:
            return False
        said = done.stderr.decode(errors="replace")
        return any(phrase in said for phrase in _NEVER_STARTED)


def shell(words: Sequence[str]) -> str:
    """Return one shell line for a command given as words; a single word is taken for a line already."""
    return words[0] if len(words) == 1 else shlex.join(words)
