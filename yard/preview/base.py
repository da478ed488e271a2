"""Describes the stacks in another git revision with the code from that revision."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from trainyard.checkout import ROOT
from trainyard.errors import ClusterError
from yard.preview.shape import CONTRACT, Description

_SECONDS = 120


class UnknownRevision(ClusterError):
    """A revision that git cannot resolve to a commit."""


def commit_of(ref: str) -> str:
    """Return the commit id of a branch, tag or commit. Raises UnknownRevision."""
    done = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if b"not a git repository" in done.stderr:
        raise UnknownRevision(f"--against {ref}: not a git repository. Fix: omit --against, or use a clone")
    if done.returncode:
        raise UnknownRevision(
            f"--against {ref}: git cannot resolve this revision. Fix: fetch it, or use a different revision"
        )
    return done.stdout.decode().strip()


def describe_at(commit: str) -> dict[str, Description]:
    """Return the description of each stack in the commit. Raises ClusterError if the commit's code fails."""
    with tempfile.TemporaryDirectory(prefix="trainyard-base-") as folder:
        tree = Path(folder)
        with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", commit).stdout)) as archive:
            archive.extractall(tree, filter="data")
        return _describe_tree(tree, commit)


def _describe_tree(tree: Path, commit: str) -> dict[str, Description]:
    if not (tree / "yard" / "preview" / "describe.py").is_file():
        raise ClusterError(f"{commit[:12]} is older than `yard preview` and cannot describe its stacks")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "yard.preview.describe"],
            cwd=tree,
            # This path makes Python import the modules of the other revision.
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"the code in {commit[:12]} did not describe its stacks within {_SECONDS} s") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        raise ClusterError(f"the code in {commit[:12]} cannot describe its stacks: {reason}")
    answer = json.loads(done.stdout)
    if answer.get("contract") != CONTRACT:
        raise ClusterError(
            f"{commit[:12]} describes stacks with contract {answer.get('contract')}, but this revision uses "
            f"{CONTRACT}; they cannot be compared"
        )
    stacks: dict[str, Description] = answer["stacks"]
    return stacks


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        raise ClusterError("--against needs git, which is not on PATH. Fix: install git") from None
