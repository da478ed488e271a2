"""Converts JSON values to the types in the outputs contract."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from yard.contract.host_key import HOST_KEY


class Invalid(ValueError):
    """A value that the contract forbids."""

    def __init__(self, path: str, rule: str) -> None:
        super().__init__(f"{path} {rule}")


def read(kind: Any, value: Any, path: str = "") -> Any:
    """Return a JSON value as the type `kind`. Raises Invalid with the path of the first wrong value.

    Supported types: dataclasses, str, int, float, tuple[T, ...], Mapping[str, T], T | None and Annotated[T, check].
    """
    if is_dataclass(kind):
        return _dataclass(kind, value, path)
    if kind in _SCALARS:
        return _SCALARS[kind](value, path)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return None if value is None else read(arguments[0], value, path)
    if origin is Annotated:
        return arguments[1](read(arguments[0], value, path), path)
    if origin is tuple:
        _require(isinstance(value, list | tuple), path, "must be a list")
        return tuple(read(arguments[0], item, f"{path}.{index}") for index, item in enumerate(value))
    _require(isinstance(value, Mapping), path, "must be an object")
    return {key: read(arguments[1], item, f"{path}.{key}") for key, item in value.items()}


def _dataclass(kind: Any, value: Any, path: str) -> Any:
    _require(isinstance(value, Mapping), path or "cluster", "must be an object")
    types, prefix = _field_types(kind), f"{path}." if path else ""
    for unknown in sorted(value.keys() - types.keys()):
        raise Invalid(f"{prefix}{unknown}", "is not a field of the contract")
    values = {name: read(types[name], item, f"{prefix}{name}") for name, item in value.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise Invalid(path or "cluster", str(error).partition(") ")[2]) from error


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    types = get_type_hints(kind, include_extras=True)
    return {field.name: types[field.name] for field in fields(kind)}


def _string(value: Any, path: str) -> str:
    _require(isinstance(value, str), path, "must be a string")
    return str(value)


def _number(value: Any, path: str) -> float:
    _require(isinstance(value, int | float) and not isinstance(value, bool), path, "must be a number")
    return float(value)


def _integer(value: Any, path: str) -> int:
    """Return an integer. The engine writes integers as floats, such as 22.0."""
    valid = isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0
    _require(valid, path, "must be an integer")
    return int(value)


_SCALARS: dict[Any, Callable[[Any, str], Any]] = {str: _string, int: _integer, float: _number}


def _matches(pattern: str) -> Callable[[str, str], str]:
    """Return a check that the whole string matches a pattern."""

    def check(value: str, path: str) -> str:
        _require(bool(re.fullmatch(pattern, value)), path, f"must match {pattern}, not {value[:100]!r}")
        return value

    return check


def _port(value: int, path: str) -> int:
    _require(0 < value < 2**16, path, f"must be an integer from 1 to 65535, not {value}")
    return value


def _tunnel(words: tuple[str, ...], path: str) -> tuple[str, ...]:
    known = any(words[: len(program)] == program for program in _TUNNEL_PROGRAMS)
    one_port = sum(word.count("{port}") for word in words) == 1
    _require(
        known and one_port, path, "must be a command that opens a tunnel with Azure Bastion or Identity-Aware Proxy"
    )
    return words


def _require(valid: bool, path: str, rule: str) -> None:
    if not valid:
        raise Invalid(path, rule)


# These values are written to the SSH configuration. A line break or a leading hyphen would add an option.
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LOGIN = r"[a-z_][a-z0-9_-]{0,31}"
_Word = Annotated[str, _matches(r"[A-Za-z0-9./_:=-]{0,512}(?:\{port\})?")]
_TUNNEL_PROGRAMS = (("az", "network", "bastion", "tunnel"), ("gcloud", "compute", "start-iap-tunnel"))

Name = Annotated[str, _matches(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")]
Address = Annotated[str, _matches(_HOST)]
User = Annotated[str, _matches(_LOGIN)]
Port = Annotated[int, _port]
PrivateIp = Annotated[str, _matches(rf"{_OCTET}(?:\.{_OCTET}){{3}}")]
HostKey = Annotated[str, _matches(HOST_KEY.pattern)]
ProxyJump = Annotated[str, _matches(f"(?:{_LOGIN}@)?{_HOST}(?::[0-9]{{1,5}})?")]
Tunnel = Annotated[tuple[_Word, ...], _tunnel]
