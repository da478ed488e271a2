"""Prices from a server on this machine that answers as the vendors document, and as bad days have it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from components.catalog import prices
from jobs.cli import app
from jobs.prices import command, gcp
from jobs.prices.command import FILE, update
from jobs.prices.web import PriceError, Web
from tests.jobs.prices.conftest import Server


def meter(name: str, price: float, **other: Any) -> dict[str, Any]:
    """One item of the Retail Prices API, with the fields that it documents."""
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": price,
        "unitPrice": price,
        "armRegionName": "eastus",
        "location": "US East",
        "meterName": name.removeprefix("Standard_").replace("_", " "),
        "productName": "Virtual Machines Series",
        "skuName": name.removeprefix("Standard_").replace("_", " "),
        "serviceName": "Virtual Machines",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "isPrimaryMeterRegion": True,
        "armSkuName": name,
    } | other


def asked_for(url: str) -> str:
    """The machine type in a query's filter."""
    return parse_qs(urlsplit(url).query)["$filter"][0].rpartition("armSkuName eq '")[2].rstrip("'")


def retail(url: str, headers: dict[str, str]) -> tuple[int, Any]:
    name = asked_for(url)
    items = [
        meter(name, 9.5),
        meter(name, 18.0, productName="Virtual Machines Series Windows"),
        meter(name, 2.0, skuName="x Spot", meterName="x Spot"),
        meter(name, 1.9, meterName="x Low Priority"),
        meter(name, 50_000.0, type="Reservation"),
        meter(name, 8.0, armRegionName="westus"),
        meter(name, 7.0, currencyCode="EUR"),
        meter(f"{name}_other", 6.0),
    ]
    return 200, {"BillingCurrency": "USD", "Items": items, "NextPageLink": None, "Count": len(items)}


def test_only_linux_on_demand_counts(server: Server, file: Path) -> None:
    server.answer = retail
    before = prices("azure")
    fates = update(["azure"], file)["azure"]
    assert {fate.after for fate in fates} == {9.5}
    assert {asked_for(url) for url in server.asked} == {fate.machine for fate in fates}
    text = file.read_text()
    assert text.startswith(FILE.read_text().partition("\nazure:")[0])
    assert '  Standard_D16s_v5: {usd_per_hour: 9.5, region: eastus, source: "Azure Retail Prices API", dated: "' in text
    rows = command._read(text)
    assert rows["gcp"] == prices("gcp")
    assert set(before) < set(rows["azure"])


def test_pages_are_followed_and_may_lead_nowhere_else(server: Server, file: Path) -> None:
    def paged(url: str, headers: dict[str, str]) -> tuple[int, Any]:
        if "skip" in url:
            return 200, {"Items": [meter(asked_for(url), 4.25)], "NextPageLink": None}
        return 200, {"Items": [], "NextPageLink": f"{server.url}{url}&$skip=100"}

    server.answer = paged
    assert {fate.after for fate in update(["azure"], file)["azure"]} == {4.25}
    before = file.read_text()
    server.answer = lambda url, headers: (200, {"Items": [], "NextPageLink": "http://127.0.0.1:1/elsewhere"})
    with pytest.raises(PriceError, match=r"sends us on to http://127\.0\.0\.1:1"):
        update(["azure"], file)
    server.answer = lambda url, headers: (200, {"Items": [], "NextPageLink": f"{server.url}{url}"})
    with pytest.raises(PriceError, match="have no end"):
        update(["azure"], file)
    assert file.read_text() == before


def test_what_the_list_does_not_have_stays_as_it_is(server: Server, file: Path) -> None:
    def poor(url: str, headers: dict[str, str]) -> tuple[int, Any]:
        name = asked_for(url)
        several = [meter(name, 1.0), meter(name, 2.0)] if name == "Standard_ND40rs_v2" else []
        return 200, {"Items": several, "NextPageLink": ""}

    server.answer = poor
    fates = {fate.machine: fate for fate in update(["azure"], file)["azure"]}
    assert fates["Standard_ND40rs_v2"].kept == "the list has several prices: 1, 2"
    assert fates["Standard_D8s_v5"].kept == "the list has no price for it"
    assert command._read(file.read_text()) == command._read(FILE.read_text())


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(server: Server, file: Path, status: int) -> None:
    def busy(url: str, headers: dict[str, str]) -> tuple[int, Any]:
        return retail(url, headers) if len(server.asked) % 3 == 0 else (status, b"busy")

    server.answer = busy
    assert {fate.after for fate in update(["azure"], file)["azure"]} == {9.5}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((500, b"broken"), "HTTP status 500"),
        ((403, b"no"), "HTTP status 403"),
        ((200, b"<html>"), "not JSON"),
        ((200, []), "not an object"),
        ((200, {"Error": "x"}), "has no Items"),
        ((200, {"Items": [3]}), "unknown form"),
        ((200, {"Items": [meter("Standard_D8s_v5", 1.0) | {"retailPrice": "much"}]}), "unknown form"),
        ((206, b'{"Items": []'), "IncompleteRead"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_half_an_answer_leaves_the_file(server: Server, file: Path, answer: tuple[int, Any], words: str) -> None:
    def later(url: str, headers: dict[str, str]) -> tuple[int, Any]:
        # The first type is answered well: what is known then must not be written either.
        return retail(url, headers) if asked_for(url) != "Standard_D8s_v5" else answer

    server.answer = later
    before = file.read_text()
    with pytest.raises(PriceError, match=words):
        update(["azure"], file)
    assert file.read_text() == before
    assert [path.name for path in file.parent.iterdir()] == ["prices.yaml"]


def test_a_silent_server_is_given_up(server: Server, file: Path) -> None:
    stop = threading.Event()

    def silent(url: str, headers: dict[str, str]) -> tuple[int, Any]:
        stop.wait(5)
        return 200, {}

    server.answer = silent
    web = Web(server.url, pause=lambda seconds: None, seconds=0.02)
    with pytest.raises(PriceError, match="timed out"):
        web(f"{server.url}/")
    stop.set()
    assert len(server.asked) == 5


def sku(description: str, units: str, nanos: int, **other: Any) -> dict[str, Any]:
    """One SKU of the Cloud Billing Catalog, with the fields that it documents."""
    rate = {"startUsageAmount": 0, "unitPrice": {"currencyCode": "USD", "units": units, "nanos": nanos}}
    unit = "GiBy.h" if " Ram " in description else "h"
    return {
        "name": "services/6F81-5844-456A/skus/AAAA",
        "description": description,
        "category": {"resourceFamily": "Compute", "usageType": "OnDemand"},
        "serviceRegions": ["us-central1"],
        "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": [rate]}}],
    } | other


SKUS = [
    sku("A2 Instance Core running in Americas", "0", 31611000),
    sku("A2 Instance Ram running in Americas", "0", 4237000),
    sku("Nvidia Tesla A100 GPU running in Americas", "2", 933908000),
    sku("Nvidia Tesla A100 GPU attached to Spot Preemptible VMs running in Americas", "0", 880000000),
    sku("A2 Instance Core running in Tokyo", "9", 0, serviceRegions=["asia-northeast1"]),
    sku("A2 Instance Core running in Americas", "0", 1, category={"usageType": "Preemptible"}),
    sku("N2 Instance Core running in Americas", "0", 31611000),
]


def test_a_gcp_machine_is_the_sum_of_its_parts(server: Server, file: Path) -> None:
    def catalog(url: str, headers: dict[str, str]) -> tuple[int, Any]:
        if "pageToken=second" in url:
            return 200, {"skus": SKUS[3:], "nextPageToken": ""}
        return 200, {"skus": SKUS[:3], "nextPageToken": "second"}

    server.answer = catalog
    fates = {fate.machine: fate for fate in update(["gcp"], file)["gcp"]}
    # The list that the catalog was made from, which is another, has 29.39 and 55.74.
    assert fates["a2-highgpu-8g"].after == pytest.approx(29.39, abs=0.01)
    assert fates["a2-megagpu-16g"].after == pytest.approx(55.74, abs=0.01)
    for machine in ("n2-standard-8", "a2-ultragpu-8g", "a3-megagpu-8g"):
        assert fates[machine].kept
        assert fates[machine].after == fates[machine].before
    assert len(server.asked) == 2
    assert all(headers[gcp.KEY_HEADER] == "not-a-key" for headers in server.headers)
    assert "not-a-key" not in "".join(server.asked)


def test_google_is_not_asked_without_a_key(server: Server, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gcp.KEY)
    with pytest.raises(PriceError, match=f"put it into {gcp.KEY}"):
        update(["azure", "gcp"], file)
    assert server.asked == []


def test_the_commands(server: Server, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    rows = json.loads(runner.invoke(app, ["prices", "--json"]).stdout)
    assert {row["provider"] for row in rows} == {"azure", "gcp"}
    unknown = next(row for row in rows if row["machine"] == "n2-standard-8")
    assert unknown["usd_per_hour"] is None
    shown = runner.invoke(app, ["prices"]).stdout
    assert "unknown" in shown
    assert prices("gcp")["a2-highgpu-8g"].dated in shown
    server.answer = retail
    monkeypatch.setattr(command, "update", lambda providers: update(providers, file))
    assert "9.5" in runner.invoke(app, ["prices", "update", "--provider", "azure"]).stdout
    assert json.loads(runner.invoke(app, ["prices", "update", "--provider", "azure", "--json"]).stdout)["azure"]
    assert runner.invoke(app, ["prices", "update", "--provider", "aws"]).exit_code == 2
