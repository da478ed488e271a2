"""Selects the files to send from a directory. Files that git ignores or that look like secrets are omitted."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from trainyard.errors import JobFileError, Problem, SyncError

SECRETS = (
    ".env", ".env.*", ".netrc", ".pypirc", "*.pem", "id_rsa", "id_ed25519", "id_ecdsa", "credentials.json", "*.p12",
)  # fmt: skip
_LARGEST_KEY_FILE = 256 * 1024
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:\\r|\\n|\s)+[A-Za-z0-9+/=]{40}")
"""A private key in PEM format. The line breaks can be escaped, as in a JSON string. A program that only mentions the
header does not match."""
_NO_SECRETS = ("*.example", "*.sample", "*.template")
MOST_FILES = 5000
MOST_MIB = 64
"""These limits exist because a directory is sent in one SSH session, and each job has its own copy."""
_MIB = 1024 * 1024
_SHOWN = 3
MANIFEST = ".yard-sync"
MARKER = ".yard-sync-source"
"""A file in the destination that names the copy's source as `user@host:directory`."""
INSTALL = "install it (`sudo apt install {tool}`)"


def looks_secret(name: str) -> bool:
    """Return whether files with this name usually contain keys or passwords."""
    base = name.rpartition("/")[2]
    return any(fnmatch(base, pattern) for pattern in SECRETS) and not any(fnmatch(base, p) for p in _NO_SECRETS)


def holds_private_key(path: Path) -> bool:
    """Return whether a small file contains a private key, as in stack outputs or a service account's key file."""
    try:
        is_small = path.is_file() and path.stat().st_size <= _LARGEST_KEY_FILE
        return is_small and _PRIVATE_KEY.search(path.read_bytes()) is not None
    except OSError:
        return False  # the error is reported when the file is sent


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The files to send from a directory, their size in bytes, and the files omitted because they look like secrets."""

    folder: Path
    names: tuple[str, ...]
    left_out: tuple[str, ...]
    size: int


def one_file(path: Path) -> Tree:
    """Return a tree that contains only one file."""
    return Tree(folder=path.parent, names=(path.name,), left_out=(), size=path.stat().st_size)


def collect(file: str, folder: Path, always: Sequence[str] = ()) -> Tree:
    """Return the files to send from `folder`. Files in `always` are sent even if git ignores them.

    Raises JobFileError for the job `file` if the directory is too large, and SyncError if git cannot list it.
    """
    selection = select_files(folder, with_secrets=False)
    names = tuple(sorted({*selection.files, *always}))
    sizes = {name: (folder / name).lstat().st_size for name in names}
    size = sum(sizes.values())
    fix = "list data in .gitignore, or copy it with `yard sync` and submit with --no-code"
    if len(names) > MOST_FILES:
        rule = f"{folder.resolve()} has {len(names)} files, and at most {MOST_FILES} files are sent with a job"
        raise JobFileError(file, [Problem(path="code", rule=rule, fix=fix)])
    if size > MOST_MIB * _MIB:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:_SHOWN]
        shown = ", ".join(f"{name} ({sizes[name] / _MIB:.0f} MiB)" for name in largest)
        rule = (
            f"{folder.resolve()} has {size / _MIB:.0f} MiB, and at most {MOST_MIB} MiB are sent with a job; "
            f"its largest files: {shown}"
        )
        raise JobFileError(file, [Problem(path="code", rule=rule, fix=fix)])
    left_out = tuple(name for name in selection.secrets if name not in always)
    return Tree(folder=folder, names=names, left_out=left_out, size=size)


def add(archive: tarfile.TarFile, tree: Tree, folder: str) -> None:
    """Add the files to an archive in `folder`. Only the owner can read the folder. Raises SyncError."""
    # The job enters the folder, so the folder must exist even if it is empty.
    place = tarfile.TarInfo(folder)
    place.type, place.mode = tarfile.DIRTYPE, 0o700
    archive.addfile(place)
    for name in tree.names:
        path = tree.folder / name
        try:
            entry = archive.gettarinfo(path, arcname=f"{folder}/{name}")
            entry.mode = 0o700 if entry.mode & 0o100 else 0o600
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            if entry.issym():
                archive.addfile(entry)
            elif path.is_file():
                # Otherwise, a hard link would be stored as a link to another name of the file.
                entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
                with path.open("rb") as content:
                    archive.addfile(entry, content)
        except OSError as error:
            raise SyncError(f"{path} cannot be read ({error.strerror or error}); nothing was submitted") from error


def digest(tree: Tree) -> str:
    """Return a hash of the files' names and contents. Files that cannot be read count as empty."""
    found = hashlib.sha256()
    for name in tree.names:
        path = tree.folder / name
        try:
            content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
        except OSError:
            content = b""
        found.update(os.fsencode(name) + b"\0" + hashlib.sha256(content).digest())
    return found.hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The relative paths of the files to send, and of the files omitted because they look like secrets."""

    files: tuple[str, ...]
    secrets: tuple[str, ...]


def select_files(source: Path, *, with_secrets: bool) -> Selection:
    """Return the files to send. Raises SyncError if git is missing, or if `source` is not a directory."""
    if not source.is_dir():
        raise SyncError(f"{source} is not a directory")
    listed = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    if _git(["rev-parse", "--is-inside-work-tree"], source).returncode == 0:
        done = _git(listed, source)
    else:
        with tempfile.TemporaryDirectory() as folder:
            # If the directory is in no repository, git applies ignore files only with an empty repository.
            _git(["init", "--quiet", "--bare", folder], source)
            done = _git([f"--git-dir={folder}", f"--work-tree={source.resolve()}", *listed], source)
    if done.returncode:
        raise SyncError(f"git cannot list {source}: {done.stderr.decode(errors='replace').strip()}")
    # git also lists deleted files and submodule folders.
    paths = ((name, source / name) for name in map(os.fsdecode, done.stdout.split(b"\0")) if name)
    names = [name for name, path in paths if path.is_symlink() or path.is_file()]
    secrets = [] if with_secrets else [name for name in names if looks_secret(name) or holds_private_key(source / name)]
    return Selection(files=tuple(sorted(set(names) - set(secrets) - {MANIFEST, MARKER})), secrets=tuple(secrets))


def _git(words: Sequence[str], where: Path) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", "-C", str(where), *words], capture_output=True, check=False)
    except FileNotFoundError:
        raise SyncError("git is missing on this machine; " + INSTALL.format(tool="git")) from None
