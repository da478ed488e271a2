"""Runs a post's steps on its stack's cluster, or prints them.

The job user builds a post's docker image on every worker, so this user must be a member of the docker group.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trainyard.errors import BuildError, JobError
from yard.job.loader import LoadedJob
from yard.reproduce.posts import Post
from yard.run import data
from yard.run.environments import describe, provide
from yard.run.jobs import follow
from yard.run.submit import prepare, submit
from yard.show import duration, payload, say, say_json, table, warn
from yard.stack.remote import Remote

IMAGES = Path(__file__).parent / "images"
_SECONDS = 3600
_CONNECTIONS = 16


def plan(post: Post, as_json: bool) -> None:
    """Print a post's steps, requirements and figures. This needs no cluster."""
    loaded = [run.load(smoke=post.smoke) for run in post.jobs]
    if as_json:
        say_json(
            {
                "post": post.name,
                "title": post.title,
                "stack": post.stack,
                "image": post.image,
                "environments": [job.environment.name for job in loaded if job.environment is not None],
                "commands": post.commands,
                "figures": [{"name": figure.name, "post": figure.post} for figure in post.figures],
                "differs": post.differs,
            }
        )
        return
    say(post.title)
    say(f"\n1. stack {post.stack}")
    if post.smoke:
        say("     `make demo` in a clone; in your own project, `yard init vms --provider local` and `pulumi up -s vms`")
    else:
        say(f"     yard init NAME --from {post.name}")
        say("     pulumi stack select --create NAME && pulumi up -s NAME   # `yard preview NAME` prints the price")
        say("     export TRAINYARD_STACK=NAME")
    say("2. environments, built by the first job that uses them")
    for line in _environments(loaded, smoke=post.smoke):
        say(f"     {line}")
    if post.image is not None:
        say(f"     image {post.image}, built on every node from {dockerfile(post.image)}")
    say("3. data and jobs")
    for line in post.commands:
        say(f"     {line}")
    for line in _requirements(loaded):
        say(f"     {line}")
    if post.figures:
        say("4. figures of the post")
        for figure in post.figures:
            say(f"     {figure.name}: {figure.post}")
    if post.differs:
        say(f"\nDifference from the post: {post.differs}")


def reproduce(post: Post, remote: Remote, as_json: bool) -> int:
    """Run a post's steps and print the figures. Returns 1 if the data cannot be created or a figure is missing.

    Raises JobError if a job fails, and BuildError if an environment or an image cannot be built.
    """
    begin = time.monotonic()
    # All jobs are checked before the first job starts.
    prepared = [(run, prepare(run.load(smoke=post.smoke), remote.stack.cluster)) for run in post.jobs]
    warn(f"yard: {post.title}")
    if post.differs:
        warn(f"yard: difference from the post: {post.differs}")
    if post.image is not None:
        build_images(remote, post.image, lambda text: warn(f"yard: {text}"))
    if post.data and not _make_data(post, remote):
        return 1
    logs: dict[str, str] = {}
    for run, job in prepared:
        (ready,) = provide(remote, [job])
        number = submit(remote, ready).job
        warn(f"yard: job {number} ({run.recipe}) is submitted; its log follows")
        lines: list[str] = []

        def show(line: str, kept: list[str] = lines) -> None:
            kept.append(line)
            if not as_json:
                payload(f"{line}\n")

        ended = follow(remote, number, 0, show, warn)
        if ended.verdict:
            raise JobError(f"job {number} {ended.state}. Fix: find the cause with `yard logs {number}`")
        logs[run.name or run.recipe] = "\n".join(lines)
    return _report(post, logs, round(time.monotonic() - begin), as_json)


def _requirements(loaded: list[LoadedJob]) -> list[str]:
    rows = [(job.file, job.spec) for job in loaded]
    needs = [f"{name} needs {spec.software}" for name, spec in rows if spec.software]
    unverified = [f"{name} is not verified: {spec.unverified}" for name, spec in rows if spec.unverified]
    return list(dict.fromkeys([*needs, *unverified]))


def _environments(loaded: list[LoadedJob], *, smoke: bool) -> list[str]:
    if smoke:
        return ["none: the virtual machines have Debian's torch"]
    found = [describe(job.environment, "/shared") for job in loaded if job.environment is not None]
    return list(dict.fromkeys(found)) or ["none: the container image has the packages"]


def _make_data(post: Post, remote: Remote) -> bool:
    """Create the synthetic data if necessary. Returns whether it exists."""
    verb, name, *options = post.data_words
    path = data.absolute(name, remote.stack)
    if remote.run(f"if [ -e {path}.json ]; then echo yes; fi").strip():
        warn(f"yard: {path} exists")
        return True
    return data.synth(remote, [verb, path, *options]) == 0


def _report(post: Post, logs: dict[str, str], seconds: int, as_json: bool) -> int:
    rows = [(figure.name, figure.post, figure.ours(logs)) for figure in post.figures]
    missing = [name for name, _, ours in rows if ours is None]
    if as_json:
        figures = [{"name": name, "post": theirs, "ours": ours} for name, theirs, ours in rows]
        say_json(
            {"post": post.name, "smoke": post.smoke, "seconds": seconds, "figures": figures, "differs": post.differs}
        )
    else:
        if rows:
            table(("FIGURE", "POST", "OURS"), [(name, theirs, ours or "missing") for name, theirs, ours in rows])
        say(f"{post.name}: {len(logs)} job{'' if len(logs) == 1 else 's'} completed in {duration(seconds)}")
    if missing:
        warn(f"yard: the logs contain no value for: {', '.join(missing)}")
    return 1 if missing else 0


def dockerfile(image: str) -> Path:
    return IMAGES / f"{image}.Dockerfile"


def build_images(remote: Remote, image: str, say: Callable[[str], None]) -> None:
    """Build an image on the workers that lack it. Raises BuildError with the names of the workers that failed."""
    workers = [node.name for node in remote.stack.cluster.nodes]
    say(f"building the image {image} on {len(workers)} nodes, unless they have it")
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        results = dict(zip(workers, pool.map(lambda name: _build(remote, name, image), workers), strict=True))
    failed = [f"{name}: {problem}" for name, problem in results.items() if problem]
    if failed:
        fix = "correct the cause; `yard doctor` checks docker on every node"
        raise BuildError(f"image {image} was not built on {'; '.join(failed)}. Fix: {fix}")


def _build(remote: Remote, name: str, image: str) -> str:
    """Build the image on a worker. Returns the error's last line, or an empty string."""
    quoted = shlex.quote(image)
    # With `-`, docker reads the Dockerfile from stdin and sends no other files.
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
