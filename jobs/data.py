"""`yard data`: sends the package jobs/dataset to where the data is and runs it there.

On a cluster with nodes without GPUs that is a job on one of them, elsewhere the head: no GPU waits for a tokenizer.
Relative paths are meant below the shared path. Interrupted, it leaves no process behind; what is finished is kept.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobs import dataset
from jobs.bundle import pack, submit
from jobs.errors import RemoteError
from jobs.facts import Cluster
from jobs.loader import LoadedJob
from jobs.remote import Remote
from jobs.show import say, say_json
from jobs.spec import JobSpec
from jobs.ssh_config import host_names
from jobs.submit import prepare

HEAD = "head"
_PACKAGE = Path(dataset.__file__).parent
_FOLDER = "dataset"
_LEAVE_SECONDS = 20
_VERIFY_SECONDS = 600
_FAILED = 1


def absolute(path: str, cluster: Cluster) -> str:
    """Return a path on the cluster: a relative one is below the shared path."""
    return path if path.startswith("/") else f"{cluster.shared_path}/{path}"


def place_for(cluster: Cluster, wish: str | None) -> str:
    """Return the node group that shall do it, or HEAD. Raises RemoteError for a group that is not there."""
    groups = list(dict.fromkeys(node.group for node in cluster.nodes))
    if wish is not None:
        if wish != HEAD and wish not in groups:
            raise RemoteError(f"there is no node group '{wish}'; write --on {HEAD} or one of {', '.join(groups)}")
        return wish
    spare = [node.group for node in cluster.nodes if node.gpus == 0]
    return spare[0] if spare else HEAD


def make(remote: Remote, words: Sequence[str], wish: str | None, as_json: bool) -> int:
    """Run `dataset WORDS` where the cluster has room for it. Returns its exit code."""
    cluster = remote.stack.cluster
    group = place_for(cluster, wish)
    if group == HEAD:
        return _on_head(remote, words)
    from jobs.listing import submit_attached  # noqa: PLC0415  (not needed on the head)

    job = as_job(words, group)
    prepared = prepare(job, cluster)
    return submit_attached(remote, lambda: submit(remote, job.spec.name, prepared.files, job.spec.chain).job, as_json)


def as_job(words: Sequence[str], group: str) -> LoadedJob:
    """Return the job that runs `dataset WORDS` on a node of the group."""
    spec = JobSpec(
        name="data",
        group=group,
        gpus_per_node=0,
        tasks_per_node=1,
        time="1d",
        run=f'cd "$RUN_DIR"\nexec python3 -m {_FOLDER} {shlex.join(words)}\n',
        files={f"{_FOLDER}/{name}": text for name, text in package_files().items()},
    )
    return LoadedJob(file="yard data", spec=spec, workload=None)


def package_files() -> Mapping[str, str]:
    """Return the package's files by name."""
    return {path.name: path.read_text() for path in sorted(_PACKAGE.glob("*.py"))}


def travelling(words: Sequence[str]) -> tuple[str, bytes]:
    """Return the shell line that runs `dataset --leash WORDS`, and what it wants on stdin before the leash."""
    archive = pack(_FOLDER, package_files())
    line = (
        f'set -eu; d=$(mktemp -d); trap \'rm -rf "$d"\' EXIT; head -c {len(archive)} | tar -xC "$d"; cd "$d"; '
        f"python3 -m {_FOLDER} --leash {shlex.join(words)}"
    )
    return f"bash -c {shlex.quote(line)}", archive


def _on_head(remote: Remote, words: Sequence[str]) -> int:
    remote.run("true")  # a head that cannot be reached is said now, with what to do
    line, archive = travelling(words)
    process = subprocess.Popen(remote.argv(line, remote.host(None)), stdin=subprocess.PIPE)
    assert process.stdin is not None  # noqa: S101  (PIPE above; tells the type checker)
    try:
        process.stdin.write(archive)
        process.stdin.flush()
        return process.wait()
    except BrokenPipeError:
        # The far side has ended before it had all: its code says why, and even 0 is no success then.
        return process.wait() or _FAILED
    except KeyboardInterrupt:
        return _FAILED
    finally:
        # Its end is the leash: the far side stops when it is let go.
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def verify(remote: Remote, path: str, *, full: bool, as_json: bool) -> int:
    """Check a dataset on every host that can see it: the head and the workers. Returns the exit code, 1 for trouble.

    All must see the same bytes; `full` looks at every token, on the head alone.
    """
    remote.run("true")
    names = host_names(remote.stack.cluster)
    words = ["--json", "verify", absolute(path, remote.stack.cluster)]
    plans = {name: [*words, *(["--full"] if full and name == names[0] else [])] for name in names}
    with ThreadPoolExecutor(max_workers=16) as pool:
        answers = dict(zip(names, pool.map(lambda name: _ask(remote, name, plans[name]), names), strict=True))
    found: dict[str, Any] = {name: facts for name, (facts, _) in answers.items() if facts}
    trouble = {name: said for name, (facts, said) in answers.items() if not facts}
    digests = {name: facts["digest"] for name, facts in found.items() if facts["looked_at"] == _least(found)}
    if len(set(digests.values())) > 1:
        seen = ", ".join(f"{name} {digest}" for name, digest in digests.items())
        trouble["(hosts)"] = f"they do not see the same bytes ({seen}); is {path} on the shared file system?"
    if as_json:
        say_json({"whole": not trouble, "hosts": found, "trouble": trouble})
    else:
        for name, facts in found.items():
            say(f"{name}: {facts['documents']} documents, {facts['tokens']} tokens, digest {facts['digest']}")
        for name, said in trouble.items():
            sys.stderr.write(f"yard: {name}: {said}\n")
    return _FAILED if trouble else 0


def _least(found: Mapping[str, Any]) -> int:
    return min((int(facts["looked_at"]) for facts in found.values()), default=0)


def _ask(remote: Remote, name: str, words: Sequence[str]) -> tuple[dict[str, Any], str]:
    line, archive = travelling(words)
    try:
        done = subprocess.run(
            remote.argv(line.replace(" --leash", "", 1), remote.host(name)),
            input=archive,
            capture_output=True,
            timeout=_VERIFY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {}, f"no answer within {_VERIFY_SECONDS} s"
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode:
        return {}, said.removeprefix("dataset: ") or f"exit code {done.returncode}"
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts, ""
