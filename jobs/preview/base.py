"""The same stacks in another revision of this project, described by that revision's own code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from components.errors import ClusterError
from jobs.preview.describe import CHECKOUT
from jobs.preview.shape import CONTRACT, Description

_SECONDS = 120


class UnknownRevision(ClusterError):
    """A name that git knows no commit by."""


def commit_of(ref: str) -> str:
    """Return the commit that a branch, tag or commit names. Raises UnknownRevision."""
    done = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if b"not a git repository" in done.stderr:
        raise UnknownRevision(f"--against {ref}: this is no git repository. Fix: leave it out, or work in a clone")
    if done.returncode:
        raise UnknownRevision(
            f"--against {ref}: git knows no such revision here. Fix: name a branch, tag or commit, or fetch it first"
        )
    return done.stdout.decode().strip()


def describe_at(commit: str) -> dict[str, Description]:
    """Return every stack of that commit. Raises ClusterError where its code cannot describe them."""
    with tempfile.TemporaryDirectory(prefix="trainyard-base-") as folder:
        tree = Path(folder)
        with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", commit).stdout)) as archive:
            archive.extractall(tree, filter="data")
        return _ask(tree, commit)


def _ask(tree: Path, commit: str) -> dict[str, Description]:
    if not (tree / "jobs" / "preview" / "describe.py").is_file():
        raise ClusterError(f"{commit[:12]} is older than `yard preview` and cannot describe its stacks")
    # In front of everything else, so that no module of this tree takes the place of one of that tree.
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "jobs.preview.describe"],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"the code of {commit[:12]} did not describe its stacks within {_SECONDS} s") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ClusterError(f"the code of {commit[:12]} cannot describe its stacks: {reason}")
    answer = json.loads(done.stdout)
    if answer.get("contract") != CONTRACT:
        raise ClusterError(
            f"{commit[:12]} describes stacks by contract {answer.get('contract')}, this revision by {CONTRACT}: "
            "they cannot be compared"
        )
    stacks: dict[str, Description] = answer["stacks"]
    return stacks


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, check=False)
    except FileNotFoundError:
        raise ClusterError("git is not on PATH; --against needs it") from None
