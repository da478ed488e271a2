"""The spec: defaults, names, networks, and descriptions in error messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from components.catalog import images
from components.platforms import PLATFORMS
from components.platforms.registry import platform_model
from components.spec.cluster import ClusterSpec, NetworkSpec
from components.spec.model import PlatformSpec
from components.stackfile.read import cluster_spec

MINIMAL = {
    "name": "yard",
    "platform": {"provider": "local"},
    "head": {"machine": "vm-head"},
    "nodes": {"gpu": {"machine": "vm-gpu2", "count": 2}},
}
PLATFORM_MODELS: list[type[PlatformSpec]] = [
    model for provider in PLATFORMS if (model := platform_model({"provider": provider})) is not None
]


def fields(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield all fields of a model and of its sections with their dotted paths."""
    for name, info in model.model_fields.items():
        yield f"{path}{name}", info
        annotation = info.annotation
        if get_origin(annotation) is dict:
            annotation = FieldInfo.from_annotation(get_args(annotation)[1]).annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from fields(annotation, f"{path}{name}.")


MODELS: list[type[BaseModel]] = [ClusterSpec, *PLATFORM_MODELS]
EVERY_FIELD = {f"{model.__module__}:{path}": info for model in MODELS for path, info in fields(model)}


def test_defaults() -> None:
    spec = cluster_spec(MINIMAL)
    assert (spec.scheduler, str(spec.network.cidr), spec.storage.shared.kind) == ("slurm", "10.77.0.0/20", "head_nfs")


def test_dump_and_validation_round_trip() -> None:
    spec = cluster_spec(MINIMAL)
    assert cluster_spec(spec.model_dump(mode="json")) == spec


def test_spec_is_frozen() -> None:
    spec = cluster_spec(MINIMAL)
    with pytest.raises(ValidationError, match="frozen"):
        spec.name = "other"


@pytest.mark.parametrize("name", ["a", "yard", "a1", "a-b", "abcdefghijklmnop"])
def test_accepts_valid_names(name: str) -> None:
    assert cluster_spec(MINIMAL | {"name": name}).name == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "1a", "a_b", "a.b", "abcdefghijklmnopq", "a\n", "ä"])
def test_refuses_invalid_names(name: str) -> None:
    with pytest.raises(ValidationError):
        cluster_spec(MINIMAL | {"name": name})


@pytest.mark.parametrize("cidr", ["10.0.0.0/12", "172.16.0.0/12", "192.168.4.0/24", "10.77.0.0/20"])
def test_accepts_private_networks(cidr: str) -> None:
    assert str(NetworkSpec.model_validate({"cidr": cidr}).cidr) == cidr


@pytest.mark.parametrize("cidr", ["127.0.0.0/16", "100.64.0.0/16", "192.0.2.0/24", "0.0.0.0/12", "172.32.0.0/16"])
def test_refuses_other_networks(cidr: str) -> None:
    with pytest.raises(ValidationError, match="private range"):
        NetworkSpec.model_validate({"cidr": cidr})


def test_each_field_has_an_example() -> None:
    for name, info in EVERY_FIELD.items():
        assert info.examples or info.default is not PydanticUndefined or get_args(info.annotation), name


@pytest.mark.parametrize("model", PLATFORM_MODELS)
def test_images_of_platforms_are_in_the_catalog(model: type[PlatformSpec]) -> None:
    choices = get_args(model.model_fields["image"].annotation)
    assert choices
    assert set(choices) <= set(images())
