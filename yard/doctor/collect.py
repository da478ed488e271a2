"""Runs the probes on all hosts in parallel, over one SSH connection per host.

The probes run in two phases, because some probes need facts that other hosts report in the first phase.
"""

from __future__ import annotations

import secrets
import shlex
import subprocess
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainyard.outputs import Cluster
from yard.doctor.findings import HostReport, peer_lines
from yard.stack.remote import Remote

PROBES = Path(__file__).parent / "probes"
_FRAME = ("lib", "run")
_PHASE_SECONDS = 180
_CLEANUP_SECONDS = 45
_CONNECTIONS = 64


def probe_names() -> list[str]:
    return sorted(path.stem for path in PROBES.glob("*.sh") if path.stem not in _FRAME)


def probe_script(cluster: Cluster, name: str, nonce: str) -> str:
    """Return the script for one host: variables, followed by the files of all probes."""
    addresses = cluster.addresses
    pairs = " ".join(f"[{shlex.quote(host)}]={shlex.quote(address)}" for host, address in addresses.items())
    facts = {
        "self": name,
        "self_ip": addresses[name],
        "head": cluster.head.name,
        "nonce": nonce,
        "home": cluster.home_path,
        "shared": f"{cluster.shared_path}/jobs",
        "job_user": cluster.head.user,
        "scheduler": cluster.scheduler,
        "probes": " ".join(probe_names()),
    }
    assignments = "".join(f"{key}={shlex.quote(value)}\n" for key, value in facts.items())
    files = ["lib", *probe_names(), "run"]
    return f"{assignments}declare -A hosts=({pairs})\n" + "".join((PROBES / f"{file}.sh").read_text() for file in files)


def examine(remote: Remote, cluster: Cluster) -> dict[str, HostReport]:
    """Return a mapping from host name to report, with the head first. Reports of unreachable hosts contain an error.

    `cluster` contains the hosts to examine.
    """
    nonce = secrets.token_hex(4)
    sessions: dict[str, _Session] = {}

    def start(name: str) -> None:
        script = probe_script(cluster, name, nonce)
        sessions[name] = _Session(remote, name, len(script.encode()))
        sessions[name].run_phase(script, until="ready")

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        try:
            list(pool.map(start, cluster.addresses))
            reports = {name: sessions[name].report for name in cluster.addresses}
            list(pool.map(lambda name: sessions[name].compare(peer_lines(name, cluster.head.name, reports)), reports))
        finally:
            # A host removes its shared files only after every host has read them.
            list(pool.map(_Session.close, list(sessions.values())))
    return reports


class _Session:
    def __init__(self, remote: Remote, name: str, script_bytes: int) -> None:
        self.report = HostReport(name=name)
        # The admin's sudo needs no password. `head` reads only the script, so the rest of stdin remains for bash.
        command = f'script=$(head -c {script_bytes}); exec sudo -n bash -c "$script" probe'
        argv = remote.argv(command, remote.host(name, admin=True), "-o", "ConnectTimeout=20")
        self._stderr = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (`close` closes it)
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            errors="replace",
        )
        assert process.stdin is not None  # noqa: S101  (a pipe; tells the type checker)
        assert process.stdout is not None  # noqa: S101
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout

    def run_phase(self, text: str, *, until: str) -> None:
        """Send `text` to the host, and add the host's output to the report until the line `until` appears."""
        alarm = threading.Timer(_PHASE_SECONDS, self._process.kill)
        alarm.start()
        try:
            self._stdin.write(text)
            self._stdin.flush()
            for line in self._stdout:
                if line.rstrip("\n") == until:
                    return
                self.report.add(line)
        except OSError:
            pass  # The host closed the connection; the reason is on stderr.
        finally:
            alarm.cancel()
        exit_code = self._process.wait()
        self._stderr.seek(0)
        message = " ".join(self._stderr.read().split())
        self.report.error = message or f"the probes ended before '{until}' with exit code {exit_code}"

    def compare(self, lines: list[str]) -> None:
        """Run the second phase: send the facts from the other hosts and read the results."""
        if not self.report.error:
            self.run_phase("".join(f"{line}\n" for line in [*lines, "go"]), until="done")

    def close(self) -> None:
        """End the script on the host. The script then removes its files."""
        try:
            self._stdin.write("bye\n")
            self._stdin.close()
            self._process.wait(timeout=_CLEANUP_SECONDS)
        except (subprocess.TimeoutExpired, OSError):
            self._process.kill()
            self._process.wait()
        self._stdout.close()
        self._stderr.close()
