"""Throughput and prices of shared storage and gateways."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import yaml
from pydantic import ValidationError

from components.catalog import Machine, Price, images, machines, prices, service_prices, throughputs
from components.plan.check import Planned
from components.plan.plan import plan_cluster
from components.platforms import PLATFORMS
from components.platforms.demand import (
    firm_total,
    firm_usd,
    hourly_price,
    services,
    spot_priced,
    storage_mib_s,
    used_prices,
    used_sources,
)
from components.spec.cluster import ClusterSpec
from components.spec.model import machine_types
from components.stackfile.plan_checks import limit_is_effective, report_price, within_budget
from components.stackfile.read import cluster_spec
from tests.components.platforms.recording import stack_text


def spec_of(stack: str, **edits: object) -> ClusterSpec:
    return cluster_spec(yaml.safe_load(stack_text(stack, **edits))["config"]["trainyard:cluster"])


def planned(stack: str, known: Mapping[str, Machine] | None = None, **edits: object) -> Planned:
    spec = spec_of(stack, **edits)
    return Planned(plan=plan_cluster(spec, known or machine_types(spec.platform), images()[spec.platform.image]))


# Premium SSD: MicrosoftDocs/azure-docs at 1d25717f, disk-storage-premium-ssd-sizes.md; Dsv5: at 1a0fe16a,
# dv5-dsv5-series.md (290 MB/s uncached). The sources use MB/s, and the test uses MiB/s.
@pytest.mark.parametrize(
    ("stack", "shared", "expected"),
    [
        ("azure-a100", {"kind": "head_nfs", "size_gib": 1024}, 200e6 / 2**20),
        ("azure-a100", {"kind": "head_nfs", "size_gib": 1025}, 250e6 / 2**20),
        ("azure-a100", {"kind": "head_nfs", "size_gib": 8192}, 290e6 / 2**20),
        ("azure-a100", {"kind": "azure_files", "size_gib": 10240}, 1124),
        ("azure-a100", {"kind": "azure_files", "size_gib": 2200}, 16 * 20),
        ("azure-a100", {"kind": "azure_netapp", "size_gib": 5120}, 16 * 20),
        ("azure-h100", {"kind": "azure_netapp", "size_gib": 4096}, 256),
        ("gcp-a2", {"kind": "filestore", "size_gib": 10240}, 880),
        ("gcp-a3-mega", {"kind": "head_nfs", "size_gib": 1000}, 720),
        ("gcp-a3-mega", {"kind": "head_nfs", "size_gib": 4096}, 1200),
        ("local", {"kind": "head_nfs", "size_gib": 1024}, None),
        ("gcp-a2", {"kind": "external", "address": "10.0.0.9", "path": "/export"}, None),
    ],
)
def test_storage_throughput(stack: str, shared: dict[str, object], expected: float | None) -> None:
    assert storage_mib_s(planned(stack, storage__shared=shared).plan) == (
        None if expected is None else pytest.approx(expected)
    )


@pytest.mark.parametrize(
    ("stack", "shared", "per_month"),
    [
        ("azure-a100", {"kind": "head_nfs", "size_gib": 1024}, 135.17),
        ("azure-a100", {"kind": "head_nfs", "size_gib": 2048}, None),
        ("azure-h100", {"kind": "azure_netapp", "size_gib": 1025}, 2048 * 0.000403 * 730),
        ("gcp-a3-mega", {"kind": "head_nfs", "size_gib": 1000}, 1000 * 0.000233 * 730),
        ("gcp-a2", {"kind": "filestore", "size_gib": 10240}, 10240 * 0.000342 * 730),
    ],
)
def test_storage_price(stack: str, shared: dict[str, object], per_month: float | None) -> None:
    usd = services(planned(stack, storage__shared=shared).plan)[0].usd
    assert (None if usd is None else usd * 730) == (None if per_month is None else pytest.approx(per_month))


def test_only_azure_has_a_priced_gateway() -> None:
    assert [service.name for service in services(planned("azure-h100").plan)] == ["netapp-Premium", "bastion-standard"]
    assert [service.name for service in services(planned("gcp-a3-mega").plan)] == ["pd-ssd"]
    assert services(planned("local").plan) == ()


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_known_prices_have_a_date(provider: str) -> None:
    for row in service_prices(provider).values():
        known = row.usd_per_hour or row.usd_per_gib_hour or row.usd_per_month_of_size
        assert bool(known) == bool(row.priced)


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_throughputs_are_of_storages_or_machines(provider: str) -> None:
    assert set(throughputs(provider)) <= {*service_prices(provider), *machines(provider)}


def test_spot_machines_do_not_use_the_price_on_demand() -> None:
    stack = planned("azure-h100", dict(machines("azure")), nodes__gpu__capacity={"kind": "spot"})
    price = hourly_price(stack.plan)
    assert (price.usd, price.unpriced) == (0.384, ("Standard_ND96isr_H100_v5 (Spot)",))
    assert [row.name for row in used_prices(stack.plan)] == ["Standard_D8s_v5"]
    [problem] = limit_is_effective.run(stack)
    assert "Standard_ND96isr_H100_v5 (Spot), bastion-standard" in problem.rule


def test_uses_a_known_spot_price() -> None:
    known = dict(machines("azure"))
    name = "Standard_ND96isr_H100_v5"
    known[name] = known[name].model_copy(update={"spot_usd_per_hour": 20.0})
    price = hourly_price(planned("azure-h100", known, nodes__gpu__capacity={"kind": "spot"}).plan)
    assert (price.usd, price.unpriced) == (40.384, ())


def test_a_limit_on_spot_prices_has_a_warning() -> None:
    edits = {"limits": {"max_usd_per_hour": 100}, "nodes__gpu__capacity": {"kind": "spot"}}
    stack = planned("gcp-a2", dict(machines("gcp")), **edits)
    assert spot_priced(stack.plan) == ("a2-highgpu-8g",)
    assert not spot_priced(planned("gcp-a2", dict(machines("gcp"))).plan)
    rules = [problem.rule for problem in limit_is_effective.run(stack)]
    assert "recorded Spot price of a2-highgpu-8g, but Spot prices change at any time" in rules[-1]
    [note] = report_price.run(stack)
    assert "; Spot prices change at any time;" in note.rule


def test_limits_on_running_machines_ignore_spot_prices() -> None:
    spot = planned("gcp-a2", dict(machines("gcp")), nodes__gpu__capacity={"kind": "spot"}).plan
    assert hourly_price(spot).total is not None
    assert firm_total(spot) is None
    assert firm_usd(spot.nodes[0]) is None
    on_demand = planned("gcp-a2", dict(machines("gcp"))).plan
    assert firm_total(on_demand) == hourly_price(on_demand).total


def test_spot_machines_use_the_source_of_their_price(monkeypatch: pytest.MonkeyPatch) -> None:
    row = prices("gcp")["a2-highgpu-8g"].model_copy(update={"spot_source": "spot list of 2026-01-01"})
    monkeypatch.setattr("components.platforms.demand.prices", lambda provider: {**prices(provider), row.name: row})
    spot = planned("gcp-a2", dict(machines("gcp")), nodes__gpu__capacity={"kind": "spot"})
    assert used_sources(spot.plan) == (prices("gcp")["n2-standard-8"].source, "spot list of 2026-01-01")


@pytest.mark.parametrize("fields", [{"spot_usd_per_hour": 1.0}, {"spot_source": "a list of 2026-01-01"}])
def test_a_spot_price_without_a_source_is_rejected(fields: dict[str, object]) -> None:
    row = {"name": "m", "usd_per_hour": 2.0, "region": "r", "source": "s", "dated": "2026-01-01"}
    with pytest.raises(ValidationError, match="both spot_usd_per_hour and spot_source"):
        Price.model_validate(row | fields)


def test_limit_includes_the_storage() -> None:
    # The machines cost 65.924 dollars an hour, and a P30 disk costs 0.185.
    assert not list(
        within_budget.run(planned("azure-a100", dict(machines("azure")), limits={"max_usd_per_hour": 66.11}))
    )
    [problem] = within_budget.run(planned("azure-a100", dict(machines("azure")), limits={"max_usd_per_hour": 66.10}))
    assert "cost 66.11 dollars an hour" in problem.rule
