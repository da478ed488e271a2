"""Price updates from a local server with documented and faulty responses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from components.catalog import prices
from yard import prices as yard_prices
from yard.commands.cli import app
from yard.prices import FILE, GCP_KEY, GCP_SOURCE, VENDORS, PriceError, client, update

Answer = Callable[[str, dict[str, str]], tuple[int, Any]]
"""A function that returns the status and the document for a path and headers. A document of type bytes is sent
unchanged; other documents are sent as JSON."""


class Server:
    """A server that responds with the result of `answer`, and records the path and headers of each request."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Answer = lambda url, headers: (200, {})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                outer.headers.append(dict(self.headers))
                status, document = outer.answer(self.path, dict(self.headers))
                body = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) + (9 if status == 206 else 0)))
                self.end_headers()
                with suppress(BrokenPipeError):  # the client may close the connection early
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Print no log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Return the server. The price modules use the server's URL."""
    made = Server()
    for name, vendor in VENDORS.items():
        path = urlsplit(vendor.url).path
        monkeypatch.setitem(VENDORS, name, replace(vendor, url=f"{made.url}{path}"))
    monkeypatch.setattr(yard_prices, "client", partial(client, pause=lambda seconds: None, seconds=2))
    monkeypatch.setenv(GCP_KEY, "not-a-key")
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a copy of the catalog's price file."""
    copy = tmp_path / "prices.yaml"
    copy.write_text(FILE.read_text())
    return copy


def meter(name: str, price: float, **other: Any) -> dict[str, Any]:
    """Return a Retail Prices API item with its documented fields."""
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
    """Return the machine type in a query filter."""
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


def test_only_linux_on_demand_prices_are_used(server: Server, file: Path) -> None:
    server.answer = retail
    before = prices("azure")
    changes = update(["azure"], file)["azure"]
    assert {change.after for change in changes} == {9.5}
    assert {asked_for(url) for url in server.requests} == {change.machine for change in changes}
    text = file.read_text()
    assert text.startswith(FILE.read_text().partition("\nazure:")[0])
    assert '  Standard_D16s_v5: {usd_per_hour: 9.5, region: eastus, source: "Azure Retail Prices API", dated: "' in text
    rows = yard_prices._read(text)
    assert rows["gcp"] == prices("gcp")
    assert set(before) < set(rows["azure"])


def test_links_to_pages_are_followed_on_the_same_origin_only(server: Server, file: Path) -> None:
    def paged(url: str, headers: dict[str, str]) -> tuple[int, Any]:
        if "skip" in url:
            return 200, {"Items": [meter(asked_for(url), 4.25)], "NextPageLink": None}
        return 200, {"Items": [], "NextPageLink": f"{server.url}{url}&$skip=100"}

    server.answer = paged
    assert {change.after for change in update(["azure"], file)["azure"]} == {4.25}
    before = file.read_text()
    server.answer = lambda url, headers: (200, {"Items": [], "NextPageLink": "http://127.0.0.1:1/elsewhere"})
    with pytest.raises(PriceError, match=r"links to another origin, http://127\.0\.0\.1:1"):
        update(["azure"], file)
    server.answer = lambda url, headers: (200, {"Items": [], "NextPageLink": f"{server.url}{url}"})
    with pytest.raises(PriceError, match="no last page"):
        update(["azure"], file)
    assert file.read_text() == before


def test_missing_and_ambiguous_prices_keep_their_rows(server: Server, file: Path) -> None:
    def poor(url: str, headers: dict[str, str]) -> tuple[int, Any]:
        name = asked_for(url)
        several = [meter(name, 1.0), meter(name, 2.0)] if name == "Standard_ND40rs_v2" else []
        return 200, {"Items": several, "NextPageLink": ""}

    server.answer = poor
    changes = {change.machine: change for change in update(["azure"], file)["azure"]}
    assert changes["Standard_ND40rs_v2"].kept == "the list contains several prices: 1, 2"
    assert changes["Standard_D8s_v5"].kept == "the list contains no price for this type"
    assert yard_prices._read(file.read_text()) == yard_prices._read(FILE.read_text())


@pytest.mark.parametrize("status", [429, 500, 503])
def test_requests_to_a_busy_server_are_repeated(server: Server, file: Path, status: int) -> None:
    def busy(url: str, headers: dict[str, str]) -> tuple[int, Any]:
        return retail(url, headers) if len(server.requests) % 3 == 0 else (status, b"busy")

    server.answer = busy
    assert {change.after for change in update(["azure"], file)["azure"]} == {9.5}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((500, b"broken"), "HTTP status 500"),
        ((403, b"no"), "HTTP status 403"),
        ((200, b"<html>"), "not JSON"),
        ((200, []), "not an object"),
        ((200, {"Error": "x"}), "has no Items"),
        ((200, {"Items": [3]}), "unknown format"),
        ((200, {"Items": [meter("Standard_D8s_v5", 1.0) | {"retailPrice": "much"}]}), "unknown format"),
        ((206, b'{"Items": []'), "IncompleteRead"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_faulty_response_leaves_the_file_unchanged(
    server: Server, file: Path, answer: tuple[int, Any], message: str
) -> None:
    def later(url: str, headers: dict[str, str]) -> tuple[int, Any]:
        # The responses for the other types are valid, but their prices must not be written either.
        return retail(url, headers) if asked_for(url) != "Standard_D8s_v5" else answer

    server.answer = later
    before = file.read_text()
    with pytest.raises(PriceError, match=message):
        update(["azure"], file)
    assert file.read_text() == before
    assert [path.name for path in file.parent.iterdir()] == ["prices.yaml"]


def test_a_server_without_response_times_out(server: Server, file: Path) -> None:
    stop = threading.Event()

    def silent(url: str, headers: dict[str, str]) -> tuple[int, Any]:
        stop.wait(5)
        return 200, {}

    server.answer = silent
    waits: list[float] = []
    web = client(server.url, {}, pause=waits.append, seconds=0.02)
    with pytest.raises(PriceError, match="timed out"):
        web(f"{server.url}/")
    stop.set()
    # A loaded server may not see every request before the client gives up, so the client's retries are counted.
    assert len(waits) == 4


def sku(description: str, units: str, nanos: int, **other: Any) -> dict[str, Any]:
    """Return a Cloud Billing Catalog SKU with its documented fields."""
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


def test_gcp_prices_are_the_sum_of_their_parts(server: Server, file: Path) -> None:
    def catalog(url: str, headers: dict[str, str]) -> tuple[int, Any]:
        if "pageToken=second" in url:
            return 200, {"skus": SKUS[3:], "nextPageToken": ""}
        return 200, {"skus": SKUS[:3], "nextPageToken": "second"}

    server.answer = catalog
    changes = {change.machine: change for change in update(["gcp"], file)["gcp"]}
    # The prices in the catalog, which another project calculated from the same API, are 29.3871 and 55.7395.
    assert changes["a2-highgpu-8g"].after == pytest.approx(29.39, abs=0.01)
    assert changes["a2-megagpu-16g"].after == pytest.approx(55.74, abs=0.01)
    for machine in ("n2-standard-8", "a2-ultragpu-8g", "a3-megagpu-8g"):
        assert changes[machine].kept
        assert changes[machine].after == changes[machine].before
    row, before = yard_prices._read(file.read_text())["gcp"]["a2-highgpu-8g"], prices("gcp")["a2-highgpu-8g"]
    assert row.source == GCP_SOURCE
    assert (row.spot_usd_per_hour, row.spot_source) == (before.spot_usd_per_hour, before.spot_source)
    assert len(server.requests) == 2
    assert all(headers["X-Goog-Api-Key"] == "not-a-key" for headers in server.headers)
    assert "not-a-key" not in "".join(server.requests)


def test_without_an_api_key_no_request_is_sent(server: Server, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GCP_KEY)
    with pytest.raises(PriceError, match=f"set {GCP_KEY}"):
        update(["azure", "gcp"], file)
    assert server.requests == []


def test_yard_prices_shows_and_updates_prices(server: Server, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    rows = json.loads(runner.invoke(app, ["prices", "--json"]).stdout)
    assert {row["provider"] for row in rows} == {"azure", "gcp"}
    unknown = next(row for row in rows if row["machine"] == "a4-highgpu-8g")
    assert unknown["usd_per_hour"] is None
    priced = [row for row in rows if row["spot_usd_per_hour"] is not None]
    assert priced
    assert all(row["spot_source"] for row in priced)
    shown = runner.invoke(app, ["prices"]).stdout
    assert "unknown" in shown
    assert prices("gcp")["a2-highgpu-8g"].dated in shown
    server.answer = retail
    monkeypatch.setattr(yard_prices, "update", lambda providers: update(providers, file))
    assert "9.5" in runner.invoke(app, ["prices", "update", "--provider", "azure"]).stdout
    assert json.loads(runner.invoke(app, ["prices", "update", "--provider", "azure", "--json"]).stdout)["azure"]
    assert runner.invoke(app, ["prices", "update", "--provider", "aws"]).exit_code == 2
