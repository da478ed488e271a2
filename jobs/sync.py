"""`yard sync`: a working directory to the cluster, by rsync. What git would not track stays here.

git itself says which files those are: rsync's own reading of .gitignore knows neither all of its patterns nor the
user's and the repository's own exclusions. A folder outside any repository is read the same way. Files that look like
secrets are left out, too, and named. A list of what was sent stays with the copy, so that `--delete` removes what an
earlier sync has brought and nothing else: checkpoints and logs that jobs wrote there are never its to remove.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import IO

from jobs.errors import SyncError
from jobs.remote import Remote
from jobs.show import say, say_json

MANIFEST = ".yard-sync"
SECRETS = (
    ".env", ".env.*", ".netrc", ".pypirc", "*.pem", "id_rsa", "id_ed25519", "id_ecdsa", "credentials.json", "*.p12",
)  # fmt: skip
_NO_SECRETS = ("*.example", "*.sample", "*.template")
_INSTALL = "install it (`sudo apt install {tool}`)"
_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class Order:
    """What shall be done. `dest` None: a folder of the directory's name below the shared path."""

    source: Path
    dest: str | None
    delete: bool
    dry_run: bool
    with_secrets: bool


@dataclass(frozen=True, kw_only=True)
class Cargo:
    """The files that travel, relative to the directory, and those left out for what they look like."""

    files: tuple[str, ...]
    secrets: tuple[str, ...]


def cargo(source: Path, *, with_secrets: bool) -> Cargo:
    """Return what there is to send. Raises SyncError without git, or when the directory is none."""
    if not source.is_dir():
        raise SyncError(f"{source} is no directory; name one that is")
    listed = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    inside = _git(["rev-parse", "--is-inside-work-tree"], source)
    if inside.returncode == 0:
        done = _git(listed, source)
    else:
        with tempfile.TemporaryDirectory() as folder:
            # An empty repository elsewhere: git then reads the ignore files of a directory that has none.
            _git(["init", "--quiet", "--bare", folder], source)
            done = _git([f"--git-dir={folder}", f"--work-tree={source.resolve()}", *listed], source)
    if done.returncode:
        raise SyncError(f"git cannot list {source}: {done.stderr.decode(errors='replace').strip()}")
    # What is tracked may be gone, and a submodule is a folder.
    names = [name for name in map(os.fsdecode, done.stdout.split(b"\0")) if name and _is_file(source / name)]
    secrets = [] if with_secrets else [name for name in names if looks_secret(name)]
    return Cargo(files=tuple(sorted(set(names) - set(secrets) - {MANIFEST})), secrets=tuple(secrets))


def looks_secret(name: str) -> bool:
    """Tell whether a file of this name usually holds keys or passwords."""
    base = name.rpartition("/")[2]
    return any(fnmatch(base, pattern) for pattern in SECRETS) and not any(fnmatch(base, p) for p in _NO_SECRETS)


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _git(words: Sequence[str], where: Path) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", "-C", str(where), *words], capture_output=True, check=False)
    except FileNotFoundError:
        raise SyncError("git is missing on this machine; " + _INSTALL.format(tool="git")) from None


def sync(remote: Remote, order: Order, as_json: bool) -> None:
    """Send the directory. Raises SyncError, and RemoteError when the head cannot be reached."""
    load = cargo(order.source, with_secrets=order.with_secrets)
    dest = _dest(remote, order)
    before = _prepare(remote, dest, order)
    gone = sorted(set(before) - set(load.files)) if order.delete else []
    changed = _rsync(remote, order, dest, load, quiet=as_json)
    if not order.dry_run:
        _finish(remote, dest, load, gone, keep=[] if order.delete else before)
    if as_json:
        facts = {"dest": dest, "files": len(load.files), "changed": changed, "deleted": gone}
        say_json({**facts, "left_out": list(load.secrets), "dry_run": order.dry_run})
        return
    for name in load.secrets:
        sys.stderr.write(f"yard: {name} was left out: it looks like a secret; --with-secrets sends it\n")
    for name in gone:
        say(f"{'would delete' if order.dry_run else 'deleted'} {name}")
    head = remote.stack.cluster.head.name
    would = "would be" if order.dry_run else "are"
    say(f"{len(load.files)} files of {order.source} {would} at {head}:{dest}, {len(changed)} of them sent now")


def _dest(remote: Remote, order: Order) -> str:
    shared = remote.stack.cluster.shared_path
    if order.dest is None:
        return f"{shared}/{order.source.resolve().name or 'root'}"
    return order.dest if order.dest.startswith("/") else f"{shared}/{order.dest}"


def _prepare(remote: Remote, dest: str, order: Order) -> list[str]:
    """Return what earlier syncs have brought there; makes the folder unless only asked what would be."""
    folder = shlex.quote(dest)
    make = "" if order.dry_run else f"mkdir -p {folder}; "
    need = "command -v rsync >/dev/null || { echo 'rsync is missing on the head; install it there' >&2; exit 1; }"
    said = remote.run(f"set -e; {need}; {make}cat {folder}/{MANIFEST} 2>/dev/null || true")
    return [name for name in said.split("\0") if name]


def _rsync(remote: Remote, order: Order, dest: str, load: Cargo, *, quiet: bool) -> list[str]:
    shell = f"ssh -F {shlex.quote(str(remote.stack.ssh_config))}"
    options = ["--archive", "--no-owner", "--no-group", "--compress", "--partial", "--from0", "--files-from=-"]
    options += ["--dry-run"] if order.dry_run else []
    argv = ["rsync", *options, "--out-format=%i %n", "-e", shell, f"{order.source}/", f"{remote.host(None)}:{dest}/"]
    names = b"".join(os.fsencode(name) + b"\0" for name in load.files)
    try:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except FileNotFoundError:
        raise SyncError("rsync is missing on this machine; " + _INSTALL.format(tool="rsync")) from None
    with process:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018  (PIPE above)
        threading.Thread(target=_feed, args=(process.stdin, names), daemon=True).start()
        changed = []
        for line in process.stdout:
            mark, _, name = os.fsdecode(line.rstrip(b"\n")).partition(" ")
            if mark.startswith(("<", "c")) and not name.endswith("/"):
                changed.append(name)
                if not quiet:
                    say(name)
    if process.returncode:
        raise SyncError(f"rsync stopped with exit code {process.returncode}; the same command goes on from there")
    return changed


def _feed(pipe: IO[bytes], names: bytes) -> None:
    with suppress(BrokenPipeError), pipe:
        pipe.write(names)


def _finish(remote: Remote, dest: str, load: Cargo, gone: Sequence[str], *, keep: Sequence[str]) -> None:
    """Remove what is gone, and write down what is there from here on."""
    names = sorted({*load.files, *keep})
    there = f"cd {shlex.quote(dest)}"
    if gone:
        remote.run(f"{there} && xargs -0 rm -f --", stdin=_joined(gone), seconds=_SECONDS)
        # Folders that are empty now go, too, from the innermost outwards.
        folders = sorted({str(path) for name in gone for path in Path(name).parents} - {"."}, key=len, reverse=True)
        if folders:
            line = "xargs -0 rmdir --ignore-fail-on-non-empty -- 2>/dev/null || true"
            remote.run(f"{there} && {{ {line}; }}", stdin=_joined(folders), seconds=_SECONDS)
    remote.run(
        f"{there} && cat >{MANIFEST}.new && mv {MANIFEST}.new {MANIFEST}", stdin=_joined(names), seconds=_SECONDS
    )


def _joined(names: Sequence[str]) -> bytes:
    return "".join(f"{name}\0" for name in names).encode(errors="surrogateescape")
