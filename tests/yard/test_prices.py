"""The price list, and its update from documented and faulty responses of Azure's price API."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from http.client import IncompleteRead
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from components.catalog import machines, prices
from tests.yard.conftest import printed
from yard import prices as yard_prices
from yard.prices import FILE, URL, PriceError, update

Answer = Callable[[str], Any]
"""A function that returns the document for a URL. Documents of type bytes are returned unchanged, and others as JSON.
Errors are raised."""


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[str]]:
    """Return a function that answers requests with `answer`, and returns the list of requested URLs."""

    def answer_with(answer: Answer) -> list[str]:
        requested: list[str] = []

        def urlopen(url: str, timeout: float) -> io.BytesIO:
            requested.append(url)
            document = answer(url)
            if isinstance(document, Exception):
                raise document
            return io.BytesIO(document if isinstance(document, bytes) else json.dumps(document).encode())

        monkeypatch.setattr(yard_prices, "urlopen", urlopen)
        return requested

    return answer_with


@pytest.fixture
def file(tmp_path: Path) -> Path:
    copy = tmp_path / "prices.yaml"
    copy.write_text(FILE.read_text())
    return copy


def meter(name: str, price: float, **other: Any) -> dict[str, Any]:
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": price,
        "armRegionName": "eastus",
        "meterName": name.removeprefix("Standard_").replace("_", " "),
        "productName": "Virtual Machines Series",
        "skuName": name.removeprefix("Standard_").replace("_", " "),
        "serviceName": "Virtual Machines",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "armSkuName": name,
    } | other


def asked_for(url: str) -> str:
    return parse_qs(urlsplit(url).query)["$filter"][0].rpartition("armSkuName eq '")[2].rstrip("'")


def retail(url: str) -> Any:
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
    return {"BillingCurrency": "USD", "Items": items, "NextPageLink": None, "Count": len(items)}


def test_only_linux_on_demand_prices_are_used(serve: Any, file: Path) -> None:
    requested = serve(retail)
    changes = update(file)
    assert {change.after for change in changes} == {9.5}
    assert [asked_for(url) for url in requested] == [change.machine for change in changes] == list(machines("azure"))
    text = file.read_text()
    assert text.startswith(FILE.read_text().partition("\nazure:")[0])
    assert '  Standard_D16s_v5: {usd_per_hour: 9.5, region: eastus, source: "Azure Retail Prices API", dated: "' in text
    assert yaml.safe_load(text)["gcp"] == yaml.safe_load(FILE.read_text())["gcp"]


def test_links_to_pages_are_followed_on_the_same_server_only(serve: Any, file: Path) -> None:
    def paged(url: str) -> Any:
        if "skip" in url:
            return {"Items": [meter(asked_for(url), 4.25)], "NextPageLink": None}
        return {"Items": [], "NextPageLink": f"{url}&$skip=100"}

    serve(paged)
    assert {change.after for change in update(file)} == {4.25}
    before = file.read_text()
    serve(lambda url: {"Items": [], "NextPageLink": f"{URL}.example/x?"})
    with pytest.raises(PriceError, match="links to another address"):
        update(file)
    serve(lambda url: {"Items": [], "NextPageLink": url})
    with pytest.raises(PriceError, match="no last page"):
        update(file)
    assert file.read_text() == before


def test_missing_and_ambiguous_prices_keep_their_rows(serve: Any, file: Path) -> None:
    def poor(url: str) -> Any:
        name = asked_for(url)
        several = [meter(name, 1.0), meter(name, 2.0)] if name == "Standard_ND40rs_v2" else []
        return {"Items": several, "NextPageLink": ""}

    serve(poor)
    changes = {change.machine: change for change in update(file)}
    assert changes["Standard_ND40rs_v2"].kept == "the list contains several prices: 1, 2"
    assert changes["Standard_D8s_v5"].kept == "the list contains no price for this type"
    assert yaml.safe_load(file.read_text()) == yaml.safe_load(FILE.read_text())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (HTTPError(URL, 429, "Too Many Requests", {}, None), "429.* Fix: run the command again later"),  # type: ignore[arg-type]
        (TimeoutError("timed out"), "timed out"),
        (IncompleteRead(b"{"), "IncompleteRead"),
        (b"<html>", "unknown format"),
        ([], "unknown format"),
        ({"Error": "x"}, "unknown format: KeyError: 'Items'"),
        ({"Items": [3]}, "unknown format"),
        ({"Items": [meter("Standard_D8s_v5", 1.0) | {"retailPrice": "much"}]}, "unknown format"),
    ],
)
def test_a_faulty_response_leaves_the_file_unchanged(serve: Any, file: Path, answer: object, message: str) -> None:
    # The responses for the other types are valid, but their prices must not be written either.
    serve(lambda url: retail(url) if asked_for(url) != "Standard_D8s_v5" else answer)
    before = file.read_text()
    with pytest.raises(PriceError, match=message):
        update(file)
    assert file.read_text() == before
    assert [path.name for path in file.parent.iterdir()] == ["prices.yaml"]


def test_yard_prices_shows_and_updates_prices(serve: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = json.loads(printed("prices", "--json"))
    assert {row["provider"] for row in rows} == {"azure", "gcp"}
    assert next(row for row in rows if row["machine"] == "a4-highgpu-8g")["usd_per_hour"] is None
    assert any(row["spot_source"] for row in rows if row["spot_usd_per_hour"] is not None)
    shown = printed("prices")
    assert "unknown" in shown
    assert prices("gcp")["a2-highgpu-8g"].dated in shown
    serve(retail)
    monkeypatch.setattr(yard_prices, "update", lambda: update(file))
    assert "9.5" in printed("prices", "update")
    assert json.loads(printed("prices", "update", "--json"))[0]["after"] == 9.5
