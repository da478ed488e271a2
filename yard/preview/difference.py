"""Compares a stack with the same stack in another git revision.

In a checkout of this code, that revision's own code describes its stacks. In another project, the installed version
describes the stacks of both revisions.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path

from trainyard import project
from trainyard.errors import ClusterError
from yard.preview.describe import CONTRACT, Quota, Snapshot

_SECONDS = 120


class UnknownRevision(ClusterError):
    """A revision that git cannot resolve to a commit."""


@dataclass(frozen=True, kw_only=True)
class FileDiff:
    """A rendered file's unified diff. The files in `same_in` have the same changes."""

    file: str
    diff: str
    same_in: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How the working tree differs from the base. `usd_per_hour` is None if a price is unknown."""

    new: bool
    usd_per_hour: float | None
    known_usd_per_hour: float
    hosts_added: list[str]
    hosts_removed: list[str]
    quota: list[Quota]
    files: list[FileDiff]


def commit_of(ref: str) -> str:
    """Return the ID of the commit that a branch, tag or other name refers to. Raises UnknownRevision."""
    done = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if b"not a git repository" in done.stderr:
        raise UnknownRevision(f"--against {ref}: not a git repository. Fix: omit --against, or use a clone")
    if done.returncode:
        raise UnknownRevision(
            f"--against {ref}: git cannot resolve this revision. Fix: fetch it, or use a different revision"
        )
    return done.stdout.decode().strip()


def snapshots_at(commit: str) -> dict[str, Snapshot]:
    """Return a mapping from stack to its snapshot in the commit. Raises ClusterError if the commit's code fails."""
    with tempfile.TemporaryDirectory(prefix="trainyard-base-") as folder:
        tree, short = Path(folder), commit[:12]
        # The output is empty if the commit does not contain the project's folder.
        if packed := _git("archive", "--format=tar", commit).stdout:
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                # Python has the filter since 3.11.4 (tarfile, "Supporting older versions"), and Debian 12 has 3.11.2.
                archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
                archive.extractall(tree)  # noqa: S202  (git wrote the archive)
        if not (tree / "Pulumi.yaml").is_file():
            return {}
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        if (tree / "trainyard").is_dir():
            # This path makes Python import the other revision's modules.
            environment["PYTHONPATH"] = str(tree)
        # -P: a module in a project must not hide a module that this code imports.
        words = [sys.executable, "-P", "-m", "yard.preview.describe"]
        try:
            done = subprocess.run(
                words, cwd=tree, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise ClusterError(f"the code in {short} did not describe its stacks within {_SECONDS} s") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        raise ClusterError(f"the code in {short} cannot describe its stacks: {reason}")
    answer = json.loads(done.stdout)
    if answer.get("contract") != CONTRACT:
        raise ClusterError(
            f"{short} describes stacks with contract {answer.get('contract')}, but this revision uses {CONTRACT}; they "
            "cannot be compared"
        )
    return {name: Snapshot(**snapshot) for name, snapshot in answer["stacks"].items()}


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], cwd=project.ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        raise ClusterError("--against needs git, which is not on PATH. Fix: install git") from None


def compare(before: Snapshot | None, after: Snapshot) -> Difference:
    """Return the difference. For a new stack, `before` is None, and the files are not compared."""
    old = before or Snapshot(hosts=[], usd=0.0, priced=False, quota=[], files={})
    usd = round(after.usd - old.usd, 3)
    return Difference(
        new=before is None,
        usd_per_hour=usd if old.priced and after.priced else None,
        known_usd_per_hour=usd,
        hosts_added=[name for name in after.hosts if name not in old.hosts],
        hosts_removed=[name for name in old.hosts if name not in after.hosts],
        quota=_quota_changes(old, after),
        files=_diffs(old.files, after.files) if before else [],
    )


def _quota_changes(before: Snapshot, after: Snapshot) -> list[Quota]:
    old, new = ({(str(quota), str(place)): int(n) for quota, place, n in each.quota} for each in (before, after))
    changes = {key: new.get(key, 0) - old.get(key, 0) for key in [*new, *old]}
    return [Quota(quota=quota, place=place, amount=n) for (quota, place), n in changes.items() if n]


def _diffs(before: dict[str, str], after: dict[str, str]) -> list[FileDiff]:
    """Return the diffs. Equal changes share one diff, because the user-data of all roles contains the same scripts."""
    found: dict[str, FileDiff] = {}
    for name in dict.fromkeys([*after, *before]):
        old, new = before.get(name, "").splitlines(), after.get(name, "").splitlines()
        lines = list(unified_diff(old, new, f"base/{name}", f"now/{name}", lineterm=""))
        changed = "\n".join(line for line in lines[2:] if line.startswith(("+", "-")))
        if changed in found:
            found[changed].same_in.append(name)
        elif lines:
            found[changed] = FileDiff(file=name, diff="\n".join(lines) + "\n")
    return list(found.values())
