"""The simulated clouds reject unknown regions and zones."""

from __future__ import annotations

import pytest

from offline.cloud.places import azure_refusal, gcp_refusal
from tests.offline.cloud.stack import TestStack


@pytest.mark.parametrize("location", ["", "eastus", "South Central US", "global"])
def test_an_azure_region_is_accepted(location: str) -> None:
    assert azure_refusal(location) == ""


@pytest.mark.parametrize("zone", ["", "us-central1-f", "projects/p/zones/europe-west4-a"])
def test_a_google_zone_is_accepted(zone: str) -> None:
    assert gcp_refusal(zone) == ""


@pytest.mark.engine
@pytest.mark.parametrize(
    ("program", "message"),
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
def test_an_unknown_region_or_zone_is_refused(stack: TestStack, program: str, message: str) -> None:
    stack.write(program, raw=True)
    run = stack.up()
    assert run.code != 0
    assert message in run.text, run
    assert stack.kinds == []
