"""The simulated cloud's own memory: one small file per resource, in a folder per stack.

Every write is atomic, so a process killed at any moment leaves either the old or the new. No secret is written: in its
place stands a mark, and only the engine's state can put the value back.
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

ENVIRONMENT = "TRAINYARD_OFFLINE"
"""Environment variable: the folder that holds a folder per stack."""
_DEFAULT = Path(__file__).resolve().parents[2] / ".trainyard" / "offline" / "clouds"
_HIDDEN = "offline: secret, kept by Pulumi only"


@dataclass(frozen=True)
class Record:
    """One resource as the simulated cloud remembers it."""

    id: str
    token: str
    urn: str
    inputs: Properties
    outputs: Properties
    made_by: int = 0
    """Process id of the plugin that is still making it; 0 when it is finished."""
    uses: Sequence[str] = ()
    """Ids of the resources that its inputs refer to."""
    claims: Sequence[str] = ()
    """What nobody else may have: fixed addresses, each with its subnet."""


_read_before: dict[Path, tuple[tuple[int, int], Record]] = {}
"""Records by file, with time and inode of what each was read from: deleting a large stack asks for all, often."""


def base_folder() -> Path:
    """Return the folder of all stacks' simulated clouds."""
    return Path(os.environ.get(ENVIRONMENT) or _DEFAULT)


class World:
    """One stack's simulated clouds, all providers together."""

    def __init__(self, stack: str, base: Path | None = None) -> None:
        self.folder = (base or base_folder()) / stack
        self._resources = self.folder / "resources"
        self._links = self.folder / "links"
        self._gone = self.folder / "gone"
        self._counts = self.folder / "counts"

    def find(self, identity: str) -> Record | None:
        """Return the resource with this id. Ids are compared without case, as Azure does."""
        return _read(self._file(identity))

    def records(self) -> Iterator[Record]:
        """Yield every resource, in a stable order."""
        for file in sorted(self._resources.glob("*.json")):
            found = _read(file)
            if found:
                yield found

    def linked(self, key: str) -> Iterator[Record]:
        """Yield what uses or claims `key`, or lies inside the resource with that id: of thousands, not all are read."""
        for name in sorted(os.listdir(folder)) if (folder := self._links / _name(key)).is_dir() else ():
            found = _read(self._resources / f"{name}.json")
            # A link is made before its resource and outlives it in a killed run: the resource itself has the last word.
            if found and key.lower() in map(str.lower, self._keys(found)):
                yield found

    def put(self, record: Record) -> None:
        """Write a resource, new or changed, without the secrets in it."""
        self._resources.mkdir(parents=True, exist_ok=True)
        for key in self._keys(record):
            folder = self._links / _name(key)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _name(record.id)).touch()
        inputs, outputs = without_secrets(record.inputs), without_secrets(record.outputs)
        write_atomically(self._file(record.id), asdict(replace(record, inputs=inputs, outputs=outputs)))

    def remove(self, identity: str) -> None:
        """Forget a resource; nothing happens when there is none. Another one with its id will not be the same."""
        record = self.find(identity)
        if record is not None:
            self._gone.mkdir(parents=True, exist_ok=True)
            write_atomically(self._gone / _name(identity), self._times_gone(identity) + 1)
        self._file(identity).unlink(missing_ok=True)
        for key in self._keys(record) if record else ():
            (self._links / _name(key) / _name(identity)).unlink(missing_ok=True)

    def seed(self, identity: str) -> str:
        """Return what tells this resource from those of the same id that were there before it."""
        gone = self._times_gone(identity)
        return f"{identity} after {gone}" if gone else identity

    def _times_gone(self, identity: str) -> int:
        try:
            return int((self._gone / _name(identity)).read_text())
        except FileNotFoundError:
            return 0

    def count(self, key: str) -> int:
        """Return how often this was called with `key`, this call included."""
        file = self._counts / _name(key)
        with self.locked():
            self._counts.mkdir(parents=True, exist_ok=True)
            number = int(file.read_text()) + 1 if file.exists() else 1
            write_atomically(file, number)
        return number

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other plugins, in this process or another, out of what must not interleave."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _file(self, identity: str) -> Path:
        return self._resources / f"{_name(identity)}.json"

    def _keys(self, record: Record) -> set[str]:
        """Return what the resource is found under, besides its own id: what it uses and claims, and what it is in."""
        parts = record.id.split("/")
        around = ("/".join(parts[:end]) for end in range(2, len(parts)))
        return {*record.uses, *record.claims, *(one for one in around if self._file(one).exists())}


def _name(key: str) -> str:
    return hashlib.sha256(key.lower().encode()).hexdigest()[:24]


def write_atomically(file: Path, content: object) -> None:
    """Write JSON so that a reader, or the next run after a crash, finds it whole or not at all."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")
    with fresh.open("w") as target:
        json.dump(content, target, indent=1)
    fresh.replace(file)


def without_secrets(properties: Properties) -> Properties:
    """Return the properties with a mark in place of every secret."""
    return {name: _hidden(value) for name, value in properties.items()}


def with_secrets(seen: Properties, known: Properties) -> Properties:
    """Put the secrets of `known`, the engine's state, back where `seen` has marks."""
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
        version = (found.st_mtime_ns, found.st_ino)  # every write makes a new file
        before = _read_before.get(file)
        if before and before[0] == version:
            return before[1]
        record = Record(**json.loads(file.read_text()))
    except FileNotFoundError:
        return None
    _read_before[file] = (version, record)
    return record
