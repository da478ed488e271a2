"""Lists of regions and zones that the clouds publish, as files in components/catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trainyard.errors import CatalogError
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


_Published = TypeVar("_Published", bound=Published)


def read_published(file: str, model: type[_Published]) -> _Published:
    """Read a list from a file in components/catalog. Raises CatalogError if the file does not match the model."""
    try:
        return model.model_validate(load_own((_FOLDER / file).read_text()))
    except ValidationError as error:
        raise CatalogError(f"components/catalog/{file}: {error}") from error
