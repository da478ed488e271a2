"""Check a resource's inputs against the description of its type in the SDK."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from offline.cloud.sdk import ANYTHING, Kind, ListOf, MapOf, Named, OneOf, Scalar, Sdk, Shape
from offline.protocol import Failure
from offline.values import ARCHIVE, ASSET, Value, bare, is_unknown, signature

_MOST_NAMES = 12
_IN_WORDS = {
    "string": "a string",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "file": "an asset or archive",
}


class Checker:
    """Checks a resource type's inputs. `folder` is Described.folder, and `values` is Rules.values."""

    def __init__(self, sdk: Sdk, folder: Path, values: Mapping[str, Sequence[str]]) -> None:
        self._sdk = sdk
        self._folder = folder
        self._values = values

    def object(self, shape: Shape, given: dict[str, Value], path: str = "") -> Iterator[Failure]:
        """Yield the problems in an object's properties. `path` is the object's path, or "" for a resource's inputs."""
        prefix = f"{path}." if path else ""
        for name, value in given.items():
            if name.startswith("__") or (not path and name == "version"):
                continue  # Pulumi adds these properties
            if name not in shape:
                yield Failure(f"{prefix}{name}", f"unknown property. Fix: {_nearest_property(name, shape)}")
                continue
            found = list(self._value(shape[name].kind, value, f"{prefix}{name}"))
            yield from found or _outside(shape[name].choices, value, f"{prefix}{name}")
        for name, described in shape.items():
            if described.required and bare(given.get(name)) is None:
                yield Failure(f"{prefix}{name}", f"is required. Fix: set {described.python}")

    def _value(self, kind: Kind, value: Value, path: str) -> Iterator[Failure]:
        value = bare(value)
        if value is None or is_unknown(value) or kind == ANYTHING:
            return
        match kind:
            case Scalar():
                if not _fits(kind.name, value):
                    yield Failure(path, f"must be {_IN_WORDS[kind.name]}, but is {_described(value)}")
            case ListOf():
                if not isinstance(value, list):
                    yield Failure(path, f"must be a list, but is {_described(value)}")
                    return
                for index, item in enumerate(value):
                    yield from self._value(kind.item, item, f"{path}[{index}]")
            case MapOf():
                if not isinstance(value, dict) or signature(value):
                    yield Failure(path, f"must be a map, but is {_described(value)}")
                    return
                for key, item in value.items():
                    yield from self._value(kind.item, item, f'{path}["{key}"]')
            case OneOf():
                yield from self._one_of(kind.kinds, value, path)
            case Named():
                yield from self._named(kind, value, path)

    def _one_of(self, kinds: Sequence[Kind], value: Value, path: str) -> Iterator[Failure]:
        enums = [values for kind in kinds if isinstance(kind, Named) and (values := self._enum(kind))]
        if enums and isinstance(value, str):
            yield from _outside([choice for values in enums for choice in values], value, path, any_case=True)
            return
        tried = [list(self._value(kind, value, path)) for kind in kinds]
        # The type with the most deeply nested problem is probably the intended one.
        yield from max(tried, key=lambda found: max(one.property.count(".") for one in found)) if all(tried) else ()

    def _named(self, kind: Named, value: Value, path: str) -> Iterator[Failure]:
        shape = self._sdk.input_shape(self._folder, kind)
        if shape is None:
            yield from _outside(self._enum(kind) or (), value, path)
        elif isinstance(value, dict) and not signature(value):
            yield from self.object(shape, value, path)
        else:
            yield Failure(path, f"must be an object ({kind.name}), but is {_described(value)}")

    def _enum(self, kind: Named) -> tuple[str, ...] | None:
        listed, more = self._sdk.enum(self._folder, kind), self._values.get(kind.name)
        if listed is None or more is None:
            return listed
        return (*listed, *more) if more else None


def _fits(name: str, value: Value) -> bool:
    if name == "string":
        return isinstance(value, str)
    if name == "boolean":
        return isinstance(value, bool)
    if name == "file":
        return signature(value) in (ASSET, ARCHIVE)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return name == "number" or value == int(value)


def _described(value: Value) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"the number {value:g}"
        case str():
            return f'the text "{value[:40]}"'
        case list():
            return "a list"
    return "a file" if signature(value) else "an object"


def _outside(choices: Iterable[str], value: Value, path: str, *, any_case: bool = False) -> Iterator[Failure]:
    """Yield a failure for each value or list item that is not in `choices`. Without choices, every value is allowed."""
    value, folded = bare(value), {choice.lower(): choice for choice in choices}
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _outside(folded.values(), item, f"{path}[{index}]", any_case=any_case)
        return
    text = str(value)
    known = folded.get(text.lower())
    if not folded or value is None or is_unknown(value) or known == text or (known and any_case):
        return
    near = get_close_matches(text.lower(), folded, 1)
    fix = f'write "{folded[near[0]]}"' if near else "use one of them"
    yield Failure(path, f'"{text}" is not one of {", ".join(folded.values())}. Fix: {fix}')


def _nearest_property(name: str, shape: Shape) -> str:
    spelled = {spelling.lower(): found for found in shape.values() for spelling in (found.python, found.name)}
    near = get_close_matches(name.lower(), spelled, 1, cutoff=0.6)
    if near:
        found = spelled[near[0]]
        return f"write {found.name}" + (f" ({found.python} in Python)" if found.python != found.name else "")
    names = sorted(shape)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"remove it, or use one of {', '.join(names[:_MOST_NAMES])}{more}"
