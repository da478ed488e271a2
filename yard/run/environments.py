"""Builds, lists and removes Python environments on a cluster's shared file system, where all nodes can use them.

The job user builds the environments on the head, over SSH, so that root never reads a user's file.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainyard.errors import BuildError, JobError
from trainyard.outputs import Cluster
from yard.environments import build
from yard.environments.definition import Definition
from yard.job.spec import ENVIRONMENT_FILE
from yard.run.schedulers import scheduler_of
from yard.run.submit import Prepared, pack
from yard.show import say_json, table, warn
from yard.stack.remote import Remote

_FOLDER = "request"
_LOCAL = (
    "The virtual machines of the local stack use this computer's network, but not its proxies and pip settings. An "
    "index that listens on this computer has the address 10.0.2.2 there. Without an index, use `--env none`: the "
    "virtual machines' own Python contains torch and numpy"
)
"""Advice for the local stack. 10.0.2.2 is the computer's address in QEMU's user network (QEMU documentation, "Network
emulation", read 2026-11-24)."""
_PREFIX = "environment: "
"""The prefix of build.py's error messages."""


def folder_of(shared_path: str) -> str:
    """Return the folder that contains a cluster's environments."""
    return f"{shared_path}/envs"


def describe(definition: Definition, shared_path: str) -> str:
    """Describe an environment. The hash in its path is omitted, because it depends on the head's Python."""
    hashes = "with hashes" if definition.hashed else "without hashes"
    git = f", {len(definition.checkouts)} git checkouts" if definition.checkouts else ""
    found = (
        f"environment {definition.name}: up to {len(definition.packages)} packages {hashes}{git}, for the head's "
        f"{definition.program}; built once in {folder_of(shared_path)}/{definition.name}-HASH"
    )
    if definition.hashed:
        return found
    return (
        f"{found}; a dry run does not look up packages without hashes in an index, so it does not find a misspelt name"
    )


def notes(job: Prepared, cluster: Cluster) -> list[str]:
    """Return the lines that a dry run prints about a job's environment."""
    return [] if job.environment is None else [describe(job.environment, cluster.shared_path)]


def provide(remote: Remote, jobs: Sequence[Prepared]) -> list[Prepared]:
    """Build the jobs' environment if it does not exist, and add its path to the jobs. Raises BuildError."""
    if not jobs or jobs[0].environment is None:
        return list(jobs)
    path = ensure(remote, jobs[0].environment)
    return [replace(job, files={**job.files, ENVIRONMENT_FILE: f"{path}\n"}) for job in jobs]


def ensure(remote: Remote, definition: Definition) -> str:
    """Build an environment if it does not exist, and return its path. Raises BuildError."""
    envs = folder_of(remote.stack.cluster.shared_path)
    state, _, path = remote.run(_find_line(definition, envs)).strip().partition(" ")
    head = remote.stack.cluster.head.name
    if state == "ready":
        return path
    if state == "no-python":
        fix = f"install {definition.program} and {definition.program}-venv on {head}, or choose another environment"
        raise BuildError(f"environment {definition.name}: {head} has no {definition.program}. Fix: {fix}")
    if not definition.hashed:
        warn(f"yard: {definition.name} has no hashes, so pip cannot verify the packages")
    warn(f"yard: building environment {definition.name} on {head}; later jobs use the result")
    return _build(remote, definition, envs)


def built(remote: Remote) -> list[dict[str, Any]]:
    """Return the complete environments. `built` is a Unix time, `size` is in bytes, and the build took `seconds`."""
    envs = folder_of(remote.stack.cluster.shared_path)
    loop = f'for f in */{build.MARKER}; do [ ! -e "$f" ] || {{ printf "%s\\t" "${{f%/*}}"; cat "$f"; }}; done'
    rows = remote.run(f"cd {shlex.quote(envs)} 2>/dev/null || exit 0; {loop}").splitlines()
    found = []
    for row in rows:
        folder, _, text = row.partition("\t")
        facts = json.loads(text)
        found.append({"folder": folder, "size": facts.pop("bytes"), **facts})
    return found


def remove(remote: Remote, chosen: Sequence[str]) -> list[str]:
    """Remove the environments whose folders or names are in `chosen`, and return their folders. Raises JobError if an
    environment is unknown or in use."""
    names = {made["folder"]: made["name"] for made in built(remote)}
    for name in chosen:
        if name not in {*names, *names.values()}:
            raise JobError(f"there is no environment '{name}'. Fix: use one of: {', '.join(names) or 'none'}")
    found = [folder for folder, name in names.items() if {folder, name} & set(chosen)]
    envs = folder_of(remote.stack.cluster.shared_path)
    users = _users(remote)
    for folder in found:
        if job := users.get(f"{envs}/{folder}"):
            fix = f"wait until the job has ended, or run `yard cancel {job}`"
            raise JobError(f"job {job} uses environment {folder}. Fix: {fix}")
    for folder in found:
        # After the rename, no job can start with an incomplete environment.
        path, gone = (shlex.quote(f"{envs}/{prefix}{folder}") for prefix in ("", ".removed-"))
        remote.run(f"rm -rf {gone}; mv {path} {gone} && rm -rf {gone}", seconds=900)
    return found


def show(environments: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print a table of environments."""
    if as_json:
        say_json(environments)
        return
    rows = []
    for made in environments:
        date = f"{datetime.fromtimestamp(made['built'], UTC):%Y-%m-%d %H:%M}"
        rows.append((made["folder"], made["python"], f"{made['size'] / 1e9:.2f} GB", date))
    table(("FOLDER", "PYTHON", "SIZE", "BUILT (UTC)"), rows)


def _users(remote: Remote) -> Mapping[str, int]:
    """Return a mapping from the path of each environment in use to an active job that uses it."""
    scheduler = scheduler_of(remote.stack.cluster.scheduler)
    jobs = {job.run_dir: job.id for job in scheduler.recent(remote, 1) if not job.ended}
    if not jobs:
        return {}
    files = " ".join(shlex.quote(f"{folder}/{ENVIRONMENT_FILE}") for folder in jobs)
    printed = remote.run(f'for f in {files}; do [ ! -r "$f" ] || echo "${{f%/*}} $(cat "$f")"; done')
    rows = (line.split(" ", 1) for line in printed.splitlines())
    return {path: jobs[folder] for folder, path in rows if folder in jobs}


def _find_line(definition: Definition, envs: str) -> str:
    # This shell code computes the name as build.py does. Starting Python takes half a second on emulated machines.
    line = (
        f"v=$({definition.program} -V 2>/dev/null) || {{ echo no-python; exit; }}; v=${{v#Python }}; "
        f"h=$(printf '%s %s' {definition.digest} \"${{v%.*}}\" | sha256sum); "
        f"f={shlex.quote(f'{envs}/{definition.name}')}-${{h:0:12}}; "
        f'[[ -e $f/{build.MARKER} ]] && echo "ready $f" || echo "absent $f"'
    )
    return f"bash -c {shlex.quote(line)}"


def _build(remote: Remote, definition: Definition, envs: str) -> str:
    files = {
        "build.py": Path(str(build.__file__)).read_text(),
        "request.json": json.dumps({**definition.request, "digest": definition.digest}),
        "requirements.txt": definition.requirements,
    }
    line = (
        f'set -eu; d=$(mktemp -d); trap \'rm -rf "$d"\' EXIT; tar -xC "$d"; '
        f'{definition.program} "$d/{_FOLDER}/build.py" "$d/{_FOLDER}" {shlex.quote(envs)}'
    )
    command = remote.argv(f"bash -c {shlex.quote(line)}", remote.host(None))
    last = ""
    # stdin is a file: a pipe would break if the remote command exited early, and the command's message would be lost.
    with tempfile.TemporaryFile() as archive:
        archive.write(pack(_FOLDER, files))
        archive.seek(0)
        process = subprocess.Popen(command, stdin=archive, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None  # noqa: PT018, S101  (pipes; for the type checker)
    with process:
        try:
            for line_read in process.stdout:
                if last:
                    warn(f"  {last}")
                last = line_read.decode(errors="replace").rstrip()
            message = process.stderr.read().decode(errors="replace").strip()
        except KeyboardInterrupt:
            # When build.py prints its next line, it notices the closed connection and removes the partial environment.
            process.terminate()
            raise
    if process.returncode == 0:
        return last
    said = [row.removeprefix(_PREFIX) for row in message.splitlines() if row.startswith(_PREFIX)]
    cause = said[-1] if said else f"{message or f'exit code {process.returncode}'}. Fix: run `yard doctor`"
    if build.UNREACHABLE in cause and remote.stack.cluster.provider == "local":
        cause = f"{cause}. {_LOCAL}"
    raise BuildError(f"environment {definition.name} was not built: {cause}")
