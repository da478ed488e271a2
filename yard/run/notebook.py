"""`yard notebook`: JupyterLab in a job, reached through SSH at a loopback port of the user's computer."""

from __future__ import annotations

import shlex
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.errors import JobError, RemoteError
from yard.job.loader import check_job
from yard.run.environments import provide
from yard.run.jobs import acting_for_owner, read_job
from yard.run.queue import explain
from yard.run.session import OWN_CONNECTION
from yard.run.submit import prepare_all, submit
from yard.show import say, say_json, warn
from yard.stack.remote import Remote

PORT = 8888
_PACKAGE = "jupyterlab"
_POLL_SECONDS = 3.0


def start(remote: Remote, options: Mapping[str, Any]) -> int:
    """Submit a job that runs JupyterLab, and return its number. `options` are keys of a job file.

    If the environment does not contain JupyterLab, it is added.
    """
    added = [*options.get("with", ()), _PACKAGE]
    script = (Path(__file__).parent / "notebook.sh").read_text()
    keys = {"name": "notebook", "launcher": "srun-node", "run": script, **options, "with": added}
    jobs = prepare_all(check_job("yard notebook", Path(), keys, {}, ()), remote.stack.cluster)
    return submit(remote, provide(remote, jobs, builds=True)[0]).job


def free_port(port: int | None) -> int:
    """Return `port`, or a free port if it is None: 8888 if possible. Raises JobError if `port` is in use."""
    for candidate in (port,) if port else (PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise JobError(f"port {port} of this computer is in use. Fix: omit --port, or choose another port")


def connect(remote: Remote, job: int, port: int, as_json: bool) -> None:
    """Forward `port` to the job's JupyterLab until Ctrl-C or the end of the job. Raises JobError if there is none."""
    warn(f"yard: job {job} starts JupyterLab; Ctrl-C ends only the connection")
    shown = ""
    try:
        while True:
            try:
                server = _wait_for_server(remote, job)
                address, path, token = server.split()
                nodes = remote.stack.cluster.nodes
                node = next(node.name for node in nodes if address in {node.name, node.private_ip})
                url = f"http://127.0.0.1:{port}/lab?token={token}"
                argv = remote.argv(None, node, "-N", *OWN_CONNECTION, "-L", f"127.0.0.1:{port}:{path}")
                if as_json:
                    say_json({"id": job, "url": url, "forward": argv})
                    return
                if url != shown:
                    say(url)
                shown = url
                _forward(remote, job, server, argv)
            except RemoteError as error:
                warn(f"yard: {error}; trying again")
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        say(
            f"the connection has ended. Job {job} continues until its time limit; `yard notebook {job}` connects "
            f"again, and `yard cancel {job}` ends it"
        )


def _wait_for_server(remote: Remote, job: int) -> str:
    shown = ""
    while not (server := _server(remote, job)):
        state = explain(read_job(remote, job))
        if state != shown:
            warn(f"yard: job {job}: {state}")
            shown = state
        time.sleep(_POLL_SECONDS)
    return server


def _server(remote: Remote, job: int) -> str:
    """Return the node's name or address, the path of the Unix socket, and the token, separated by spaces.

    The result is "" before JupyterLab has started. Raises JobError if the job has ended.
    """
    found = read_job(remote, job)
    acting_for_owner(remote, found, reads=False)
    if found.ended:
        raise JobError(f"job {job} ({found.name}) has ended: {explain(found)}; `yard logs {job}` prints its log")
    if found.state != "RUNNING":
        return ""
    return remote.run(f"cat {shlex.quote(found.run_dir)}/notebook 2>/dev/null || true")


def _forward(remote: Remote, job: int, server: str, argv: list[str]) -> None:
    """Forward the port until the connection is lost, the job restarts, or the job ends (JobError)."""
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None and _server(remote, job) == server:
                time.sleep(_POLL_SECONDS)
        finally:
            process.terminate()
