"""What the inputs of each resource may be: names, types, defaults and secrets as in the official plugin's schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from offline.resources import Failure
from offline.values import ARCHIVE, ASSET, Properties, Value, bare, is_secret, is_unknown, secret, signature

Shape: TypeAlias = Mapping[str, "Field"]


@dataclass(frozen=True)
class Field:
    """One property. `kind` is a key of _FITS; `shape` describes an object's own properties."""

    kind: str
    required: bool = False
    default: Value = None
    secret: bool = False
    choices: tuple[str, ...] = ()
    refused: str = ""
    """Why the stand-in does not take it, and what to do instead."""
    shape: Shape = field(default_factory=dict)


def _is_text(value: Value) -> bool:
    return isinstance(bare(value), str)


def _is_text_list(value: Value) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_text_map(value: Value) -> bool:
    return isinstance(value, dict) and not signature(value) and all(map(_is_text, value.values()))


_FITS: dict[str, Callable[[Value], bool]] = {
    "string": _is_text,
    "boolean": lambda value: isinstance(value, bool),
    "number": lambda value: isinstance(value, float | int) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, float | int) and not isinstance(value, bool) and value == int(value),
    "list": lambda value: isinstance(value, list),
    "list of strings": _is_text_list,
    "map of strings": _is_text_map,
    "object": lambda value: isinstance(value, dict) and not signature(value),
    "asset or archive": lambda value: signature(value) in (ASSET, ARCHIVE),
}

_KEYS_ONLY = (
    "the stand-in logs in with keys that need no password. "
    "Fix: give privateKey (not encrypted) or agentSocketPath, or install the official plugin"
)
_NO_FILES = "the stand-in returns no files. Fix: print what is wanted, or install the official plugin"

_ENDPOINT: Shape = {
    "host": Field("string", required=True),
    "user": Field("string", default="root"),
    "port": Field("number", default=22.0),
    "privateKey": Field("string", secret=True),
    "privateKeyPassword": Field("string", secret=True, refused=_KEYS_ONLY),
    "password": Field("string", secret=True, refused=_KEYS_ONLY),
    "agentSocketPath": Field("string"),
    "hostKey": Field("string"),
    "dialErrorLimit": Field("integer", default=10.0),
    "perDialTimeout": Field("integer", default=15.0),
}
_CONNECTION = Field(
    "object", required=True, secret=True, shape={**_ENDPOINT, "proxy": Field("object", shape=_ENDPOINT)}
)
_RUN: Shape = {
    "stdin": Field("string"),
    "logging": Field("string", choices=("stdout", "stderr", "stdoutAndStderr", "none")),
    "environment": Field("map of strings"),
    "addPreviousOutputInEnv": Field("boolean"),
}
_LIFE: Shape = {
    "triggers": Field("list"),
    "create": Field("string"),
    "update": Field("string"),
    "delete": Field("string"),
}
_PROCESS: Shape = {
    **_RUN,
    "interpreter": Field("list of strings"),
    "dir": Field("string"),
    "assetPaths": Field("list of strings", refused=_NO_FILES),
    "archivePaths": Field("list of strings", refused=_NO_FILES),
}
REMOTE_COMMAND: Shape = {**_LIFE, **_RUN, "connection": _CONNECTION}
LOCAL_COMMAND: Shape = {**_LIFE, **_PROCESS}
LOCAL_RUN: Shape = {**_PROCESS, "command": Field("string", required=True)}
COPY_TO_REMOTE: Shape = {
    "connection": _CONNECTION,
    "triggers": Field("list"),
    "source": Field("asset or archive", required=True),
    "remotePath": Field("string", required=True),
}


def check(shape: Shape, inputs: Properties) -> tuple[Properties, list[Failure]]:
    """Return the inputs with defaults and secret marks as the official plugin stores them, and every broken rule."""
    return _filled(shape, inputs), list(_broken(shape, inputs, ""))


def _filled(shape: Shape, inputs: Properties) -> Properties:
    filled = dict(inputs)
    for name, described in shape.items():
        value = inputs.get(name, described.default)
        if value is not None:
            filled[name] = _marked(described, value)
    return filled


def _marked(described: Field, value: Value) -> Value:
    plain = bare(value)
    if described.shape and isinstance(plain, dict):
        plain = _filled(described.shape, plain)
    return secret(plain) if described.secret or is_secret(value) else plain


def _broken(shape: Shape, inputs: Properties, prefix: str) -> Iterator[Failure]:
    for name in inputs:
        if name not in shape and name != "version" and not name.startswith("__"):
            yield Failure(prefix + name, f"no such property; there are {', '.join(sorted(shape))}")
    for name, described in shape.items():
        value = bare(inputs.get(name))
        if value is None and described.required:
            yield Failure(prefix + name, "must be given")
        elif value is not None:
            yield from _broken_value(described, value, prefix + name)


def _broken_value(described: Field, value: Value, path: str) -> Iterator[Failure]:
    if described.refused:
        yield Failure(path, described.refused)
    elif is_unknown(value):
        return
    elif not _FITS[described.kind](value):
        yield Failure(path, f"must be of type {described.kind}")
    elif described.choices and value not in described.choices:
        yield Failure(path, f"must be one of {', '.join(described.choices)}")
    elif described.shape and isinstance(value, dict):
        yield from _broken(described.shape, value, f"{path}.")
