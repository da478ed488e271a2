"""Changed user-data of existing machines, with the real engine and simulated clouds."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.components.platforms.living import PlatformStack, platform_stack

pytestmark = pytest.mark.engine


def _azure(inputs: Any) -> str:
    return base64.b64decode(inputs["osProfile"]["customData"]).decode()


def _gcp(inputs: Any) -> str:
    return str(inputs["metadata"]["user-data"])


def _azure_image(inputs: Any) -> str:
    return str(inputs["storageProfile"]["imageReference"]["version"])


def _gcp_image(inputs: Any) -> str:
    return str(inputs["bootDisk"]["initializeParams"]["image"]).rpartition("/")[2]


@dataclass(frozen=True)
class Cloud:
    """A simulated cloud. `other`: edits to the stack file that replace the workers. `image`: an edit that changes the
    image of the workers."""

    stack: str
    module: str
    kind: str
    read: Callable[[Any], str]
    read_image: Callable[[Any], str]
    workers: tuple[str, str]
    edits: dict[str, Any]
    other: dict[str, Any]
    image: dict[str, Any]


CLOUDS = {
    "azure": Cloud(
        stack="azure-a100",
        module="components.platforms.azure.platform",
        kind="AzurePlatform",
        read=_azure,
        read_image=_azure_image,
        workers=("opt-gpu-0", "opt-gpu-1"),
        edits={"limits": {}, "platform__protect_storage": False},
        other={"platform__boot_disk_gib": 512},
        image={"platform__image_version": "24.04.2026080101"},
    ),
    "gcp": Cloud(
        stack="gcp-a3-mega",
        module="components.platforms.gcp.platform",
        kind="GcpPlatform",
        read=_gcp,
        read_image=_gcp_image,
        workers=("mega-gpu-0", "mega-gpu-1"),
        edits={"limits": {}, "platform__protect_storage": False},
        other={"platform__boot_disk_type": "pd-balanced"},
        image={"platform__custom_image": "projects/p/global/images/own"},
    ),
}


class Births:
    """A stack whose machines exist, with user-data that begins with "first"."""

    def __init__(self, cloud: Cloud, folder: Path) -> None:
        self.cloud = cloud
        self.stack: PlatformStack = platform_stack(folder, cloud.module, cloud.kind)
        self.up("first")

    def up(self, word: str, *arguments: str, **edits: Any) -> str:
        """Run `pulumi up` with user-data that begins with this word. Return the output."""
        self.stack.put(self.cloud.stack, word=word, **self.cloud.edits, **edits)
        done = self.stack.up(*arguments)
        assert done.code == 0, done.text
        return done.text

    def words(self) -> list[str]:
        """Return the first word of each worker's user-data."""
        return [self.cloud.read(self.stack.record(name).inputs).split()[0] for name in self.cloud.workers]

    def images(self) -> list[str]:
        """Return the last part of the name of each worker's image."""
        return [self.cloud.read_image(self.stack.record(name).inputs) for name in self.cloud.workers]


@pytest.fixture(
    params=[pytest.param(name, marks=[] if name == "azure" else pytest.mark.full) for name in sorted(CLOUDS)]
)
def births(request: pytest.FixtureRequest, tmp_path: Path) -> Births:
    """A stack of each cloud. Skips the test if the Pulumi CLI is missing."""
    return Births(CLOUDS[request.param], tmp_path)


def test_changed_user_data_reaches_only_new_machines(births: Births) -> None:
    again = births.up("second")
    assert "unchanged" in again
    assert "to replace" not in again
    assert births.words() == ["first", "first"]

    # A replaced machine gets the new user-data, and the others are not replaced.
    births.up("second", "--replace", births.stack.record(births.cloud.workers[1]).urn)
    assert births.words() == ["first", "second"]
    assert "replaced" not in births.up("second")
    assert births.words() == ["first", "second"]

    # A machine that is replaced for another reason also gets the new user-data.
    births.up("third", **births.cloud.other)
    assert births.words() == ["third", "third"]

    # A changed identity replaces the machines.
    births.up("fourth", identity="two", **births.cloud.other)
    assert births.words() == ["fourth", "fourth"]


@pytest.mark.full
def test_a_changed_image_reaches_only_new_machines(births: Births) -> None:
    cloud, stack = births.cloud, births.stack
    old = births.images()[0]
    assert "to replace" not in births.up("first", **cloud.image)
    assert births.images() == [old, old]

    # A refresh reads the image from the cloud.
    births.up("first", "--refresh", **cloud.image)
    assert births.images() == [old, old]

    # A replaced machine gets the new image, and the others are not replaced.
    births.up("first", "--replace", stack.record(cloud.workers[1]).urn, **cloud.image)
    new = births.images()[1]
    assert births.images() == [old, new] != [old, old]
    births.up("first", **cloud.image)
    assert births.images() == [old, new]

    # A machine that is replaced for another reason also gets the new image.
    births.up("first", **cloud.image, **cloud.other)
    assert births.images() == [new, new]
