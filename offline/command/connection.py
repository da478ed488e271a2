"""ssh to one machine with the OpenSSH client: verified host key, one shared connection, nothing secret in argv."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

_ALIAS = "trainyard-machine"
"""The name that the host key is looked up under: addresses are reused by other machines, keys are not."""


class CommandFailed(Exception):
    """A command or a connection that failed; the message is what the user sees."""


@dataclass
class Running:
    """The commands under way, so that a cancelled deployment can end them."""

    cancelled: Event = field(default_factory=Event)
    _processes: set[subprocess.Popen[str]] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def add(self, process: subprocess.Popen[str]) -> None:
        """Remember a process."""
        with self._lock:
            self._processes.add(process)

    def remove(self, process: subprocess.Popen[str]) -> None:
        """Forget a process that ended."""
        with self._lock:
            self._processes.discard(process)

    def cancel(self) -> None:
        """End every command under way and start no other."""
        self.cancelled.set()
        with self._lock:
            for process in self._processes:
                process.terminate()


class Connection:
    """The `connection` of a remote command. `folder` is private to this provider and lives as long as it does."""

    def __init__(self, facts: dict[str, Any], folder: Path) -> None:
        foreign = ("password", "proxy", "privateKeyPassword", "agentSocketPath")
        unsupported = [key for key in foreign if facts.get(key)]
        if unsupported:
            raise CommandFailed(
                f"connection.{unsupported[0]} is not supported by the stand-in; use the official plugin"
            )
        self._facts = facts
        name = hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()[:12]
        self._key = folder / f"{name}.key" if facts.get("privateKey") else None
        host_key = facts.get("hostKey")
        self._known_hosts = self._write(folder / f"{name}.hosts", host_key and f"{_ALIAS} {host_key}\n")
        self._socket = folder / name

    def command(self, remote: str) -> list[str]:
        """Return the ssh command line that runs `remote` on the machine."""
        seconds = int(float(self._facts.get("perDialTimeout") or 15))
        options = [
            "BatchMode=yes", "LogLevel=ERROR", f"ConnectTimeout={seconds}", "ServerAliveInterval=15",
            "ServerAliveCountMax=4", "ControlMaster=auto", f"ControlPath={self._socket}", "ControlPersist=60",
            "GlobalKnownHostsFile=/dev/null", f"HostKeyAlias={_ALIAS}",
        ]  # fmt: skip
        if self._known_hosts:
            options += ["StrictHostKeyChecking=yes", f"UserKnownHostsFile={self._known_hosts}"]
        else:
            # As the official plugin: without a host key there is nothing to verify against.
            options += ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null"]
        if self._key:
            options += ["IdentitiesOnly=yes", f"IdentityFile={self._key}"]
        line = ["ssh", *(word for option in options for word in ("-o", option))]
        port = int(float(self._facts.get("port") or 22))
        return [*line, "-p", str(port), "-l", str(self._facts.get("user") or "root"), str(self._facts["host"]), remote]

    def dial(self, running: Running) -> None:
        """Connect, again and again up to dialErrorLimit times (-1: without limit). Raises CommandFailed."""
        limit = int(float(self._facts.get("dialErrorLimit") or 10))
        # The key lies on disk only while it is needed: the connection, once made, serves every command after it.
        if self._key:
            self._write(self._key, self._facts["privateKey"])
        try:
            self._dial(running, limit)
        finally:
            if self._key:
                self._key.unlink(missing_ok=True)

    def _dial(self, running: Running, limit: int) -> None:
        attempt = 0
        while True:
            attempt += 1
            done = subprocess.run(self.command("true"), capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return
            said = done.stderr.strip() or f"ssh ended with {done.returncode}"
            if "Host key verification failed" in said or "Permission denied" in said:
                raise CommandFailed(f"ssh to {self._facts['host']}: {said}")
            if running.cancelled.is_set() or 0 <= limit <= attempt:
                raise CommandFailed(f"ssh to {self._facts['host']}: {said} (after {attempt} attempts)")
            time.sleep(1)

    @staticmethod
    def _write(path: Path, text: str | None) -> Path | None:
        if not text:
            return None
        path.touch(mode=0o600)
        path.write_text(text if text.endswith("\n") else f"{text}\n")
        return path


@dataclass(frozen=True)
class Result:
    """What a command printed."""

    stdout: str
    stderr: str


def run(line: list[str], stdin: str | None, log: Callable[[str, str], None], running: Running) -> Result:
    """Run a command, giving each line to `log(stream, line)` as it comes. Raises CommandFailed with its last words."""
    with tempfile.TemporaryFile("w+") as given:
        given.write(stdin or "")
        given.seek(0)
        process = subprocess.Popen(line, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    running.add(process)
    lines: dict[str, list[str]] = {"stdout": [], "stderr": []}

    def drain(name: str) -> None:
        for text in getattr(process, name):
            lines[name].append(text)
            log(name, text.rstrip("\n"))

    readers = [Thread(target=drain, args=(name,)) for name in lines]
    for reader in readers:
        reader.start()
    code = process.wait()
    for reader in readers:
        reader.join()
    running.remove(process)
    if running.cancelled.is_set():
        raise CommandFailed("cancelled")
    if code:
        tail = "".join((lines["stderr"] or lines["stdout"])[-40:]).rstrip()
        raise CommandFailed(f"exit status {code}\n{tail}")
    return Result("".join(lines["stdout"]).rstrip("\n"), "".join(lines["stderr"]).rstrip("\n"))
