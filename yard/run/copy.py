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

from trainyard.errors import JobError, SyncError
from yard.run.jobs import read_job
from yard.run.queue import Job
from yard.run.schedulers import scheduler_of
from yard.show import INTERRUPTED, answer, warn
from yard.stack.remote import Remote
from yard.tree.files import INSTALL

_REMOTE = re.compile(r"([0-9]+|last|cluster):(.*)", re.DOTALL)
_OPTIONS = ("--archive", "--no-owner", "--no-group", "--no-D", "--safe-links", "--partial-dir=.yard-partial", "-s")
_CHANGED = re.compile(r"(?m)^[<>c][fL]\S{9} (.*)$")
"""A file or a link in rsync's output for `%i %n` (rsync(1), --itemize-changes)."""
_DAYS = 30
_SHOWN = 5
_EXAMINE = r"""
base=$1 path=$2 name=$3 makes=$4
command -v rsync >/dev/null || { echo 'rsync is missing on the head; install it there' >&2; exit 1; }
if [[ $name && ( -d $path || $path == */ ) ]]; then path=${path%/}/$name into=1; fi
[[ $base == / || $(realpath -m -- "$path")/ == "$(realpath -m -- "$base")"/* ]] || { echo outside 0; exit; }
[[ -z $name || -d $(dirname -- "$path") ]] || { echo "$(dirname -- "$path") does not exist" >&2; exit 1; }
[[ -z $makes || -d $path ]] || mkdir -- "$path"
if [[ -d $path ]]; then kind=folder; elif [[ -e $path ]]; then kind=file; else kind=missing; fi
echo "$kind ${into-0}"
"""
"""Finds out what a path on the head is: `outside` if it leaves the folder `base`, `folder`, `file` or `missing`. For an
upload, `name` is the name of the source, which is appended if the path is a folder. `makes` is set for folders."""


def copy(remote: Remote, source: str, dest: str, as_json: bool, *, force: bool) -> int:
    """Copy `source` to `dest`, exactly one of which is on the cluster. Returns 0 or INTERRUPTED. Raises SyncError."""
    if bool(_REMOTE.fullmatch(source)) == bool(_REMOTE.fullmatch(dest)):
        raise SyncError(
            "exactly one of SOURCE and DEST must be on the cluster: JOB:PATH, last:PATH or cluster:/PATH. Fix: for "
            "example, `yard cp last:job.log .`; a local file with such a name needs a path, for example ./12:x"
        )
    if shutil.which("rsync") is None:
        raise SyncError("rsync is missing on this machine; " + INSTALL.format(tool="rsync"))
    with tempfile.TemporaryDirectory() as staged:
        if _REMOTE.fullmatch(source):
            words, target = _download(remote, source, dest)
        else:
            words, target = _upload(remote, source, dest, Path(staged))
        argv = ["rsync", *_OPTIONS, "-e", f"ssh -F {shlex.quote(str(remote.stack.ssh_config))}"]
        if not force:
            _refuse_to_overwrite([*argv, "--dry-run", "--existing", "--out-format=%i %n", *words])
        progress = ["--info=progress2"] if sys.stdout.isatty() and not as_json else []
        if code := _run([*argv, "--info=symsafe1", *progress, *words], 2 if as_json else None):
            return code
    answer(f"copied {source} to {target}", {"source": source, "target": target}, as_json)
    return 0


def _download(remote: Remote, source: str, dest: str) -> tuple[list[str], str]:
    """Return rsync's arguments for the files, and the path of the copy."""
    folder, path = _place(remote, source)
    kind, _ = _examine(remote, source, [folder, path, "", ""])
    if kind == "missing":
        raise SyncError(f"{source} does not exist: there is no {path} on the cluster")
    target = Path(dest).absolute()
    if target.is_dir() or dest.endswith("/"):
        target /= posixpath.basename(path.rstrip("/")) or "root"
    if not target.parent.is_dir():
        raise SyncError(f"the folder {target.parent} does not exist. Fix: create it, or name another destination")
    if target.is_dir() and kind != "folder":
        raise SyncError(f"{target} is a folder, and {source} is a file. Fix: remove it, or name another destination")
    remote_path = f"{remote.host(None)}:{_literal(path.rstrip('/'))}"
    words = [f"{remote_path}/", f"{target}/"] if kind == "folder" else ["--copy-links", remote_path, str(target)]
    return words, str(target)


def _upload(remote: Remote, source: str, dest: str, staged: Path) -> tuple[list[str], str]:
    """Return rsync's arguments for the files, and the path of the copy. `staged` is an empty folder."""
    local = Path(os.path.abspath(source))
    if not local.exists():
        raise SyncError(f"{source} does not exist on this computer")
    folder, path = _place(remote, dest)
    kind, is_into = _examine(remote, dest, [folder, path, local.name, "1" if local.is_dir() else ""])
    path = f"{path.rstrip('/')}/{local.name}" if is_into else path
    if local.is_dir():
        return [f"{local}/", f"{remote.host(None)}:{_literal(path)}/"], path
    if kind == "folder":
        raise SyncError(f"{path} is a folder, and {source} is a file. Fix: name another destination")
    # rsync would expand wildcards in the name of a new file, so the target is the existing folder. A link gives the
    # file its new name.
    link = staged / posixpath.basename(path)
    link.symlink_to(local)
    return ["--copy-links", str(link), f"{remote.host(None)}:{_literal(posixpath.dirname(path))}/"], path


def _place(remote: Remote, text: str) -> tuple[str, str]:
    """Return the folder that a path on the cluster must not leave, and the absolute path."""
    found = _REMOTE.fullmatch(text)
    assert found  # noqa: S101  (copy has checked it; for the type checker)
    where, path = found.groups()
    if where == "cluster":
        if not path.startswith("/"):
            raise SyncError(f"{text}: the path after `cluster:` must be absolute, for example cluster:/shared/data")
        return "/", path
    jobs = f"{remote.stack.cluster.shared_path}/jobs/"
    job = _newest(remote, jobs) if where == "last" else read_job(remote, int(where))
    if not job.run_dir.startswith(jobs):
        raise JobError(
            f"job {job.id} has no run folder, because `yard submit` did not submit it. Fix: use an absolute path, for "
            f"example cluster:{job.run_dir}/FILE"
        )
    if path.startswith("/"):
        raise SyncError(f"{text}: the path must be relative to the job's run folder. Fix: write cluster:{path}")
    return job.run_dir, f"{job.run_dir}/{path}" if path else job.run_dir


def _newest(remote: Remote, jobs: str) -> Job:
    recent = scheduler_of(remote.stack.cluster.scheduler).recent(remote, _DAYS)
    user = remote.stack.cluster.head.user
    found = next((job for job in recent if job.user == user and job.run_dir.startswith(jobs)), None)
    if found is None:
        raise JobError(f"no job was submitted in the last {_DAYS} days; `yard ps --all` lists the jobs")
    return found


def _examine(remote: Remote, text: str, words: Sequence[str]) -> tuple[str, bool]:
    kind, into = remote.run(shlex.join(["bash", "-c", _EXAMINE, "cp", *words])).split()
    if kind == "outside":
        raise SyncError(f"{text} is outside the job's run folder. Fix: use an absolute path after `cluster:`")
    return kind, into == "1"


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
