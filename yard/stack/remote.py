"""Runs commands on the cluster with OpenSSH, over a shared connection."""

from __future__ import annotations

import shlex
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from trainyard.certificate import expiry
from trainyard.errors import RemoteError, UnreachableError
from trainyard.faults import NOTICES, is_off
from yard.stack.load import ADMIN_CERTIFICATE, ADMIN_SUFFIX, KEY_VARIABLE, TUNNEL_LOG, Stack, load_stack

_SSH_FAILED = 255
_END = "===notices==="
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
"""If ssh prints one of these messages, it has not run the command, so a second attempt is safe."""
_REFUSED = ("Permission denied", "Host key verification failed")
"""If ssh prints one of these messages, a machine has answered."""


class Remote:
    """Connects to a stack's hosts. After the first failed connection, the stack's outputs are read again."""

    notices: tuple[str, ...] = ()
    """The head's sentences for users, which `run_with_notices` has read."""

    def __init__(self, stack: Stack, owner: str = "") -> None:
        self.stack, self._refreshed = stack, False
        self.prefix = f"sudo -n -H -u {shlex.quote(owner)} -- " if owner else ""
        """The beginning of each command line of an admin who acts as the user `owner`. Not empty only in connections
        that log in as the user with sudo rights."""

    def acting_for(self, owner: str) -> Remote:
        """Return a connection whose commands an admin runs as `owner`, with sudo.

        Raises RemoteError if `owner` is not a user of the cluster, because an admin must not act as root.
        """
        cluster = self.stack.cluster
        if owner != cluster.head.user and owner not in cluster.users:
            raise RemoteError(f"{owner!r} is not a user of this cluster, so yard does not act as this user")
        return Remote(self.stack, owner)

    def host(self, name: str | None, *, admin: bool = False) -> str:
        """Return the SSH name of a host. If `name` is None, return the SSH name of the head.

        Raises RemoteError if the host is unknown, if the outputs contain no key for an `admin` login, or if the
        certificate of this key has expired.
        """
        admin = admin or bool(self.prefix)
        known = list(self.stack.cluster.addresses)
        chosen = name or known[0]
        if chosen not in known:
            raise RemoteError(f"there is no host '{chosen}' in this cluster; its hosts: {', '.join(known)}")
        if admin and not self.stack.has_admin_login:
            raise RemoteError(
                f"{self.stack.outputs or self.stack.name} contains no admin key, so it allows only jobs. "
                "Fix: ask an operator of the cluster to run this command"
            )
        if admin and not self.stack.is_admin:
            self._check_certificate()
        return chosen + ADMIN_SUFFIX if admin else chosen

    def _check_certificate(self) -> None:
        expired = expiry([self.stack.folder / ADMIN_CERTIFICATE])
        if expired and not self._refreshed:
            self._refresh()  # another operator may have renewed it
            expired = expiry([self.stack.folder / ADMIN_CERTIFICATE])
        if expired:
            raise RemoteError(
                f"{expired}. Fix: an operator of the cluster renews it with `yard rotate admin --stack "
                f"{self.stack.name}` or `pulumi up`"
            )

    def _refresh(self) -> None:
        self._refreshed = True
        self.stack = load_stack(self.stack.name, refresh=True, file=self.stack.outputs)

    def argv(self, command: str | None, host: str, *options: str) -> list[str]:
        """Return the command that runs ssh. `command` is a line for the remote shell."""
        if command is not None and self.prefix:
            # The owner cannot enter the home of the user with sudo rights.
            command = f"cd / && exec {self.prefix}bash -c {shlex.quote(command)}"
        line = [] if command is None else [command]
        return ["ssh", "-F", str(self.stack.ssh_config), *options, host, *line]

    def run(self, command: str, *, stdin: bytes = b"", seconds: float = 60, admin: bool = False) -> str:
        """Run `command` on the head as the job user or the admin, and return its stdout. Raises RemoteError."""
        done = self._attempt(command, stdin, seconds, admin)
        if self._can_retry(done):
            self._refresh()
            done = self._attempt(command, stdin, seconds, admin)
        if done.returncode == 0:
            return done.stdout.decode(errors="replace")
        message = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        head = self.stack.cluster.head
        if done.returncode != _SSH_FAILED:
            raise RemoteError(message)
        if self.stack.login and "Permission denied" in message and (expired := expiry(_own_certificates())):
            raise RemoteError(f"{message}; {expired}. Fix: let your certificate authority sign your key again")
        start = (
            "if the cluster sleeps, run `yard wake`"
            if head.wake is not None
            else "ask an operator of the cluster to check the head"
            if self.stack.outputs
            else f"start the head with {self.stack.cluster.way_to_start(self.stack.name)} if it has stopped"
        )
        log = self.stack.folder / TUNNEL_LOG
        if head.tunnel and log.is_file() and (reason := log.read_text().strip()):
            raise UnreachableError(
                f"cannot reach {head.name}: no tunnel: {reason}. Fix: log in if necessary; otherwise {start}"
            )
        if self.stack.login and "Permission denied" in message:
            raise RemoteError(
                f"{head.name} accepts none of your SSH keys: {message} Fix: run `export {KEY_VARIABLE}=FILE` with the "
                "private key whose public key the stack file contains for you, or ask an operator of the cluster "
                "which key that is"
            )
        kind = RemoteError if any(text in message for text in _REFUSED) else UnreachableError
        raise kind(f"cannot reach {head.name} ({head.address} port {head.port}): {message}; {start}")

    def run_with_notices(self, command: str, *, stdin: bytes = b"", seconds: float = 60) -> str:
        """Run `command` like `run`, and also read the head's notices."""
        # The notices come first, because a job's name in the output of `command` can contain any line.
        path = shlex.quote(f"{self.stack.cluster.state_dir}/{NOTICES}")
        printed = self.run(f"cat {path} 2>/dev/null; echo {_END}; {command}", stdin=stdin, seconds=seconds)
        notices, found, output = printed.partition(f"{_END}\n")
        self.notices = tuple(notices.splitlines()) if found else ()
        return output if found else printed

    @contextmanager
    def lines(self, command: str) -> Iterator[Iterator[str]]:
        """Yield the lines that `command` prints on the head. At the end of the `with` block, the command is stopped."""
        self.run("true")
        process = subprocess.Popen(
            self.argv(command, self.host(None)),
            # The remote command ends when its stdin is closed.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        with process:
            assert process.stdout is not None  # noqa: S101  (stdout is a pipe; for the type checker)
            try:
                yield iter(process.stdout)
            finally:
                process.terminate()

    def _attempt(self, command: str, stdin: bytes, seconds: float, admin: bool) -> subprocess.CompletedProcess[bytes]:
        argv = self.argv(command, self.host(None, admin=admin))
        try:
            return subprocess.run(argv, input=stdin, capture_output=True, timeout=seconds, check=False)
        except FileNotFoundError:
            raise RemoteError("ssh is missing on this machine; install the openssh-client package") from None
        except subprocess.TimeoutExpired:
            raise RemoteError(f"{argv[3]} did not finish within {seconds:.0f} s; run `yard doctor`") from None

    def _can_retry(self, done: subprocess.CompletedProcess[bytes]) -> bool:
        printed = done.stderr.decode(errors="replace")
        not_started = done.returncode == _SSH_FAILED and any(phrase in printed for phrase in _NEVER_STARTED)
        return not_started and not self._refreshed


def stopped_machines(stack: Stack, states: Mapping[str, str]) -> dict[str, str]:
    """Return a mapping from each local machine that has stopped to a sentence with the command that starts it.

    `states` contains the nodes' states from Slurm, which notices a stopped machine later. Machines that the head has
    stopped on purpose are omitted. While a machine is on, QEMU listens on its SSH port.
    """
    local = stack.cluster.nodes if stack.cluster.provider == "local" else ()
    wanted = [node for node in local if node.name in states and not is_off(states[node.name])]
    why = f"its machine has stopped; to start it, run {stack.cluster.way_to_start(stack.name)}"
    return {node.name: why for node in wanted if node.address and _is_refused(node.address, node.port)}


def _is_refused(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def _own_certificates() -> list[Path]:
    return sorted(Path.home().glob(".ssh/*-cert.pub"))


def shell(words: Sequence[str]) -> str:
    """Join the arguments into a line for the shell. A single argument counts as a complete line."""
    return words[0] if len(words) == 1 else shlex.join(words)
