"""SSH connections with asyncssh. Importing this module takes 0.15 s, so only the first command imports it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, TypeVar

import asyncssh

from offline.command.run import Run, Stream
from offline.protocol import ResourceError, Stopped
from offline.values import Value

_Key = TypeVar("_Key")

# Delays between attempts in seconds, as in the official plugin
# (pulumi/pulumi@242a78a:sdk/go/common/util/retry/until.go, read 2026-11-22).
_FIRST_DELAY = 0.1
_DELAY_GROWTH = 1.5
_LONGEST_DELAY = 5.0

_SESSIONS = 8
"""Maximum number of commands on a connection. sshd allows 10 sessions (MaxSessions), and _end_commands needs one."""

# An emulated machine can be silent for 30 seconds.
_ALIVE_SECONDS = 15
_ALIVE_COUNT = 3

_HOST_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512")
"""Host key types that the client offers after the expected key's type. A server without such a key then presents
another key, and the client rejects it with a clear message. Otherwise, sshd would just close the connection."""

_CHUNK = 65536
_END_SECONDS = 2.0
_CANCEL_SECONDS = 3.0
_CLOSE_SECONDS = 5.0

# This shell's parent is the connection's sshd process, whose other children are the connection's commands.
_END_COMMANDS = """exec sh -c 'for p in $(cat /proc/$PPID/task/$PPID/children); do [ "$p" = $$ ] ||
kill -s TERM -- "-$p" 2>/dev/null || sudo -n kill -s TERM -- "-$p" 2>/dev/null; done'"""


@dataclass(frozen=True)
class Endpoint:
    """An SSH server and a login. Unset values are "" or 0."""

    path: str
    """This object's property path, for error messages."""
    host: str
    user: str
    port: int
    private_key: str = field(repr=False)
    agent: str
    """Path of the SSH agent's socket."""
    host_key: str
    dial_error_limit: int
    per_dial_seconds: int


@dataclass(frozen=True)
class Connection:
    """An SSH server, reached directly or through a proxy. Commands with equal connections share one login."""

    endpoint: Endpoint
    proxy: Endpoint | None

    @property
    def dial_error_limit(self) -> int:
        """Number of attempts that are allowed to fail, or -1 for no limit."""
        limits = [hop.dial_error_limit for hop in (self.endpoint, self.proxy) if hop]
        return -1 if min(limits) < 0 else sum(limits)

    def __str__(self) -> str:
        return f"{self.endpoint.user}@{self.endpoint.host} port {self.endpoint.port}"


def _connection(plain: Value) -> Connection:
    """Read a `connection` property. Check has verified the property's types."""
    if not isinstance(plain, dict):
        raise ResourceError("connection: must be an object with at least host")
    proxy = plain.get("proxy")
    hop = _endpoint(proxy, "connection.proxy") if isinstance(proxy, dict) else None
    return Connection(_endpoint(plain, "connection"), hop)


def _endpoint(plain: Mapping[str, Value], path: str) -> Endpoint:
    given: dict[str, Any] = {name: value for name, value in plain.items() if value is not None}
    return Endpoint(
        path=path,
        host=given.get("host", ""),
        user=given.get("user") or "root",
        port=int(given.get("port", 22)),
        private_key=given.get("privateKey", ""),
        agent=given.get("agentSocketPath", ""),
        host_key=given.get("hostKey", ""),
        dial_error_limit=int(given.get("dialErrorLimit", 10)),
        per_dial_seconds=int(given.get("perDialTimeout", 15)),
    )


class RemoteRunner:
    """Runs commands in the remote user's login shell. The asyncio event loop has its own thread."""

    def __init__(self) -> None:
        self._links: dict[Connection, Link] = {}
        self._tasks: set[asyncio.Task[str]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, run: Run) -> str:
        """Run a command until it ends. Return "" on success, or why it failed ("exit status 3").

        Raises ResourceError and Stopped.
        """
        where = _connection(run.properties.get("connection"))

        async def start() -> str:
            task = asyncio.create_task(self._run(where, run))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return await task

        try:
            ended = asyncio.run_coroutine_threadsafe(start(), self._loop).result()
        except CancelledError as problem:
            raise Stopped from problem
        if ended:
            run.operation.stop.pause()
        return ended

    def cancel(self) -> None:
        """Cancel all running commands. Later commands do not start, because their operation's `stop` is set."""
        self._loop.call_soon_threadsafe(self._cancel_tasks)

    def close(self) -> None:
        """Cancel all commands, and close all connections and the event loop."""

        async def close() -> None:
            self._cancel_tasks()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_CANCEL_SECONDS)
            await asyncio.gather(*(link.close() for link in self._links.values()))

        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(close(), self._loop).result(_CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_SECONDS)
        self._loop.close()

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            if not task.cancelling():  # a second cancellation would interrupt _end_commands
                task.cancel()

    async def _run(self, where: Connection, run: Run) -> str:
        seconds = run.operation.seconds
        if run.operation.stop.is_set():
            raise asyncio.CancelledError
        try:
            async with asyncio.timeout(seconds or None):
                return await self._links.setdefault(where, Link(where)).run(run)
        except TimeoutError:
            raise ResourceError(f"ended because it took longer than {seconds:g} s (customTimeouts)") from None


class Link:
    """A connection to one machine. The first command logs in, and so does the first command after a lost connection."""

    def __init__(self, where: Connection) -> None:
        self._where = where
        self._login = asyncio.Lock()
        self._sessions = asyncio.Semaphore(_SESSIONS)
        self._open: list[asyncssh.SSHClientConnection] = []
        """The connection to the proxy, if there is one, and the connection to the machine."""
        self._commands_ended = False

    async def run(self, run: Run) -> str:
        """Run a command. Return "" on success, or why it failed.

        A failed login is retried, but a command that may have started is not. Raises ResourceError after too many
        failed logins, and when the connection is lost.
        """
        async with self._sessions:
            try:
                process = await self._start(run)
                try:
                    await asyncio.gather(
                        _read(process.stdout, run.stdout),
                        _read(process.stderr, run.stderr),
                        _write(process.stdin, run.stdin),
                    )
                    await process.wait_closed()
                finally:
                    process.close()
            except asyncio.CancelledError:
                if run.operation.stop.is_set():
                    await self._end_commands()
                raise
            except (asyncssh.Error, OSError) as problem:
                raise ResourceError(f"{self._where}: the SSH session failed: {_reason(problem)}") from problem
        return _ended(process)

    async def close(self) -> None:
        for one in reversed(self._open):
            one.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(one.wait_closed(), _END_SECONDS)
        self._open = []

    async def _start(self, run: Run) -> asyncssh.SSHClientProcess[bytes]:
        limit, delay, failures = self._where.dial_error_limit, _FIRST_DELAY, 0
        while True:
            try:
                peer = await self._peer()
            except (asyncssh.Error, OSError) as problem:
                reason = _reason(problem)
            else:
                try:
                    return await peer.create_process(run.text, encoding=None)
                except asyncssh.ChannelOpenError as problem:
                    if problem.code == asyncssh.OPEN_REQUEST_SESSION_FAILED:
                        raise
                    reason = _reason(problem)
            failures += 1
            if 0 <= limit < failures:
                raise ResourceError(f"{self._where}: no connection after {failures} attempts: {reason}")
            text = f"Dial {failures}/{'inf' if limit < 0 else limit} failed: {reason}; retrying"
            await asyncio.to_thread(run.operation.status, text)
            await asyncio.sleep(delay)
            delay = min(delay * _DELAY_GROWTH, _LONGEST_DELAY)

    async def _peer(self) -> asyncssh.SSHClientConnection:
        """Return the connection to the machine. Log in first if there is none."""
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
        """End the processes of all commands on this connection. Only the first call has an effect."""
        if self._commands_ended or not self._open:
            return
        self._commands_ended = True
        with suppress(asyncssh.Error, OSError):
            await asyncio.wait_for(self._open[-1].run(_END_COMMANDS, stdin=asyncssh.DEVNULL), _END_SECONDS)


async def _log_in(hop: Endpoint, tunnel: asyncssh.SSHClientConnection | None) -> asyncssh.SSHClientConnection:
    """Log in. Raises ResourceError if a key cannot be read, and asyncssh.Error or OSError if the login fails."""
    agent_path = hop.agent or ("" if hop.private_key else os.environ.get("SSH_AUTH_SOCK", ""))
    own = [_parsed(asyncssh.import_private_key, hop, "privateKey", hop.private_key)] if hop.private_key else []
    trusted = [_parsed(asyncssh.import_public_key, hop, "hostKey", hop.host_key)] if hop.host_key else []
    algorithms = [algorithm.decode() for key in trusted for algorithm in key.sig_algorithms]
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
            server_host_key_algs=[*algorithms, *_HOST_KEY_TYPES] if trusted else (),
            connect_timeout=hop.per_dial_seconds or None,
            login_timeout=0,
            keepalive_interval=_ALIVE_SECONDS,
            keepalive_count_max=_ALIVE_COUNT,
        )


def _parsed(parse: Callable[[str], _Key], hop: Endpoint, name: str, text: str) -> _Key:
    try:
        return parse(text.strip() + "\n")
    except (asyncssh.KeyImportError, ValueError) as problem:
        example = "a public key such as `ssh-ed25519 AAAA...`" if name == "hostKey" else "an unencrypted OpenSSH key"
        raise ResourceError(f"{hop.path}.{name}: {problem}. Fix: give {example}") from problem


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
    # asyncio's own text is only "Connect call failed" with an address. Name resolution errors have negative numbers.
    return os.strerror(problem.errno) if problem.errno and problem.errno > 0 else str(problem)
