"""Builds, lists and removes Python environments on a cluster's shared file system, where all nodes can use them.

The job user builds the environments on the head, over SSH, so that root never reads a user's file. If the cluster has
people, an admin builds them as the job user, and nobody else can change them. A person uses these environments, and
builds the others in a folder that only this person's jobs use, because programs of an environment run as its user.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainyard.errors import BuildError, JobError
from trainyard.outputs import Cluster
from yard.environments import build, imports
from yard.environments.definition import Definition
from yard.environments.packages import Addition, needs_build, pinned, refuse_builds
from yard.job.spec import ENVIRONMENT_FILE
from yard.run.schedulers import scheduler_of
from yard.run.submit import Prepared, pack
from yard.show import say_json, table, warn
from yard.stack.remote import Remote

_FOLDER = "request"
_LOCAL = (
    "The virtual machines of the local stack do not use this computer's pip settings. `--with` needs no index there, "
    "because this computer downloads the packages"
)
"""Advice for the local stack."""
_PREFIX = "environment: "
"""The prefix of build.py's error messages."""
_NODES_PYTHON = Definition(name="python", requirements="", system_packages=True)
"""The nodes' own Python, as the base of packages for a job without an environment."""
_PRESENT = (
    "import importlib.metadata as m, json, os, sys; found = {}; "
    "[found.setdefault(d.name, d.version) for d in m.distributions() if d.name and d.version]; "
    "lines = '\\n'.join(map('=='.join, found.items())); "
    "print(json.dumps(['{}.{}'.format(*sys.version_info), os.uname().machine, lines]))"
)
"""A program that prints Python's version, the processor and the packages that Python finds."""


def folder_of(shared_path: str) -> str:
    """Return a folder that contains environments: the shared ones or, with a person's folder, the person's own."""
    return f"{shared_path}/envs"


def _builder(remote: Remote) -> tuple[Remote, list[str]]:
    """Return the connection that builds and removes environments, and the folders: the one to build in comes last."""
    stack = remote.stack
    shared = folder_of(stack.cluster.shared_path)
    if not stack.login:
        return remote, [shared]
    if stack.is_admin:
        return remote.acting_for(stack.cluster.head.user), [shared]
    return remote, [shared, folder_of(stack.cluster.folder_of(stack.user))]


def describe(definition: Definition, shared_path: str) -> str:
    """Describe an environment. The hash in its path is omitted, because it depends on the head's Python."""
    hashes = "with hashes" if definition.hashed else "without hashes"
    git = f", {len(definition.checkouts)} git checkouts" if definition.checkouts else ""
    return (
        f"environment {definition.name}: up to {len(definition.packages)} packages {hashes}{git}, for the head's "
        f"{definition.program}; built once in {folder_of(shared_path)}/{definition.name}-HASH"
    )


def notes(
    file: str, definition: Definition | None, packages: Sequence[str] = (), cluster: Cluster | None = None
) -> list[str]:
    """Return the lines that a dry run prints about an environment and the packages that are added to it.

    Added packages, and those of an environment without hashes, are resolved without the cluster, but
    nothing is built. Raises EnvironmentFileError if they do not exist or do not fit together.
    """
    own = definition or _NODES_PYTHON
    lines = [describe(own, cluster.shared_path if cluster else "/shared")] if definition else []
    # Debian 13, which the local stack uses, has Python 3.13. Ubuntu 24.04, the clouds' default, has Python 3.12.
    python = own.python or ("3.13" if cluster and cluster.provider == "local" else "3.12")
    unbuilt = [package for package in packages if needs_build(package)]
    lines += [f"{package} would be built; its dependencies are not known without a build" for package in unbuilt]
    packages = [package for package in packages if package not in unbuilt]
    with tempfile.TemporaryDirectory(prefix="yard-") as folder:
        if definition and "--no-binary" in own.requirements:
            lines.append(f"the packages of {_title(definition)} were not resolved, because --no-binary needs a build")
        elif definition and not own.hashed:
            Path(folder, "requirements.txt").write_text(own.requirements)
            packages = [f"{folder}/requirements.txt", *packages]
        if not packages:
            return lines
        present = pinned(own.requirements) if own.hashed else []
        added = Addition(
            file=file, packages=packages, base=_title(definition), present=present, python=python, machine="x86_64",
            folder=Path(folder),
        )  # fmt: skip
        try:
            found = pinned(added.resolve())
        except BuildError as error:
            return [*lines, str(error)]
    names = ", ".join(f"{name} {version}" for name, version, _ in found) or "none"
    unknown = "; the nodes' own packages were not considered" if own.system_packages else ""
    return [*lines, f"packages resolved for Python {python} in addition to {added.base}: {names}{unknown}"]


def provide(remote: Remote, jobs: Sequence[Prepared], *, builds: bool = False) -> list[Prepared]:
    """Build the jobs' environment if it does not exist, and add its path to the jobs.

    `builds` is set if the user named the packages on the command line, so that their build programs can run here.
    Raises BuildError, or EnvironmentFileError if the jobs' packages do not fit the environment or cannot be built.
    """
    for job in jobs[:1]:
        if not builds:
            refuse_builds(job.file, job.packages)
    path = ensure(remote, jobs[0].environment, jobs[0].packages, jobs[0].file) if jobs else ""
    return [replace(job, files={**job.files, ENVIRONMENT_FILE: f"{path}\n"}) if path else job for job in jobs]


def ensure(remote: Remote, definition: Definition | None, packages: Sequence[str], file: str) -> str:
    """Build an environment with additional packages, and return its path, or '' for the nodes' own Python.

    Raises BuildError, or EnvironmentFileError if the packages do not fit the environment.
    """
    path = "" if definition is None else _ensure(remote, definition)
    if not packages:
        return path
    own = definition or _NODES_PYTHON
    python = f"{path}/bin/python3" if path else own.program
    version, machine, found = json.loads(remote.run(f"{shlex.quote(python)} -c {shlex.quote(_PRESENT)}"))
    with tempfile.TemporaryDirectory(prefix="yard-") as folder:
        added = Addition(
            file=file, packages=packages, base=_title(definition), present=pinned(found), python=version,
            machine=machine, folder=Path(folder),
        )  # fmt: skip
        requirements = added.resolve()
        if not requirements:
            return path
        plus = replace(own, name=f"{own.name}-plus", requirements=requirements, source=(), checkouts=(), base=path)
        return _ensure(remote, plus, added.download)


def _title(definition: Definition | None) -> str:
    return f"environment {definition.name}" if definition else "the nodes' own Python"


def _ensure(remote: Remote, definition: Definition, archive: Callable[[], Path] | None = None) -> str:
    """Build an environment if it does not exist, and return its path. `archive` returns additional packages."""
    builder, folders = _builder(remote)
    state, _, path = remote.run(_find_line(definition, folders)).strip().partition(" ")
    head = remote.stack.cluster.head.name
    if state == "ready":
        return path
    if state == "no-python":
        fix = f"install {definition.program} and {definition.program}-venv on {head}, or choose another environment"
        raise BuildError(f"environment {definition.name}: {head} has no {definition.program}. Fix: {fix}")
    if not definition.hashed:
        warn(f"yard: {definition.name} has no hashes, so pip cannot verify the packages")
    if archive is not None:
        warn(f"yard: downloading the packages of {definition.name}")
    sent = archive() if archive is not None else None
    warn(f"yard: building environment {definition.name} on {head}; later jobs use the result")
    return _build(builder, definition, folders[-1], sent)


def built(remote: Remote) -> list[dict[str, Any]]:
    """Return the complete environments. `built` is a Unix time, `size` is in bytes, and the build took `seconds`."""
    return [made for folder in _builder(remote)[1] for made in _built_in(remote, folder)]


def _built_in(remote: Remote, envs: str) -> list[dict[str, Any]]:
    loop = f'for f in */{build.MARKER}; do [ ! -e "$f" ] || {{ printf "%s\\t" "${{f%/*}}"; cat "$f"; }}; done'
    rows = remote.run(f"cd {shlex.quote(envs)} 2>/dev/null || exit 0; {loop}").splitlines()
    found = []
    for row in rows:
        folder, _, text = row.partition("\t")
        facts = {"base": None, **json.loads(text)}
        found.append({"folder": folder, "size": facts.pop("bytes"), **facts})
    return found


def remove(remote: Remote, chosen: Sequence[str]) -> list[str]:
    """Remove the environments whose folders or names are in `chosen`, and those that add packages to them.

    Returns their folders. A person removes only own environments, unless the person is an admin. Raises JobError if an
    environment is unknown or in use.
    """
    builder, (*_, envs) = _builder(remote)
    environments = _built_in(remote, envs)
    names = {made["folder"]: made["name"] for made in environments}
    for name in chosen:
        if name not in {*names, *names.values()}:
            raise JobError(f"there is no environment '{name}' in {envs}. Fix: use one of: {', '.join(names) or 'none'}")
    chosen_folders = [folder for folder, name in names.items() if {folder, name} & set(chosen)]
    above = [made["folder"] for made in environments if made["base"] in chosen_folders]
    found = list(dict.fromkeys([*above, *chosen_folders]))
    users = _users(remote)
    for folder in found:
        if job := users.get(f"{envs}/{folder}"):
            fix = f"wait until the job has ended, or run `yard cancel {job}`"
            raise JobError(f"job {job} uses environment {folder}. Fix: {fix}")
    for folder in found:
        # After the rename, no job can start with an incomplete environment.
        path, gone = (shlex.quote(f"{envs}/{prefix}{folder}") for prefix in ("", ".removed-"))
        builder.run(f"rm -rf {gone}; mv {path} {gone} && rm -rf {gone}", seconds=900)
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
    """Return a mapping from the path of each environment in use to an active job that uses it.

    An admin reads the jobs of other people as these people. A person's own environments have no other users.
    """
    stack, found = remote.stack, dict[str, int]()
    listed = scheduler_of(stack.cluster.scheduler).recent(remote, 1)
    if stack.cluster.users:
        known = {str(job.id) for job in listed}
        if hidden := sorted(set(remote.run("squeue -h -a -o %A").split()) - known):
            raise JobError(
                f"names of jobs imitate the jobs {', '.join(hidden)}, so their environments are unknown. "
                "Fix: run this command after they have ended"
            )
    jobs = [job for job in listed if not job.ended]
    for user in sorted({job.user for job in jobs}):
        own = {job.run_dir: job.id for job in jobs if job.user == user}
        files = " ".join(shlex.quote(f"{folder}/{ENVIRONMENT_FILE}") for folder in own)
        line = f'for f in {files}; do [ ! -r "$f" ] || echo "${{f%/*}} $(cat "$f")"; done'
        foreign = user in stack.cluster.users and user != stack.user
        if foreign and not stack.has_admin_login:
            continue
        command = f"cd / && sudo -n -u {shlex.quote(user)} -- bash -c {shlex.quote(line)}" if foreign else line
        rows = (row.partition(" ") for row in remote.run(command, admin=foreign).splitlines())
        found |= {path: own[folder] for folder, _, path in rows if folder in own}
    return found


def _find_line(definition: Definition, folders: Sequence[str]) -> str:
    # This shell code computes the name as build.py does. Starting Python takes half a second on emulated machines.
    line = (
        f"v=$({definition.program} -V 2>/dev/null) || {{ echo no-python; exit; }}; v=${{v#Python }}; "
        f"h=$(printf '%s %s' {definition.digest} \"${{v%.*}}\" | sha256sum); "
        f"for e in {shlex.join(folders)}; do f=$e/{definition.name}-${{h:0:12}}; "
        f'[[ ! -e $f/{build.MARKER} ]] || {{ echo "ready $f"; exit; }}; done; echo "absent $f"'
    )
    return f"bash -c {shlex.quote(line)}"


def _build(remote: Remote, definition: Definition, envs: str, sent: Path | None) -> str:
    files: dict[str, str | Path] = {
        "build.py": Path(str(build.__file__)).read_text(),
        build.IMPORTS: Path(str(imports.__file__)).read_text(),
        "request.json": json.dumps({**definition.request, "digest": definition.digest}),
        "requirements.txt": definition.requirements,
    }
    if sent is not None:
        files[build.ARCHIVE] = sent
        warn(f"yard: sending {sent.stat().st_size / 1e6:.1f} MB")
    # /tmp can be a small in-memory file system.
    line = (
        f"set -eu; mkdir -p {shlex.quote(envs)}; d=$(mktemp -d {shlex.quote(envs)}/.request-XXXXXX); "
        f'trap \'rm -rf "$d"\' EXIT; tar -xC "$d"; '
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
