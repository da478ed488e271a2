"""An sshd on the loopback interface with newly generated keys."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from offline.values import Properties

_SECONDS = 10


def sshd_binary() -> str | None:
    """Return the path of sshd, or None if it is not installed. It is usually not on PATH."""
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@dataclass(frozen=True)
class Sshd:
    folder: Path
    port: int
    private_key: str
    host_key: str

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def connection(self, **more: object) -> Properties:
        """Return the `connection` property for this server, with its host key. `more` overrides properties."""
        found: Properties = {
            "host": "127.0.0.1",
            "port": float(self.port),
            "user": getpass.getuser(),
            "privateKey": self.private_key,
            "hostKey": self.host_key,
        }
        return {**found, **more}  # type: ignore[dict-item]

    @property
    def logins(self) -> int:
        return self.log.read_text().count("Accepted publickey")


def make_key(path: Path, kind: str = "ed25519") -> tuple[str, str]:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", path], check=True)
    return path.read_text(), path.with_suffix(".pub").read_text().strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def new_server(folder: Path) -> Sshd:
    """Return a server that accepts one user key. The server is not started."""
    port = free_port()
    _, host_key = make_key(folder / "host")
    private, public = make_key(folder / "user")
    (folder / "authorized").write_text(public + "\n")
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        "StrictModes no\nUsePAM no\nPidFile none\nSubsystem sftp internal-sftp\n"
        "SetEnv SHLVL=1\n"  # bash then skips its startup file, which can be slow
    )
    return Sshd(folder, port, private, host_key)


@contextmanager
def running(server: Sshd) -> Iterator[Sshd]:
    binary = sshd_binary()
    if binary is None:
        pytest.skip("needs sshd (Debian: apt-get install openssh-server)")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd requires it
    # With `-E log`, the process of each connection opens the log by name, and may create it again after the folder has
    # been removed.
    with server.log.open("ab") as log:
        process = subprocess.Popen([binary, "-D", "-e", "-f", server.folder / "config"], stderr=log)
    try:
        _wait_for(server.port)
        yield server
    finally:
        process.terminate()
        process.wait(_SECONDS)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "sshd did not start"
            time.sleep(0.02)
        else:
            return
