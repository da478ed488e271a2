"""SSH connections with asyncssh. Importing this module takes 0.15 s, so only the first command imports it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

import asyncssh

from offline.command.capture import Capture, Stream
from offline.command.connection import Connection, Endpoint
from offline.resources import Operation, ResourceError

# Delays between attempts in seconds, as in the official plugin
# (pulumi/pulumi@242a78a:sdk/go/common/util/retry/until.go, read 2026-11-22).
_FIRST_DELAY = 0.1
_DELAY_GROWTH = 1.5
_LONGEST_DELAY = 5.0

_SESSIONS = 8
"""Number of simultaneous sessions on one connection. The default limit in sshd is 10 (MaxSessions). One session is
reserved for ending the commands.
"""

# Emulated machines can be silent for 30 seconds.
_ALIVE_SECONDS = 15
_ALIVE_COUNT = 3

_HOST_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512")
"""Host key types that the client offers after the type of the expected key. A server that has no key of the expected
type then presents a key of another type, which is rejected with a clear message. Without these types, sshd would only
close the connection.
"""

_CHUNK = 65536
_END_SECONDS = 2.0

# The parent of this shell is the sshd process for this connection. The other child processes of sshd are the
# connection's commands.
_END_COMMANDS = """exec sh -c 'for p in $(cat /proc/$PPID/task/$PPID/children); do [ "$p" = $$ ] ||
kill -s TERM -- "-$p" 2>/dev/null || sudo -n kill -s TERM -- "-$p" 2>/dev/null; done'"""


class Link:
    """A connection to one machine. The first command logs in, and the first command after a lost connection logs in
    again.
    """

    def __init__(self, where: Connection) -> None:
        self._where = where
        self._login = asyncio.Lock()
        self._sessions = asyncio.Semaphore(_SESSIONS)
        self._open: list[asyncssh.SSHClientConnection] = []
        """The connection to the proxy, if any, followed by the connection to the machine."""
        self._commands_ended = False

    async def run(self, operation: Operation, command: str, data: bytes, capture: Capture) -> str:
        """Run a command with `data` as its input. Return "" on success, or the reason for the failure. A failed login
        is retried. A command that may have been started is never retried. Raises ResourceError after too many failed
        logins or if the connection is lost.
        """
        async with self._sessions:
            try:
                process = await self._start(operation, command)
                try:
                    await asyncio.gather(
                        _read(process.stdout, capture.stdout),
                        _read(process.stderr, capture.stderr),
                        _write(process.stdin, data),
                    )
                    await process.wait_closed()
                finally:
                    process.close()
            except asyncio.CancelledError:
                if operation.stop.requested:
                    await self._end_commands()
                raise
            except (asyncssh.Error, OSError) as problem:
                raise ResourceError(f"{self._where}: the SSH session failed: {_reason(problem)}") from problem
        return _ended(process)

    async def close(self) -> None:
        """Close the connection."""
        for one in reversed(self._open):
            one.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(one.wait_closed(), _END_SECONDS)
        self._open = []

    async def _start(self, operation: Operation, command: str) -> asyncssh.SSHClientProcess[bytes]:
        limit, delay, failures = self._where.dial_error_limit, _FIRST_DELAY, 0
        while True:
            try:
                peer = await self._peer()
            except (asyncssh.Error, OSError) as problem:
                reason = _reason(problem)
            else:
                try:
                    return await peer.create_process(command, encoding=None)
                except asyncssh.ChannelOpenError as problem:
                    if problem.code == asyncssh.OPEN_REQUEST_SESSION_FAILED:
                        raise
                    reason = _reason(problem)
            failures += 1
            if 0 <= limit < failures:
                raise ResourceError(f"{self._where}: no connection after {failures} attempts: {reason}")
            text = f"Dial {failures}/{'inf' if limit < 0 else limit} failed: {reason}; retrying"
            await asyncio.to_thread(operation.status, text)
            await asyncio.sleep(delay)
            delay = min(delay * _DELAY_GROWTH, _LONGEST_DELAY)

    async def _peer(self) -> asyncssh.SSHClientConnection:
        """Return the connection to the machine. If there is none, log in first."""
        async with self._login:
            if not self._open or self._open[-1].is_closed():
                await self.close()
                try:
                    for hop in filter(None, (self._where.proxy, self._where.endpoint)):
                        self._open.append(await _log_in(hop, self._open[-1] if self._open else None))
                except BaseException:
                    await self.close()
                    raise
            return self._open[-1]

    async def _end_commands(self) -> None:
        """End the processes of all commands on this connection. Later calls do nothing."""
        if self._commands_ended or not self._open:
            return
        self._commands_ended = True
        with suppress(asyncssh.Error, OSError):
            await asyncio.wait_for(self._open[-1].run(_END_COMMANDS, stdin=asyncssh.DEVNULL), _END_SECONDS)


async def _log_in(hop: Endpoint, tunnel: asyncssh.SSHClientConnection | None) -> asyncssh.SSHClientConnection:
    """Log in once. Raises ResourceError for a key that cannot be read, and asyncssh.Error or OSError otherwise."""
    agent_path = hop.agent or ("" if hop.private_key else os.environ.get("SSH_AUTH_SOCK", ""))
    own = [_parsed(asyncssh.import_private_key, hop, "privateKey", hop.private_key)] if hop.private_key else []
    trusted = [_parsed(asyncssh.import_public_key, hop, "hostKey", hop.host_key)] if hop.host_key else []
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(asyncssh.connect_agent(agent_path)) if agent_path else None
        return await asyncssh.connect(
            hop.host,
            hop.port,
            tunnel=tunnel,
            config=None,
            username=hop.user,
            client_keys=[*(await agent.get_keys() if agent else ()), *own] or None,
            agent_path=None,
            preferred_auth="publickey",
            known_hosts=(trusted, [], []) if trusted else None,
            server_host_key_algs=[*_algorithms(trusted[0]), *_HOST_KEY_TYPES] if trusted else (),
            connect_timeout=hop.per_dial_seconds or None,
            login_timeout=0,
            keepalive_interval=_ALIVE_SECONDS,
            keepalive_count_max=_ALIVE_COUNT,
        )


_Key = TypeVar("_Key")


def _parsed(parse: Callable[[str], _Key], hop: Endpoint, name: str, text: str) -> _Key:
    try:
        return parse(text.strip() + "\n")
    except (asyncssh.KeyImportError, ValueError) as problem:
        example = "a public key such as `ssh-ed25519 AAAA...`" if name == "hostKey" else "an unencrypted OpenSSH key"
        raise ResourceError(f"{hop.path}.{name}: {problem}. Fix: give {example}") from problem


def _algorithms(key: asyncssh.SSHKey) -> list[str]:
    return [algorithm.decode() for algorithm in key.sig_algorithms]


async def _read(source: asyncssh.SSHReader[bytes], stream: Stream) -> None:
    while data := await source.read(_CHUNK):
        await asyncio.to_thread(stream.feed, data)  # waits for the engine's log
    await asyncio.to_thread(stream.feed, b"")


async def _write(target: asyncssh.SSHWriter[bytes], data: bytes) -> None:
    with suppress(asyncssh.Error, OSError):  # a command may ignore its input
        target.write(data)
        await target.drain()
        target.write_eof()


def _ended(process: asyncssh.SSHClientProcess[bytes]) -> str:
    if process.exit_signal:
        return f"ended by SIG{process.exit_signal[0]}"
    if process.exit_status is None:
        return "ended without an exit status"
    return f"exit status {process.exit_status}" if process.exit_status else ""


def _reason(problem: asyncssh.Error | OSError) -> str:
    if isinstance(problem, asyncssh.Error):
        return problem.reason
    if isinstance(problem, TimeoutError) and not problem.errno:
        return "timed out (perDialTimeout)"
    # The original asyncio text is "Connect call failed" with an address. Name resolution errors have negative numbers.
    return os.strerror(problem.errno) if problem.errno and problem.errno > 0 else str(problem)
