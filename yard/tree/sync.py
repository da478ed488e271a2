"""Sends a directory to the cluster with rsync, except files that git ignores and files that look like secrets.

git lists the files, because rsync does not support all .gitignore patterns or git's other exclude files. The copy
contains a list of the sent files. `--delete` removes only files in this list, so it never removes checkpoints or logs.

Users can share an account on the cluster, and the default destination has the directory's name. Therefore a marker file
in the destination names the copy's source, and yard refuses to send a different directory there.
"""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import SyncError
from yard.show import say, say_json, warn
from yard.stack.remote import Remote
from yard.tree.files import INSTALL, MANIFEST, MARKER, select_files

_NO_MARKER = "?"
"""Placeholder for the unknown source of a folder that contains files but no marker."""
_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class SyncRequest:
    """Options of `yard sync`. If `dest` is None, the files go to a folder with the directory's name in `files_path`.

    If `take_over` is set, the destination is allowed to contain a copy of a different directory.
    """

    source: Path
    dest: str | None
    delete: bool
    dry_run: bool
    with_secrets: bool
    take_over: bool = False


def sync(remote: Remote, request: SyncRequest, as_json: bool) -> None:
    """Send the directory. Raises SyncError, or RemoteError if the head cannot be reached."""
    selection = select_files(request.source, with_secrets=request.with_secrets)
    dest = _dest(remote, request)
    before = _prepare(remote, dest, request)
    deleted = sorted(set(before) - set(selection.files)) if request.delete else []
    changed = _rsync(remote, request, dest, selection.files, quiet=as_json)
    if not request.dry_run:
        _delete(remote, dest, deleted)
        _write_manifest(remote, dest, {*selection.files, *before} - set(deleted))
    if as_json:
        facts = {"dest": dest, "files": len(selection.files), "changed": changed, "deleted": deleted}
        say_json({**facts, "left_out": list(selection.secrets), "dry_run": request.dry_run})
        return
    for name in selection.secrets:
        warn(f"yard: {name} was not sent, because it looks like a secret; --with-secrets sends it")
    for name in deleted:
        say(f"{'would delete' if request.dry_run else 'deleted'} {name}")
    head = remote.stack.cluster.head.name
    would = "would be" if request.dry_run else "are"
    say(f"{len(selection.files)} files of {request.source} {would} at {head}:{dest}, {len(changed)} of them sent now")


def _dest(remote: Remote, request: SyncRequest) -> str:
    shared = remote.stack.files_path
    if request.dest is None:
        return f"{shared}/{request.source.resolve().name or 'root'}"
    return request.dest if request.dest.startswith("/") else f"{shared}/{request.dest}"


def source_name(source: Path) -> str:
    """Return the text of the directory's marker."""
    return f"{getpass.getuser()}@{socket.gethostname()}:{source.resolve()}"


def _prepare(remote: Remote, dest: str, request: SyncRequest) -> list[str]:
    """Create the folder and its marker, except in a dry run. Returns the files that earlier syncs have sent.

    The marker is written before the first file, so that an interrupted sync can be repeated. Raises SyncError if the
    destination contains a copy of a different directory.
    """
    mine = source_name(request.source)
    folder, marker = shlex.quote(dest), shlex.quote(f"{dest}/{MARKER}")
    lines = [
        "set -e",
        "command -v rsync >/dev/null || { echo 'rsync is missing on the head; install it there' >&2; exit 1; }",
        *([] if request.dry_run else [f"mkdir -p {folder}"]),
        f"there=$(cat {marker} 2>/dev/null || true)",
        f'[ -n "$there" ] || [ -z "$(ls -A {folder} 2>/dev/null | head -n 1)" ] || there={shlex.quote(_NO_MARKER)}',
    ]
    if not request.dry_run:
        write = f"printf '%s\\n' {shlex.quote(mine)} >{marker}"
        # With `set -C`, this fails if another sync creates the marker at the same time.
        first = f'[ -n "$there" ] || {{ (set -C; {write}) 2>/dev/null || true; there=$(cat {marker}); }}'
        lines.append(f"{write}; there=$(cat {marker})" if request.take_over else first)
    lines.append(f"printf '%s\\0' \"$there\"; cat {folder}/{MANIFEST} 2>/dev/null || true")
    there, *sent = remote.run("\n".join(lines)).split("\0")
    if there not in {"", mine} and not request.take_over:
        content = "files that `yard sync` did not send" if there == _NO_MARKER else f"a copy of {there}, not of {mine}"
        fix = "specify a different destination (`yard sync DIR DEST`), or replace its files with --take-over"
        raise SyncError(f"{dest} contains {content}: nothing was sent; {fix}")
    return [name for name in sent if name]


def _rsync(remote: Remote, request: SyncRequest, dest: str, files: Sequence[str], *, quiet: bool) -> list[str]:
    shell = f"ssh -F {shlex.quote(str(remote.stack.ssh_config))}"
    options = ["--archive", "--no-owner", "--no-group", "--compress", "--partial", "--from0", "--files-from=-"]
    options += ["--dry-run"] if request.dry_run else []
    argv = ["rsync", *options, "--out-format=%i %n", "-e", shell, f"{request.source}/", f"{remote.host(None)}:{dest}/"]
    with tempfile.TemporaryFile() as names:
        names.write(_joined(files))
        names.seek(0)
        try:
            process = subprocess.Popen(argv, stdin=names, stdout=subprocess.PIPE)
        except FileNotFoundError:
            raise SyncError("rsync is missing on this machine; " + INSTALL.format(tool="rsync")) from None
    changed = []
    with process:
        for line in process.stdout or ():
            mark, _, name = os.fsdecode(line.rstrip(b"\n")).partition(" ")
            if mark.startswith(("<", "c")) and not name.endswith("/"):
                changed.append(name)
                if not quiet:
                    say(name)
    if process.returncode:
        raise SyncError(f"rsync failed with exit code {process.returncode}; run the same command again to continue")
    return changed


def _delete(remote: Remote, dest: str, names: Sequence[str]) -> None:
    """Remove the files, and then their folders if they are empty, beginning with the deepest folder."""
    folders = sorted({str(path) for name in names for path in Path(name).parents} - {"."}, key=len, reverse=True)
    remove_folders = "{ xargs -0 rmdir --ignore-fail-on-non-empty -- 2>/dev/null || true; }"
    for paths, command in ((names, "xargs -0 rm -f --"), (folders, remove_folders)):
        if paths:
            remote.run(f"cd {shlex.quote(dest)} && {command}", stdin=_joined(paths), seconds=_SECONDS)


def _write_manifest(remote: Remote, dest: str, names: Iterable[str]) -> None:
    command = f"cd {shlex.quote(dest)} && cat >{MANIFEST}.new && mv {MANIFEST}.new {MANIFEST}"
    remote.run(command, stdin=_joined(sorted(names)), seconds=_SECONDS)


def _joined(names: Sequence[str]) -> bytes:
    return "".join(f"{name}\0" for name in names).encode(errors="surrogateescape")
