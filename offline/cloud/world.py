"""The resources in the simulated clouds: one small file per resource, in one folder per stack.

Every write is atomic, so a killed process leaves either the old file or the new one. The files contain a marker in
place of each secret, because secrets belong only in the engine's state.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from offline.values import Properties, Value, is_secret
from trainyard.project import state

ENVIRONMENT = "TRAINYARD_OFFLINE"
"""Environment variable with the path of the folder that contains all stacks' folders."""
_DEFAULT = state() / "offline" / "clouds"
_HIDDEN = "offline: secret, in Pulumi's state only"


@dataclass(frozen=True)
class Record:
    id: str
    token: str
    urn: str
    inputs: Properties
    outputs: Properties
    made_by: int = 0
    """Process ID of the plugin that is creating the resource, or 0 once the resource is complete."""
    uses: Sequence[str] = ()
    """IDs of the resources to which the inputs refer."""
    claims: Sequence[str] = ()
    """Keys that no other resource is allowed to claim: one for each fixed address that this resource requests."""


_read_before: dict[Path, tuple[tuple[int, int], Record]] = {}
"""A cache that maps a file to its version (modification time and inode) and its record. Without this cache, destroying
a large stack would read each file many times."""


def base_folder() -> Path:
    """Return the folder that contains all stacks' simulated clouds."""
    return Path(os.environ.get(ENVIRONMENT) or _DEFAULT)


class World:
    """A stack's simulated clouds, which all its providers share."""

    def __init__(self, stack: str, base: Path | None = None) -> None:
        self.folder = (base or base_folder()) / stack
        self._resources = self.folder / "resources"
        self._links = self.folder / "links"
        self._counts = self.folder / "counts"

    def find(self, identity: str) -> Record | None:
        """Return the resource with this ID, or None. As in Azure, IDs are case-insensitive."""
        return _read(self._file(identity))

    def records(self) -> Iterator[Record]:
        """Yield all resources in a stable order."""
        for file in sorted(self._resources.glob("*.json")):
            found = _read(file)
            if found:
                yield found

    def linked(self, key: str) -> Iterator[Record]:
        """Yield the resources that use or claim `key` and, if `key` is a resource's ID, the resources inside it."""
        for name in sorted(os.listdir(folder)) if (folder := self._links / _name(key)).is_dir() else ():
            found = _read(self._resources / f"{name}.json")
            # A killed run can leave a link to a resource that does not have the key.
            if found and key.lower() in map(str.lower, self._keys(found)):
                yield found

    def put(self, record: Record) -> None:
        self._resources.mkdir(parents=True, exist_ok=True)
        for key in self._keys(record):
            folder = self._links / _name(key)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _name(record.id)).touch()
        inputs, outputs = without_secrets(record.inputs), without_secrets(record.outputs)
        _write(self._file(record.id), asdict(replace(record, inputs=inputs, outputs=outputs)))

    def remove(self, identity: str) -> None:
        """Remove a resource if it exists. The next resource with the same ID has a different seed."""
        record = self.find(identity)
        if record is None:
            return
        self._increase(_gone(identity))
        self._file(identity).unlink()
        for key in self._keys(record):
            (self._links / _name(key) / _name(identity)).unlink(missing_ok=True)

    def seed(self, identity: str) -> str:
        """Return a text that differs between successive resources with the same ID."""
        gone = self.counted(_gone(identity))
        return f"{identity} after {gone}" if gone else identity

    def count(self, key: str) -> int:
        """Return how often this method has been called with `key`, including this call."""
        with self.locked():
            return self._increase(key)

    def counted(self, key: str) -> int:
        """Return how often `count` has been called with `key`."""
        file = self._counts / _name(key)
        return int(file.read_text()) if file.exists() else 0

    def _increase(self, key: str) -> int:
        self._counts.mkdir(parents=True, exist_ok=True)
        number = self.counted(key) + 1
        _write(self._counts / _name(key), number)
        return number

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the stack's lock, which all plugins and processes share."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _file(self, identity: str) -> Path:
        return self._resources / f"{_name(identity)}.json"

    def _keys(self, record: Record) -> set[str]:
        """Return the keys that index a resource: `uses`, `claims`, and the IDs of the resources that contain it."""
        parts = record.id.split("/")
        around = ("/".join(parts[:end]) for end in range(2, len(parts)))
        return {*record.uses, *record.claims, *(one for one in around if self._file(one).exists())}


def _name(key: str) -> str:
    return hashlib.sha256(key.lower().encode()).hexdigest()[:24]


def _gone(identity: str) -> str:
    return f"gone {identity}"


def _write(file: Path, content: object) -> None:
    """Write JSON atomically: readers see either the old or the new content, even after a crash."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")
    with fresh.open("w") as target:
        json.dump(content, target, indent=1)
    fresh.replace(file)


def without_secrets(properties: Properties) -> Properties:
    """Return the properties with a marker in place of each secret."""
    return {name: _hidden(value) for name, value in properties.items()}


def with_secrets(seen: Properties, known: Properties) -> Properties:
    """Return `seen` with its markers replaced by the secrets at the same paths in `known`, the engine's state."""
    return {name: _shown(value, known.get(name)) for name, value in seen.items()}


def _hidden(value: Value) -> Value:
    if is_secret(value):
        return _HIDDEN
    if isinstance(value, dict):
        return without_secrets(value)
    return [_hidden(item) for item in value] if isinstance(value, list) else value


def _shown(value: Value, known: Value) -> Value:
    if value == _HIDDEN:
        return known
    if isinstance(value, dict):
        return with_secrets(value, known if isinstance(known, dict) else {})
    if isinstance(value, list):
        items = known if isinstance(known, list) else []
        return [_shown(item, items[index] if index < len(items) else None) for index, item in enumerate(value)]
    return value


def _read(file: Path) -> Record | None:
    try:
        found = file.stat()
        version = (found.st_mtime_ns, found.st_ino)  # every write creates a new file
        before = _read_before.get(file)
        if before and before[0] == version:
            return before[1]
        record = Record(**json.loads(file.read_text()))
    except FileNotFoundError:
        return None
    _read_before[file] = (version, record)
    return record
