"""Runs the probes on every host at once: one ssh connection each, the probes on its stdin, two halves with a meeting
in between so that nodes can be asked for what the others have told."""

from __future__ import annotations

import secrets
import shlex
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jobs.doctor.reports import HostReport, peer_lines
from jobs.facts import Cluster
from jobs.remote import Remote

PROBES = Path(__file__).parent.parent / "probes"
_FRAME = ("lib", "run")
_HALF_SECONDS = 180
_LEAVE_SECONDS = 45
_CONNECTIONS = 64


def probe_names() -> list[str]:
    """Return the probes there are."""
    return sorted(path.stem for path in PROBES.glob("*.sh") if path.stem not in _FRAME)


def probe_script(cluster: Cluster, name: str, nonce: str) -> str:
    """Return the whole script for one host. Pure but for reading the probes' files."""
    addresses = cluster.addresses
    pairs = " ".join(f"[{shlex.quote(host)}]={shlex.quote(address)}" for host, address in addresses.items())
    facts = {
        "self": name,
        "self_ip": addresses[name],
        "head": cluster.head.name,
        "nonce": nonce,
        "shared": f"{cluster.shared_path}/jobs",
        "job_user": cluster.head.user,
        "scheduler": cluster.scheduler,
        "probes": " ".join(probe_names()),
    }
    assignments = "".join(f"{key}={shlex.quote(value)}\n" for key, value in facts.items())
    files = ["lib", *probe_names(), "run"]
    return f"{assignments}declare -A hosts=({pairs})\n" + "".join((PROBES / f"{file}.sh").read_text() for file in files)


def examine(remote: Remote) -> dict[str, HostReport]:
    """Return every host's report, head first. A host that cannot be reached has its trouble in its report."""
    cluster = remote.stack.cluster
    nonce = secrets.token_hex(4)
    sessions = [_Session(remote, name) for name in cluster.addresses]
    reports = {session.name: session.report for session in sessions}
    with ThreadPoolExecutor(max_workers=min(_CONNECTIONS, len(sessions))) as pool:

        def on_all(step: Callable[[_Session], None]) -> None:
            list(pool.map(step, sessions))

        try:
            on_all(lambda session: session.begin(probe_script(cluster, session.name, nonce)))
            on_all(lambda session: session.meet(peer_lines(session.name, cluster.head.name, reports)))
        finally:
            # Only when all have read what the others wrote may each tidy up.
            on_all(_Session.leave)
    return reports


class _Session:
    """The conversation with one host."""

    def __init__(self, remote: Remote, name: str) -> None:
        self.name = name
        self.report = HostReport(name=name)
        self._argv = remote.argv("", remote.host(name, admin=True), "-o", "ConnectTimeout=20")[:-1]
        self._process: subprocess.Popen[str] | None = None
        self._said: list[str] = []
        self._ear = threading.Thread(target=self._listen_for_trouble, daemon=True)

    def begin(self, script: str) -> None:
        """Send the probes and take the facts."""
        size = len(script.encode())
        # sudo asks nothing of an admin; head takes the script from stdin and leaves the rest of it for the second half.
        command = f'script=$(head -c {size}); exec sudo -n bash -c "$script" probe'
        self._process = subprocess.Popen(
            [*self._argv, command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._ear.start()
        self._half(script, until="ready")

    def meet(self, lines: list[str]) -> None:
        """Tell the others' facts and take what came of it."""
        if not self.report.trouble:
            self._half("".join(f"{line}\n" for line in [*lines, "go"]), until="done")

    def leave(self) -> None:
        """Let the host tidy up, and wait until it has."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return
        try:
            process.stdin.write("bye\n")
            process.stdin.close()
            process.wait(timeout=_LEAVE_SECONDS)
        except (subprocess.TimeoutExpired, OSError):
            process.kill()
            process.wait()
        process.stdout.close()

    def _half(self, words: str, *, until: str) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return
        alarm = threading.Timer(_HALF_SECONDS, process.kill)
        alarm.start()
        try:
            process.stdin.write(words)
            process.stdin.flush()
            for line in process.stdout:
                if line.rstrip("\n") == until:
                    return
                self.report.add(line)
        except OSError:
            pass  # It hung up while we spoke; what it said last tells why.
        finally:
            alarm.cancel()
        process.wait()
        self._ear.join(timeout=2)
        said = " ".join("".join(self._said).split())
        self.report.trouble = said or f"the probes ended before '{until}' with exit code {process.returncode}"

    def _listen_for_trouble(self) -> None:
        if self._process is not None and self._process.stderr is not None:
            self._said.extend(self._process.stderr)
