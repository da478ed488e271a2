"""The clouds' lists of regions and zones, which are files in components/catalog."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from components.spec.explain import nearest
from trainyard.errors import CatalogError, RuleError
from trainyard.strict_yaml import load_own

_FOLDER = Path(__file__).parents[1] / "catalog"
_Date = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class Published(BaseModel):
    """A published list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    listed: _Date
    """The date on which the source was published."""
    dated: _Date
    """The date on which the source was read."""


class Places(Published):
    """A list of all regions or zones. Subclasses define `names`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all places."""
        raise NotImplementedError

    def in_all(self, lists: Iterable[Collection[str]]) -> tuple[str, ...]:
        """Return the names that are in all of the lists, or all names if there is no such name."""
        wanted = list(lists)
        return tuple(name for name in self.names if all(name in known for known in wanted)) or self.names

    def check(self, name: str, usable: Sequence[str], what: str, command: str, near: Sequence[str] = ()) -> str:
        """Return `name` if the list contains it. Otherwise, raise RuleError and suggest usable names.

        The message prefers the names in `near`. `command` prints all names.
        """
        if name in self.names:
            return name
        if near:
            fix = f"use one of {', '.join(near)}"
        elif meant := nearest(name, usable):
            fix = f"write {meant}"
        elif len(usable) < len(self.names):
            fix = f"use one of {', '.join(usable)}"
        else:
            fix = f"use a name that `{command}` prints"
        raise RuleError(f"must be {what} (list of {self.listed})", fix)


_Published = TypeVar("_Published", bound=Published)


def read_published(file: str, model: type[_Published]) -> _Published:
    """Read a list from a file in components/catalog. Raises CatalogError if the file does not match the model."""
    try:
        return model.model_validate(load_own((_FOLDER / file).read_text()))
    except ValidationError as error:
        raise CatalogError(f"components/catalog/{file}: {error}") from error
