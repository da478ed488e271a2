"""Runs dataset.py on the cluster's hosts, for `yard data`."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from yard.run import dataset
from yard.show import say, say_json, warn
from yard.stack.load import Stack
from yard.stack.remote import Remote

_VERIFY_SECONDS = 600
_PROGRAM = Path(str(dataset.__file__)).read_bytes()


def absolute(path: str, stack: Stack) -> str:
    """Return an absolute path on the cluster. A relative `path` is relative to the folder for the user's files."""
    return path if path.startswith("/") else f"{stack.files_path}/{path}"


def synth(remote: Remote, arguments: Sequence[str]) -> int:
    """Run `dataset.py ARGUMENTS` on the head, and return the exit code."""
    remote.run("true")  # if the head is unreachable, the error contains a fix
    return subprocess.run(_argv(remote, None, arguments), input=_PROGRAM, check=False).returncode


def verify(remote: Remote, path: str, *, full: bool, as_json: bool) -> int:
    """Check that all hosts read the same dataset. Return the exit code. If `full` is set, the head reads all tokens."""
    remote.run("true")
    head, *workers = remote.stack.cluster.addresses
    arguments = ["--json", "verify", absolute(path, remote.stack)]
    with ThreadPoolExecutor(16) as pool:
        first = pool.submit(_verify_on, remote, head, [*arguments, "--full"] if full else arguments)
        others = pool.map(lambda name: _verify_on(remote, name, arguments), workers)
        results = {head: first.result(), **dict(zip(workers, others, strict=True))}
    found = {name: facts for name, facts in results.items() if isinstance(facts, dict)}
    problems = {name: problem for name, problem in results.items() if isinstance(problem, str)}
    # A full check reads more tokens, so its digest cannot be compared with the other hosts' digests.
    fewest = min((facts["looked_at"] for facts in found.values()), default=0)
    digests = {name: facts["digest"] for name, facts in found.items() if facts["looked_at"] == fewest}
    if len(set(digests.values())) > 1:
        seen = ", ".join(f"{name} {digest}" for name, digest in digests.items())
        problems["(hosts)"] = f"the hosts read different bytes ({seen}). Fix: use a path on the shared file system"
    if as_json:
        say_json({"whole": not problems, "hosts": found, "trouble": problems})
        return 1 if problems else 0
    for name, facts in found.items():
        say(f"{name}: {facts['documents']} documents, {facts['tokens']} tokens, digest {facts['digest']}")
    for name, problem in problems.items():
        warn(f"yard: {name}: {problem}")
    return 1 if problems else 0


def _verify_on(remote: Remote, name: str, arguments: Sequence[str]) -> dict[str, Any] | str:
    argv = _argv(remote, name, arguments)
    try:
        done = subprocess.run(argv, input=_PROGRAM, capture_output=True, timeout=_VERIFY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"not finished within {_VERIFY_SECONDS} s"
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip()
        return message.removeprefix("dataset: ") or f"exit code {done.returncode}"
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def _argv(remote: Remote, name: str | None, arguments: Sequence[str]) -> list[str]:
    """Return the ssh command that runs a program from stdin on a host, or on the head if `name` is None."""
    return remote.argv(f"python3 - {shlex.join(arguments)}", remote.host(name))
