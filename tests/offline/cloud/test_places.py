"""The simulated clouds refuse regions and zones that the real ones do not have."""

from __future__ import annotations

import pytest

from offline.cloud.places import azure_refusal, gcp_refusal
from tests.offline.cloud.stack import TestStack


@pytest.mark.parametrize("location", ["", "eastus", "South Central US", "global"])
def test_a_location_of_azure_is_accepted(location: str) -> None:
    assert azure_refusal(location) == ""


@pytest.mark.parametrize("zone", ["", "us-central1-f", "projects/p/zones/europe-west4-a"])
def test_a_zone_of_google_is_accepted(zone: str) -> None:
    assert gcp_refusal(zone) == ""


@pytest.mark.engine
@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            'made("azure-native:resources:ResourceGroup", "group", resourceGroupName="g", location="mars")',
            "The provided location 'mars' is not available",
        ),
        (
            'made("gcp:compute/disk:Disk", "disk", name="disk", zone="us-central1-d", size=10)',
            "Invalid value for field 'zone': 'us-central1-d'",
        ),
    ],
)
def test_an_unknown_place_is_refused(stack: TestStack, program: str, words: str) -> None:
    stack.write(program, raw=True)
    run = stack.up()
    assert run.code != 0
    assert words in run.text, run
    assert stack.kinds == []
