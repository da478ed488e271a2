"""Fake `az` and `gcloud` that forward to a real port and behave like the documented commands.

Both start a child process, as `az` does (a shell script that starts Python), and record their process ids.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

BASTION = shlex.split(
    "az network bastion tunnel --subscription 00000000-0000-0000-0000-000000000000 --resource-group yard-trainyard "
    "--name yard-bastion --target-resource-id /subscriptions/0/machines/yard-head --resource-port 22 --port {port}"
)
IAP = shlex.split(
    "gcloud compute start-iap-tunnel yard-head 22 --local-host-port=127.0.0.1:{port} --zone=us-central1-a "
    "--project=my-project"
)

_PROGRAM = """#!/usr/bin/env bash
echo "$*" >> "{folder}/calls"
"{python}" -I "{folder}/forward.py" "$@"
"""

_FORWARD = """
import os, re, signal, socket, sys, threading, time
behaviour = open("{folder}/behaviour").read().split()
with open("{folder}/pids", "a") as pids:
    print(os.getpid(), os.getppid(), file=pids)

def interrupted(*_):
    with open("{folder}/interrupted", "a") as note:
        print(os.getpid(), file=note)
    sys.exit(0)

signal.signal(signal.SIGINT, interrupted)
words = " ".join(sys.argv[1:])
port = int(re.search(r"(?:--port |--local-host-port=127.0.0.1:)([0-9]+)", words)[1])
if "logged-out" in behaviour:
    sys.exit("ERROR: Please run 'az login' to setup account.")
if "unreachable" in behaviour:
    sys.exit("ERROR: (gcloud.compute.start-iap-tunnel) While checking if a connection can be made: Error while "
             "connecting [4003: 'failed to connect to backend'].")
print("Opening tunnel on port:", port, file=sys.stderr)
print("Tunnel is ready, connect on port", port, file=sys.stderr, flush=True)
for word in behaviour:
    name, _, value = word.partition("=")
    if name == "late":
        time.sleep(float(value))
    if name == "dies":
        threading.Timer(float(value), lambda: os._exit(0)).start()

def copy(source, sink):
    try:
        while data := source.recv(65536):
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", port))
listener.listen()
while True:
    client, _ = listener.accept()
    try:
        server = socket.create_connection(("127.0.0.1", int(open("{folder}/target").read())))
    except OSError:
        client.close()
        continue
    threads = [threading.Thread(target=copy, args=pair, daemon=True) for pair in ((client, server), (server, client))]
    for thread in threads:
        thread.start()
    for thread in threads:  # one connection at a time, as before bastion 1.0.1
        thread.join()
"""


@dataclass(frozen=True)
class TunnelPrograms:
    """A folder for PATH that contains `az` and `gcloud`."""

    folder: Path

    def install(self, target: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "forward.py").write_text(_FORWARD.replace("{folder}", str(self.folder)))
        for name in ("az", "gcloud"):
            program = self.folder / name
            program.write_text(_PROGRAM.format(folder=self.folder, python=sys.executable))
            program.chmod(0o755)
        self.behave("")
        (self.folder / "target").write_text(str(target))

    def behave(self, behaviour: str) -> None:
        """Set the behaviour of the next call: "", "late=N" or "dies=N" (seconds), "logged-out", or "unreachable"."""
        (self.folder / "behaviour").write_text(behaviour)

    @property
    def calls(self) -> list[str]:
        """The arguments of each call."""
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []

    @property
    def interrupted(self) -> int:
        """The number of calls that ended because of SIGINT. On SIGINT, the real `az` deletes its session."""
        note = self.folder / "interrupted"
        return len(note.read_text().splitlines()) if note.exists() else 0

    @property
    def running(self) -> list[int]:
        """The process ids of all calls that are still running."""
        pids = self.folder / "pids"
        started = [int(word) for word in pids.read_text().split()] if pids.exists() else []
        return [pid for pid in started if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
