"""Builds the docker image of a post on every worker, as the job user, who must be a member of the group docker."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainyard.errors import BuildError
from yard.stack.remote import Remote

FOLDER = Path(__file__).parent / "images"
_SECONDS = 3600
_CONNECTIONS = 16


def dockerfile(image: str) -> Path:
    """Return the Dockerfile of an image."""
    return FOLDER / f"{image}.Dockerfile"


def build_images(remote: Remote, image: str, say: Callable[[str], None]) -> None:
    """Build an image on the workers that lack it. Raises BuildError, which lists the workers that failed."""
    workers = [node.name for node in remote.stack.cluster.nodes]
    say(f"building the image {image} on {len(workers)} nodes, unless they have it")
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        results = dict(zip(workers, pool.map(lambda name: _build(remote, name, image), workers), strict=True))
    failed = [f"{name}: {problem}" for name, problem in results.items() if problem]
    if failed:
        fix = "correct the cause; `yard doctor` checks docker on every node"
        raise BuildError(f"image {image} was not built on {'; '.join(failed)}. Fix: {fix}")


def _build(remote: Remote, name: str, image: str) -> str:
    """Build the image on a worker. Returns the last line of the error, or an empty string."""
    quoted = shlex.quote(image)
    # With `-`, the Dockerfile comes from stdin, and no other file is sent.
    line = f"docker image inspect {quoted} >/dev/null 2>&1 || docker build --quiet --tag {quoted} - >/dev/null"
    argv = remote.argv(line, remote.host(name))
    try:
        done = subprocess.run(
            argv, input=dockerfile(image).read_bytes(), capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not finished within {_SECONDS} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
