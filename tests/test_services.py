"""Throughput and price of shared storage and gateways, and what they add to a stack's cost."""

from __future__ import annotations

import pytest
import yaml

from components.catalog import Machine, images, machines, service_prices, throughputs
from components.checks.base import Planned
from components.checks.planned import limit_can_be_kept, within_budget
from components.demand import hourly_price, services, storage_mib_s, used_prices
from components.plan import plan_cluster
from components.platforms import PLATFORMS
from components.spec import ClusterSpec
from tests.platforms.recording import stack_text


def spec_of(stack: str, **edits: object) -> ClusterSpec:
    return ClusterSpec.model_validate(yaml.safe_load(stack_text(stack, **edits))["config"]["trainyard:cluster"])


def planned(stack: str, known: dict[str, Machine], **edits: object) -> Planned:
    spec = spec_of(stack, **edits)
    return Planned(spec=spec, plan=plan_cluster(spec, known, images()[spec.platform.image]))


# Premium SSD: MicrosoftDocs/azure-docs at 1d25717f, disk-storage-premium-ssd-sizes.md; Dsv5: at 1a0fe16a,
# dv5-dsv5-series.md (290 MB/s uncached). MB/s there, MiB/s here.
@pytest.mark.parametrize(
    ("stack", "shared", "expected"),
    [
        ("azure-a100", {"kind": "head_nfs", "size_gib": 1024}, 200e6 / 2**20),
        ("azure-a100", {"kind": "head_nfs", "size_gib": 1025}, 250e6 / 2**20),
        ("azure-a100", {"kind": "head_nfs", "size_gib": 8192}, 290e6 / 2**20),
        ("azure-a100", {"kind": "azure_files", "size_gib": 10240}, 1124),
        ("azure-h100", {"kind": "azure_netapp", "size_gib": 4096}, 256),
        ("gcp-a2", {"kind": "filestore", "size_gib": 10240}, 880),
        ("gcp-a3-mega", {"kind": "head_nfs", "size_gib": 1000}, 720),
        ("gcp-a3-mega", {"kind": "head_nfs", "size_gib": 4096}, 1200),
        ("local", {"kind": "head_nfs", "size_gib": 1024}, None),
        ("gcp-a2", {"kind": "external", "address": "10.0.0.9", "path": "/export"}, None),
    ],
)
def test_the_shared_storage_writes_so_fast(stack: str, shared: dict[str, object], expected: float | None) -> None:
    assert storage_mib_s(spec_of(stack, storage__shared=shared)) == (
        None if expected is None else pytest.approx(expected)
    )


@pytest.mark.parametrize(
    ("stack", "shared", "per_month"),
    [
        ("azure-a100", {"kind": "head_nfs", "size_gib": 1024}, 135.17),
        ("azure-a100", {"kind": "head_nfs", "size_gib": 2048}, None),
        ("azure-h100", {"kind": "azure_netapp", "size_gib": 1025}, 2048 * 0.000403 * 730),
        ("gcp-a3-mega", {"kind": "head_nfs", "size_gib": 1000}, 1000 * 0.000233 * 730),
        ("gcp-a2", {"kind": "filestore", "size_gib": 10240}, None),
    ],
)
def test_the_shared_storage_costs_so_much(stack: str, shared: dict[str, object], per_month: float | None) -> None:
    usd = services(spec_of(stack, storage__shared=shared))[0].usd
    assert (None if usd is None else usd * 730) == (None if per_month is None else pytest.approx(per_month))


def test_only_azure_buys_a_gateway() -> None:
    assert [service.name for service in services(spec_of("azure-h100"))] == ["netapp-Premium", "bastion-standard"]
    assert [service.name for service in services(spec_of("gcp-a3-mega"))] == ["pd-ssd"]
    assert services(spec_of("local")) == ()


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_a_known_price_has_its_date(provider: str) -> None:
    for row in service_prices(provider).values():
        known = row.usd_per_hour or row.usd_per_gib_hour or row.usd_per_month_of_size
        assert bool(known) == bool(row.priced)


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_every_throughput_is_of_a_storage_or_a_machine(provider: str) -> None:
    assert set(throughputs(provider)) <= {*service_prices(provider), *machines(provider)}


def test_spot_machines_never_have_the_price_on_demand() -> None:
    stack = planned("azure-h100", dict(machines("azure")), nodes__gpu__capacity={"kind": "spot"})
    price = hourly_price(stack.plan)
    assert (price.usd, price.unpriced) == (0.384, ("Standard_ND96isr_H100_v5 (Spot)",))
    assert [row.name for row in used_prices(stack.plan)] == ["Standard_D8s_v5"]
    [problem] = limit_can_be_kept(stack)
    assert "Standard_ND96isr_H100_v5 (Spot), bastion-standard" in problem.rule


def test_a_known_spot_price_counts() -> None:
    known = dict(machines("azure"))
    name = "Standard_ND96isr_H100_v5"
    known[name] = known[name].model_copy(update={"spot_usd_per_hour": 20.0})
    price = hourly_price(planned("azure-h100", known, nodes__gpu__capacity={"kind": "spot"}).plan)
    assert (price.usd, price.unpriced) == (40.384, ())


def test_the_limit_counts_the_storage() -> None:
    # Machines 65.924, a P30 disk 0.185.
    assert not list(within_budget(planned("azure-a100", dict(machines("azure")), limits={"max_usd_per_hour": 66.11})))
    [problem] = within_budget(planned("azure-a100", dict(machines("azure")), limits={"max_usd_per_hour": 66.10}))
    assert "cost 66.11 dollars an hour" in problem.rule
