"""The check that Azure still offers a stack's image."""

from __future__ import annotations

from typing import Any

import pytest

from components.catalog import images
from yard.quota.azure import withdrawn

AZURE = {"provider": "azure", "region": "eastus"}
PUBLISHER, OFFER, SKU, PINNED = str(images()["azure-ubuntu-24.04-hpc"].reference).split(":")
OTHERS = ["24.04.2026091001", "24.04.2026101001", "24.04.2026110101"]


def rows(versions: list[str], sku: str = SKU) -> list[dict[str, str]]:
    """Return rows in the format of `az vm image list --all --output json`."""
    return [{"offer": OFFER, "publisher": PUBLISHER, "sku": sku, "version": one} for one in versions]


@pytest.mark.parametrize(
    ("platform", "offered", "gone"),
    [
        ({}, rows([PINNED, *OTHERS]), False),
        ({}, rows(OTHERS), True),
        ({}, rows(OTHERS) + rows([PINNED], "2404-arm"), True),
        ({}, [], True),
        ({"image_version": OTHERS[0]}, rows(OTHERS), False),
        ({"image_version": "1.2.3"}, rows([PINNED]), True),
    ],
)
def test_an_image_version_must_be_offered(platform: dict[str, str], offered: list[Any], gone: bool) -> None:
    assert (withdrawn(AZURE | platform, lambda command: offered) is not None) is gone


def test_a_withdrawn_version_is_reported_with_newer_ones() -> None:
    problem = withdrawn(AZURE, lambda command: rows(["9.9.9", *reversed(OTHERS)]))
    assert problem is not None
    assert f"not offer version {PINNED} of the image microsoft-dsvm:ubuntu-hpc:2404 in eastus" in problem
    assert "Fix: set cluster.platform.image_version" in problem
    assert f"(newest: {', '.join(OTHERS)})" in problem


def test_a_custom_image_is_not_checked() -> None:
    def run(command: object) -> Any:
        raise AssertionError(command)

    own = "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/images/own"
    assert withdrawn(AZURE | {"custom_image": own}, run) is None
