"""`yard cp` copies a file or a folder between this computer and the cluster with rsync.

Interrupted files are kept in hidden folders, so that the next `yard cp` continues them. Without --secluded-args, old
versions of rsync would let the remote shell split names with spaces. With this option, rsync expands wildcards in
existing remote names itself (glob_expand in util1.c of rsync 3.2.7 and 3.4.1), so these are escaped.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from trainyard.errors import SyncError
from yard.run.jobs import acting_for_owner, find_job
from yard.show import INTERRUPTED, answer, warn
from yard.stack.remote import Remote
from yard.tree.files import INSTALL

_REMOTE = re.compile(r"([0-9]+|last):(.*)|cluster:(/.*)", re.DOTALL)
_OPTIONS = ("--archive", "--no-owner", "--no-group", "--no-D", "--safe-links", "--partial-dir=.yard-partial", "-s")
_CHANGED = re.compile(r"(?m)^[<>c][fL]\S{9} (.*)$")
"""A file or a link in rsync's output for `%i %n` (rsync(1), --itemize-changes)."""
_SHOWN = 5
_EXAMINE = r"""
path=$1 name=$2 makes=$3
command -v rsync >/dev/null || { echo 'rsync is missing on the head; install it there' >&2; exit 1; }
if [[ $name && ( -d $path || $path == */ ) ]]; then path=${path%/}/$name; fi
[[ -z $name || -d $(dirname -- "$path") ]] || { echo "$(dirname -- "$path") does not exist" >&2; exit 1; }
[[ -z $makes || -d $path ]] || mkdir -- "$path"
if [[ -d $path ]]; then kind=folder; elif [[ -e $path ]]; then kind=file; else kind=missing; fi
printf '%s %s' "$kind" "$path"
"""
"""Prints `folder`, `file` or `missing`, and the path. For an upload, `name` is the source's name, which is appended to
the path of an existing folder. If `makes` is not empty, a missing folder is created."""


def copy(remote: Remote, source: str, dest: str, as_json: bool, *, force: bool) -> int:
    """Copy `source` to `dest`, exactly one of which is on the cluster. Returns 0 or INTERRUPTED. Raises SyncError."""
    theirs = [found for text in (source, dest) if (found := _REMOTE.fullmatch(text))]
    if len(theirs) != 1:
        raise SyncError(
            "exactly one of SOURCE and DEST must be on the cluster: JOB:PATH, last:PATH or cluster:/PATH. Fix: for "
            "example, `yard cp last:job.log .`; a local file with such a name needs a path, for example ./12:x"
        )
    if shutil.which("rsync") is None:
        raise SyncError("rsync is missing on this machine; " + INSTALL.format(tool="rsync"))
    job, path, absolute = theirs[0].groups()
    if absolute:
        path = absolute
    else:
        of_job = find_job(remote, job)
        path = posixpath.join(of_job.run_dir, path)
        remote = acting_for_owner(remote, of_job, reads=bool(_REMOTE.fullmatch(source)))
    owner = [f"--rsync-path=cd / && {remote.prefix}rsync"] if remote.prefix else []
    with tempfile.TemporaryDirectory() as staged:
        if _REMOTE.fullmatch(source):
            words, target = _download(remote, path, dest)
        else:
            words, target = _upload(remote, Path(os.path.abspath(source)), path, Path(staged))
        argv = ["rsync", *_OPTIONS, *owner, "-e", f"ssh -F {shlex.quote(str(remote.stack.ssh_config))}"]
        if not force:
            _refuse_to_overwrite([*argv, "--dry-run", "--existing", "--out-format=%i %n", *words])
        progress = ["--info=progress2"] if sys.stdout.isatty() and not as_json else []
        if code := _run([*argv, "--info=symsafe1", *progress, *words], 2 if as_json else None):
            return code
    answer(f"copied {source} to {target}", {"source": source, "target": target}, as_json)
    return 0


def _download(remote: Remote, path: str, dest: str) -> tuple[list[str], str]:
    """Return rsync's arguments for the files, and the path of the copy."""
    # The head's answer can come from programs that root on a worker has changed, so it does not name local files.
    kind, path = _examine(remote, path, "")[0], posixpath.normpath(path)
    if kind == "missing":
        folder = shlex.quote(posixpath.dirname(path.rstrip("/")))
        raise SyncError(f"{path} does not exist on the cluster. Fix: `yard ssh -- ls {folder}` lists the files")
    target = Path(dest).absolute()
    if target.is_dir() or dest.endswith("/"):
        target /= posixpath.basename(path.rstrip("/")) or "root"
    if not target.parent.is_dir():
        raise SyncError(f"the folder {target.parent} does not exist. Fix: create it, or name another destination")
    if target.is_dir() and kind != "folder":
        raise SyncError(f"{target} is a folder, and {path} is a file. Fix: remove it, or name another destination")
    remote_path = f"{remote.host(None)}:{_literal(path.rstrip('/'))}"
    words = [f"{remote_path}/", f"{target}/"] if kind == "folder" else ["--copy-links", remote_path, str(target)]
    return words, str(target)


def _upload(remote: Remote, local: Path, path: str, staged: Path) -> tuple[list[str], str]:
    """Return rsync's arguments for the files, and the path of the copy. `staged` is an empty folder."""
    if not local.exists():
        raise SyncError(f"{local} does not exist on this computer")
    kind, path = _examine(remote, path, local.name, makes="1" if local.is_dir() else "")
    if local.is_dir():
        return [f"{local}/", f"{remote.host(None)}:{_literal(path)}/"], path
    if kind == "folder":
        raise SyncError(f"{path} is a folder, and {local} is a file. Fix: name another destination")
    # rsync would expand wildcards in the name of a new file, so the target is the existing folder. A link gives the
    # file its new name.
    link = staged / posixpath.basename(path)
    link.symlink_to(local)
    return ["--copy-links", str(link), f"{remote.host(None)}:{_literal(posixpath.dirname(path))}/"], path


def _examine(remote: Remote, path: str, name: str, makes: str = "") -> tuple[str, str]:
    kind, _, found = remote.run(shlex.join(["bash", "-c", _EXAMINE, "cp", path, name, makes])).partition(" ")
    return kind, found


def _literal(path: str) -> str:
    """Return the path with escaped wildcards. rsync interprets a backslash only in a name that has wildcards."""
    parts = path.split("/")
    return "/".join(re.sub(r"([*?\[\\])", r"\\\1", part) if set(part) & set("*?[") else part for part in parts)


def _refuse_to_overwrite(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise SyncError(f"rsync failed: {done.stderr.strip()}")
    changed = _CHANGED.findall(done.stdout)
    if changed:
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        names = ", ".join(changed[:_SHOWN])
        raise SyncError(f"different files exist: {names}{more}; nothing was copied. Fix: add --force to replace them")


def _run(argv: Sequence[str], output: int | None) -> int:
    with subprocess.Popen(argv, stdout=output) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # After this signal, rsync keeps the incomplete file.
            process.send_signal(signal.SIGINT)
            process.wait()
            warn("yard: interrupted; run the same command again to continue")
            return INTERRUPTED
    if code:
        raise SyncError(f"rsync failed with exit code {code}; run the same command again to continue")
    return 0
