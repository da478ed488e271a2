"""`yard data`: sends the package yard/data/dataset to the cluster and runs it there.

If the cluster has nodes without GPUs, the package runs as a job on one of them. Otherwise, it runs on the head. After
an interrupt, the finished parts of a dataset remain.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from yard.contract.outputs import Cluster
from yard.data import dataset
from yard.errors import RemoteError
from yard.job.launcher import launcher
from yard.job.loader import LoadedJob
from yard.job.spec import JobSpec
from yard.run.submit import pack, prepare, submit
from yard.show import say, say_json, warn
from yard.stack.remote import Remote
from yard.stack.ssh_config import host_names

HEAD = "head"
_PACKAGE = Path(dataset.__file__).parent
_FOLDER = "dataset"
_STOP_SECONDS = 20
_VERIFY_SECONDS = 600


def absolute(path: str, cluster: Cluster) -> str:
    """Return an absolute path on the cluster. Relative paths are resolved against the shared path."""
    return path if path.startswith("/") else f"{cluster.shared_path}/{path}"


def target_for(cluster: Cluster, where: str | None) -> str:
    """Return the node group on which the package runs, or HEAD. Raises RemoteError for an unknown group."""
    if where is None:
        return next((node.group for node in cluster.nodes if node.gpus == 0), HEAD)
    groups = dict.fromkeys(node.group for node in cluster.nodes)
    if where != HEAD and where not in groups:
        fix = f"use --on with {HEAD} or one of {', '.join(groups)}"
        raise RemoteError(f"the cluster has no node group '{where}'. Fix: {fix}")
    return where


def make(remote: Remote, arguments: Sequence[str], where: str | None, as_json: bool) -> int:
    """Run `dataset ARGUMENTS` in the group `where`, or on the default host. Returns the exit code."""
    cluster = remote.stack.cluster
    group = target_for(cluster, where)
    if group == HEAD:
        return _run_on_head(remote, arguments)
    from yard.run.control import submit_attached  # noqa: PLC0415  (not needed on the head)

    prepared = prepare(as_job(arguments, group), cluster)
    return submit_attached(remote, lambda: submit(remote, prepared).job, as_json)


def as_job(arguments: Sequence[str], group: str) -> LoadedJob:
    """Return a job that runs `dataset ARGUMENTS` on a node in the group."""
    spec = JobSpec(
        name="data",
        group=group,
        gpus_per_node=0,
        tasks_per_node=1,
        time="1d",
        run=f'cd "$RUN_DIR"\nexec python3 -m {_FOLDER} {shlex.join(arguments)}\n',
        files={f"{_FOLDER}/{name}": text for name, text in package_files().items()},
    )
    return LoadedJob(file="yard data", spec=spec, launcher=launcher(spec.launcher), workload=None)


def package_files() -> Mapping[str, str]:
    """Return the contents of the package's files by name."""
    return {path.name: path.read_text() for path in sorted(_PACKAGE.glob("*.py"))}


def remote_command(arguments: Sequence[str]) -> tuple[str, bytes]:
    """Return the shell command that runs `dataset ARGUMENTS`, and its stdin, which is an archive of the package."""
    archive = pack(_FOLDER, package_files())
    line = (
        f'set -eu; d=$(mktemp -d); trap \'rm -rf "$d"\' EXIT; head -c {len(archive)} | tar -xC "$d"; cd "$d"; '
        f"python3 -m {_FOLDER} {shlex.join(arguments)}"
    )
    return f"bash -c {shlex.quote(line)}", archive


def _run_on_head(remote: Remote, arguments: Sequence[str]) -> int:
    remote.run("true")  # raises an error with a fix if the head is unreachable
    line, archive = remote_command(["--leash", *arguments])
    process = subprocess.Popen(remote.argv(line, remote.host(None)), stdin=subprocess.PIPE)
    assert process.stdin is not None  # noqa: S101  (a pipe; tells the type checker)
    try:
        process.stdin.write(archive)
        process.stdin.flush()
        return process.wait()
    except BrokenPipeError:
        # The command ended before it had read the archive, so exit code 0 is also a failure.
        return process.wait() or 1
    except KeyboardInterrupt:
        return 1
    finally:
        # With --leash, the command ends when its stdin closes.
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def verify(remote: Remote, path: str, *, full: bool, as_json: bool) -> int:
    """Check a dataset on the head and all workers. Returns the exit code, which is 1 if a check fails.

    All hosts must read the same bytes. With `full`, the head reads every token.
    """
    remote.run("true")
    head, *workers = host_names(remote.stack.cluster)
    arguments = ["--json", "verify", absolute(path, remote.stack.cluster)]
    with ThreadPoolExecutor(max_workers=16) as pool:
        first = pool.submit(_verify_on, remote, head, [*arguments, "--full"] if full else arguments)
        others = pool.map(lambda name: _verify_on(remote, name, arguments), workers)
        results = {head: first.result(), **dict(zip(workers, others, strict=True))}
    found = {name: facts for name, facts in results.items() if isinstance(facts, dict)}
    problems = {name: problem for name, problem in results.items() if isinstance(problem, str)}
    # A full check reads more tokens and has another digest, so only hosts that read the fewest tokens are compared.
    fewest = min((facts["looked_at"] for facts in found.values()), default=0)
    digests = {name: facts["digest"] for name, facts in found.items() if facts["looked_at"] == fewest}
    if len(set(digests.values())) > 1:
        seen = ", ".join(f"{name} {digest}" for name, digest in digests.items())
        problems["(hosts)"] = f"the hosts read different bytes ({seen}). Fix: use a path on the shared file system"
    if as_json:
        say_json({"whole": not problems, "hosts": found, "trouble": problems})
    else:
        for name, facts in found.items():
            say(f"{name}: {facts['documents']} documents, {facts['tokens']} tokens, digest {facts['digest']}")
        for name, problem in problems.items():
            warn(f"yard: {name}: {problem}")
    return 1 if problems else 0


def _verify_on(remote: Remote, name: str, arguments: Sequence[str]) -> dict[str, Any] | str:
    """Return facts about the dataset on a host, or the problem."""
    line, archive = remote_command(arguments)
    argv = remote.argv(line, remote.host(name))
    try:
        done = subprocess.run(argv, input=archive, capture_output=True, timeout=_VERIFY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"not finished within {_VERIFY_SECONDS} s"
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        return message.removeprefix("dataset: ") or f"exit code {done.returncode}"
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts
