"""Reads the definitions of environments: the folders in this package, and users' requirements files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trainyard.errors import EnvironmentFileError, Problem
from trainyard.strict_yaml import load_own

FOLDER = Path(__file__).parent
LOCK = "requirements.lock"
NO_ENVIRONMENT = "none"
"""The value of `environment` for a job without an environment."""
_FIX = "name a requirements file in pip's format"
_MAX_BYTES = 2_000_000

_PACKAGE = re.compile(r"(?m)^([A-Za-z0-9][\w.-]*)")
_LOCAL = re.compile(r"(-r|-c|-e|--requirement|--constraint|--editable)\b|[./~]|[\w.-]+(\[.*\])?\s*@\s*file:")
"""Matches a line in a requirements file that names a file or folder on this computer."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """An environment. `requirements` is the text of its requirements file.

    `python` is a version of Python ('3.10'), or empty for the head's python3. If `system_packages` is set, the
    environment also contains the distribution's packages. `source` lists packages without a wheel, which are installed
    last. `checkouts` are git repositories with the keys `name`, `url`, `commit` and, for Python packages, `install`.
    `own` is set if the requirements file belongs to the user. `base` is the path of the environment on the head to
    which the packages are added.
    """

    name: str
    requirements: str
    about: str = ""
    unverified: str | None = None
    python: str = ""
    system_packages: bool = False
    source: Sequence[str] = ()
    checkouts: Sequence[Mapping[str, Any]] = ()
    own: bool = False
    base: str = ""

    @property
    def hashed(self) -> bool:
        """Whether the requirements contain hashes. If one package has a hash, pip requires hashes for all packages."""
        return "--hash=" in self.requirements

    @property
    def packages(self) -> list[str]:
        """The packages' names. A package that is listed with several versions is named once."""
        return list(dict.fromkeys(name.lower() for name in _PACKAGE.findall(self.requirements)))

    @property
    def program(self) -> str:
        """The name of the Python program on the head."""
        return f"python{self.python or '3'}"

    @property
    def request(self) -> dict[str, Any]:
        """The request that build.py reads."""
        return {
            "name": self.name,
            "system_packages": self.system_packages,
            "source": list(self.source),
            "checkouts": [dict(checkout) for checkout in self.checkouts],
            "hashed": self.hashed,
            "locked": not self.own,
            "packages": len(self.packages),
            **({"base": self.base} if self.base else {}),
        }

    @cached_property
    def digest(self) -> str:
        """The SHA-256 hash of the request and the requirements."""
        return hashlib.sha256(f"{json.dumps(self.request, sort_keys=True)}\n{self.requirements}".encode()).hexdigest()


def environment_names() -> list[str]:
    """Return the names of the included environments."""
    return sorted(path.parent.name for path in FOLDER.glob("*/environment.yaml"))


def is_file(environment: str) -> bool:
    """Return whether `environment` is the path of a requirements file instead of a name."""
    return "/" in environment or Path(environment).suffix in {".txt", ".lock", ".in"}


def included(name: str) -> Definition:
    """Return the included environment `name`."""
    folder = FOLDER / name
    keys = load_own((folder / "environment.yaml").read_text())
    return Definition(name=name, requirements=(folder / LOCK).read_text(), **keys)


def own_file(path: Path) -> tuple[Definition | None, list[Problem]]:
    """Return the environment that a requirements file defines, or the problems in the file."""
    try:
        text = path.read_bytes()[: _MAX_BYTES + 1].decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        return None, [Problem(path="environment", rule=f"'{path}' cannot be read ({reason})", fix=_FIX)]
    if problems := list(_problems(path, text)):
        return None, problems
    name = re.sub(r"[^a-z0-9.]+", "-", path.stem.lower())[:40].strip("-.") or "own"
    return Definition(name=name, requirements=text, about=f"packages of {path.name}", own=True), []


def _unknown(name: str, path: str) -> Problem:
    fix = f"use {', '.join(environment_names())}, {NO_ENVIRONMENT}, or a requirements file such as ./requirements.txt"
    return Problem(path=path, rule=f"there is no environment '{name}'", fix=fix)


def definition_of(environment: str) -> Definition:
    """Return the environment for a name or for the path of a requirements file. Raises EnvironmentFileError."""
    if environment in environment_names():
        return included(environment)
    unknown = _unknown(environment, "environment")
    found, problems = own_file(Path(environment)) if is_file(environment) else (None, [unknown])
    if found is None:
        raise EnvironmentFileError(environment, problems)
    return found


def _problems(path: Path, text: str) -> Iterator[Problem]:
    if len(text) > _MAX_BYTES or not _PACKAGE.search(text):
        why = "names no package" if len(text) <= _MAX_BYTES else f"is larger than {_MAX_BYTES} bytes"
        yield Problem(path="environment", rule=f"'{path}' {why}", fix=_FIX)
    for number, line in enumerate(text.splitlines(), start=1):
        if _LOCAL.match(line.strip()):
            rule = f"line {number} names a local file or folder, which is not sent to the cluster"
            fix = "write the packages into one file, for example with `uv pip compile`; send code with `code`"
            yield Problem(path="environment", rule=rule, fix=fix)
        if re.search(r"://[^/@\s]+@", line):
            rule = f"line {number} contains a password, which would be readable on the cluster"
            yield Problem(path="environment", rule=rule, fix="write the address into the job user's pip.conf")


@dataclass(frozen=True, kw_only=True)
class ChosenEnvironment:
    """A job's environment: the name of an included environment, or the path of a requirements file."""

    name: str
    gpus_only: bool = False
    """Whether the job uses the nodes' own Python if the nodes have no GPUs."""


def environment_rule(value: Any) -> Iterator[Problem]:
    """Check the value of `environment`: NAME, FILE, none, or `{gpus: NAME}`."""
    name = value.get("gpus") if isinstance(value, dict) and set(value) == {"gpus"} else value
    if not isinstance(name, str) or not name:
        fix = "for example `environment: torch`, or `environment: {gpus: torch}` for nodes with GPUs only"
        yield Problem(path="", rule="must be an environment or a requirements file", fix=fix)
    elif not is_file(name) and name not in (*environment_names(), NO_ENVIRONMENT):
        yield _unknown(name, "")


def read_environment(value: Any) -> ChosenEnvironment | None:
    """Return the chosen environment, or None for `none`. The value must have passed `environment_rule`."""
    if value == NO_ENVIRONMENT:
        return None
    if isinstance(value, dict):
        return ChosenEnvironment(name=value["gpus"], gpus_only=True)
    return ChosenEnvironment(name=value)
