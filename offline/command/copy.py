"""Copy a file, a folder or a text to another machine: the resource CopyToRemote."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path, PurePosixPath

from offline.command.connection import connection
from offline.command.inputs import COPY_TO_REMOTE, check
from offline.command.link import Link, Links
from offline.command.sftp import Sftp
from offline.resources import Failure, Operation, ResourceError
from offline.values import ARCHIVE, ASSET, Properties, Value, bare, reveal, signature


class CopyToRemote:
    """Copies at creation, and again when the content or the path changes. Takes nothing away at deletion."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def check(self, inputs: Properties) -> tuple[Properties, Sequence[Failure]]:
        """See Resource."""
        checked, failures = check(COPY_TO_REMOTE, inputs)
        return checked, [*failures, *_source_failures(bare(inputs.get("source")))]

    def replaces(self, path: str) -> bool:
        """See Resource."""
        return path == "triggers" or path.startswith("triggers[")

    def preview(self, inputs: Properties) -> Properties:
        """See Resource."""
        return inputs

    def create(self, operation: Operation, inputs: Properties) -> Properties:
        """See Resource."""
        plain = {name: reveal(value) for name, value in inputs.items()}
        link = self._links.to(connection(plain.get("connection")))
        source, target = plain.get("source"), str(plain.get("remotePath"))
        with link.sessions, ExitStack() as stack:
            _copy(_sftp(link, operation, stack), source if isinstance(source, dict) else {}, target)
        return inputs

    def update(self, operation: Operation, state: Properties, inputs: Properties) -> Properties:
        """See Resource. A changed connection alone copies nothing, as with the official plugin."""
        if _content(state) == _content(inputs):
            return inputs
        return self.create(operation, inputs)

    def delete(self, operation: Operation, state: Properties) -> None:
        """See Resource."""

    def schema(self) -> Mapping[str, object]:
        """See Resource."""
        described = {name: {"$ref": "pulumi.json#/Any"} for name in COPY_TO_REMOTE}
        return {"inputProperties": described, "properties": described}


def _content(properties: Properties) -> tuple[Value, Value]:
    source = reveal(properties.get("source"))
    return source.get("hash") if isinstance(source, dict) else source, reveal(properties.get("remotePath"))


def _source_failures(source: Value) -> list[Failure]:
    if not isinstance(source, dict):
        return []
    if signature(source) == ASSET and not ("path" in source or "text" in source):
        return [Failure("source", "an asset must be a FileAsset or a StringAsset")]
    if signature(source) == ARCHIVE and not source.get("path"):
        return [Failure("source", "an archive must be a FileArchive: the path of a file or folder")]
    return []


def _sftp(link: Link, operation: Operation, stack: ExitStack) -> Sftp:
    """Start the server's sftp over two pipes; all of it ends with the stack, or when the deployment is cancelled."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    null = os.open(os.devnull, os.O_RDWR)
    to_server, from_server = os.fdopen(ours_out, "wb"), os.fdopen(ours_in, "rb")
    stack.callback(from_server.close)
    try:
        session = link.open(operation, "sftp", (theirs_in, theirs_out, null), subsystem=True)
    except BaseException:
        to_server.close()
        raise
    finally:
        for descriptor in (theirs_in, theirs_out, null):
            os.close(descriptor)
    stack.callback(session.close)
    stack.enter_context(operation.stop.calling(session.end))
    stack.callback(to_server.close)
    return Sftp(to_server, from_server)


def _copy(sftp: Sftp, source: Mapping[str, Value], target: str) -> None:
    text, path = source.get("text"), source.get("path")
    if not path:
        _copy_text(sftp, str(text or ""), target)
        return
    origin = Path(str(path))
    if not origin.exists():
        raise ResourceError(f"source: there is no {origin}. Fix: give the path of a file or folder")
    is_folder = sftp.is_folder(target)
    if origin.is_dir():
        _copy_into(sftp, origin, target, contents=str(path).endswith("/"))
    elif is_folder:
        _copy_file(sftp, origin, f"{target}/{origin.name}")
    else:
        if is_folder is None:
            _make_folders(sftp, str(PurePosixPath(target).parent))
        _copy_file(sftp, origin, target)


def _copy_text(sftp: Sftp, text: str, target: str) -> None:
    is_folder = sftp.is_folder(target)
    if is_folder:
        raise ResourceError(f"remotePath: {target} is a folder. Fix: give a file's path, since a text has no name")
    if is_folder is None:
        _make_folders(sftp, str(PurePosixPath(target).parent))
    sftp.write(target, BytesIO(text.encode()))


def _copy_into(sftp: Sftp, origin: Path, target: str, *, contents: bool) -> None:
    """Copy a folder's contents, or the folder under its own name, into `target`. Links are followed to files."""
    _make_folders(sftp, target)
    top = PurePosixPath(target) if contents else PurePosixPath(target, origin.name)
    for folder, names, files in os.walk(origin):
        names.sort()
        there = top / Path(folder).relative_to(origin).as_posix()
        _make_folders(sftp, str(there))
        for name in sorted(files):
            _copy_file(sftp, Path(folder, name), str(there / name))


def _make_folders(sftp: Sftp, path: str) -> None:
    """Create a folder and those above it, where they are missing. Raises ResourceError where one is a file."""
    is_folder = sftp.is_folder(path)
    if is_folder:
        return
    if is_folder is False:
        raise ResourceError(f"remote path {path} exists but is not a folder. Fix: remove it or give another remotePath")
    _make_folders(sftp, str(PurePosixPath(path).parent))
    sftp.make_folder(path)


def _copy_file(sftp: Sftp, origin: Path, target: str) -> None:
    with origin.open("rb") as source:
        sftp.write(target, source)
