"""The directory that is sent with a job, without files that git ignores and files that look like secrets."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import JobFileError, Problem, SyncError
from yard.stack.sync import select_files

MOST_FILES = 5000
MOST_MIB = 64
"""The directory is sent in one SSH session, and each job has its own copy."""
_MIB = 1024 * 1024
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A directory. `names` and `left_out` contain relative paths. Files that look like secrets are in `left_out`.

    `size` is in bytes.
    """

    folder: Path
    names: tuple[str, ...]
    left_out: tuple[str, ...]
    size: int


def one_file(path: Path) -> Tree:
    """Return a tree that contains only one file."""
    return Tree(folder=path.parent, names=(path.name,), left_out=(), size=path.stat().st_size)


def collect(file: str, folder: Path, always: Sequence[str] = ()) -> Tree:
    """Return the files of `folder`. The files in `always` are included even if git ignores them.

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
    """Add `folder` with the files to an archive. Only the owner can read them. Raises SyncError."""
    # This entry creates the folder for a tree without files, because the job enters the folder.
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
                # Without these values, a hard link would be stored as a link to another name of the file.
                entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
                with path.open("rb") as content:
                    archive.addfile(entry, content)
        except OSError as error:
            raise SyncError(f"{path} cannot be read ({error.strerror or error}); nothing was submitted") from error
