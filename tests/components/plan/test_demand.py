"""Names, addresses, prices and storage throughput of a plan."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network

import pytest
from repair.budget import Budget
from repair.idle_jobs import IdleLimit
from repair.service import read_site

from components.catalog import prices
from components.node.parameters import birth_env, kind_env, render_repair
from components.node.slurm import render_slurm_conf
from components.plan.plan import ClusterPlan, group_capacity
from components.platforms import demand
from components.spec.cluster import MAX_GROUPS
from components.stackfile.plan_checks import limit_is_effective, report_price, storage_throughput, within_budget
from tests.components.platforms.recording import Edits, planned
from yard.preview.printing import costs, total_price

LONGEST = "abcdefghijklmnop"


def plan(counts: dict[str, int], cidr: str = "10.77.0.0/20", name: str = "c") -> ClusterPlan:
    nodes = {group: {"machine": "vm-gpu2", "count": count} for group, count in counts.items()}
    return planned("local", {"name": name, "network__cidr": cidr, "nodes": nodes}).plan


@pytest.mark.parametrize("cidr", ["10.77.0.0/24", "10.77.0.0/20", "10.64.0.0/12"])
def test_names_addresses_and_slots_are_unique(cidr: str) -> None:
    network = IPv4Network(cidr)
    count = min(group_capacity(network), 300)
    groups = [f"{LONGEST[:14]}-{index}" for index in range(MAX_GROUPS - 1)] + ["g"]
    made = plan(dict.fromkeys(groups, count), cidr, LONGEST)
    assert made.hosts[0].private_ip == network[4]
    size = 1 + MAX_GROUPS * count
    assert len({host.name for host in made.hosts}) == size
    assert len({host.private_ip for host in made.hosts}) == size
    assert len({host.slot for host in made.hosts}) == size
    assert all(host.private_ip in network for host in made.hosts)
    assert network.broadcast_address not in {host.private_ip for host in made.hosts}
    assert max(len(host.name) for host in made.hosts) <= 63


def test_larger_and_appended_groups_keep_other_hosts() -> None:
    small, grown, appended = (
        plan(counts) for counts in ({"a": 1, "b": 2}, {"a": 30, "b": 2}, {"a": 1, "b": 2, "c": 1})
    )
    assert small.head == grown.head
    assert small.group("a") == grown.group("a")[:1]
    assert small.group("b") == grown.group("b")
    assert appended.hosts[: len(small.hosts)] == small.hosts
    assert list(appended.groups) == ["a", "b", "c"]


@pytest.mark.parametrize(("cidr", "capacity"), [("10.0.0.0/24", 30), ("10.0.0.0/20", 510), ("10.0.0.0/16", 8190)])
def test_group_capacity(cidr: str, capacity: int) -> None:
    assert group_capacity(IPv4Network(cidr)) == capacity


SPOT_WITH_LIMIT: Edits = {"limits": {"max_usd_per_hour": 100}, "nodes__gpu__capacity": {"kind": "spot"}}
H100, A2 = "Standard_ND96isr_H100_v5", "a2-highgpu-8g"


def test_total_is_unknown_if_a_price_is_unknown() -> None:
    price = demand.hourly_price(planned("gcp-a2", {"nodes__gpu__machine": "a4-highgpu-8g"}).plan)
    assert (price.usd, price.unpriced, price.total) == (0.389, ("a4-highgpu-8g",), None)
    assert demand.hourly_price(planned("gcp-a2", {}).plan).total == 59.163


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
    found = demand.storage_mib_s(planned(stack, {"storage__shared": shared}).plan)
    assert found == (None if expected is None else pytest.approx(expected))


def test_the_hours_of_a_checkpoint_are_those_of_a_full_memory() -> None:
    storage = {"kind": "head_nfs", "size_gib": 1024}
    [broken] = storage_throughput.run(planned("azure-a100", {"storage__shared": storage}))
    # 16 GPUs write 70 GB each at 200 MB/s.
    assert "takes up to 1.6 hours. Smaller models take less time" in broken.rule


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
    usd = demand.services(planned(stack, {"storage__shared": shared}).plan)[0].usd
    assert usd == (None if per_month is None else pytest.approx(per_month / 730))


@pytest.mark.parametrize(
    ("stack", "names"),
    [
        (
            "azure-h100",
            ["netapp-Premium", "bastion-standard", "3 x premium-ssd boot disk of 256 GiB", "2 x public-address",
             "1 x nat-gateway"],
        ),
        (
            "gcp-a3-mega",
            ["pd-ssd", "1 x pd-balanced boot disk of 200 GiB", "2 x pd-ssd boot disk of 200 GiB",
             "3 x cloud-nat-machine", "1 x cloud-nat-address", "1 x tier-1-networking"],
        ),
        ("local", []),
    ],
)  # fmt: skip
def test_services_of_the_stacks(stack: str, names: list[str]) -> None:
    assert [service.name for service in demand.services(planned(stack, {}).plan)] == names


# By hand, with the sources in service_prices.yaml. azure-a100: the machines, a P30 disk for
# 135.17 a month, three P15 boot disks for 38.01 a month, two addresses for 0.005 an hour and a NAT gateway for 0.045:
#   (135.17 + 3 x 38.01) / 730 + 2 x 0.005 + 0.045 = 0.3414 + 0.055 = 0.3964.
# gcp-a2: 10240 GiB of Filestore for 0.000342 an hour, 200 GiB of pd-balanced for 0.1 and 400 GiB of pd-ssd for 0.17 a
# month, the head's address for 0.005, two machines behind NAT for 0.0014 and the address of NAT for 0.005:
#   3.5021 + (200 x 0.1 + 400 x 0.17) / 730 + 0.005 + 2 x 0.0014 + 0.005 = 3.5021 + 0.1205 + 0.0128 = 3.6354.
@pytest.mark.parametrize(("stack", "machines", "total"), [("azure-a100", 65.924, "66.32"), ("gcp-a2", 59.163, "62.80")])
def test_the_price_of_a_stack_is_exact_to_the_cent(stack: str, machines: float, total: str) -> None:
    plan = planned(stack, {}).plan
    assert demand.hourly_price(plan).total == machines
    assert total_price(plan) == f"list price ${total}/h"


def test_cloud_nat_bills_at_most_32_machines_and_needs_more_addresses() -> None:
    # 71 machines are behind NAT: the head and 70 nodes. Each address serves 64512 / 1024 = 63 machines.
    found = demand.services(planned("gcp-a3-mega", {"nodes__gpu__count": 70, "platform__tier_1": False}).plan)
    usd = {service.name: service.usd for service in found}
    assert usd["71 x cloud-nat-machine"] == pytest.approx(0.0448)
    assert usd["2 x cloud-nat-address"] == 0.01


def test_unknown_prices_are_named() -> None:
    plan = planned(
        "gcp-a3-mega", {"platform__boot_disk_type": "hyperdisk-balanced", "head__machine": "c3-standard-8"}
    ).plan
    assert demand.unpriced(plan) == ("3 x hyperdisk-balanced boot disk of 200 GiB",)
    assert "3 x hyperdisk-balanced boot disk of 200 GiB: price unknown" in costs(plan)


def test_spot_machines_do_not_use_the_price_on_demand() -> None:
    stack = planned("azure-h100", SPOT_WITH_LIMIT)
    price = demand.hourly_price(stack.plan)
    assert (price.usd, price.unpriced) == (0.384, (f"{H100} (Spot)",))
    assert [row.name for row in demand.used_prices(stack.plan)] == ["Standard_D8s_v5"]
    [problem] = limit_is_effective.run(stack)
    assert f"no price is recorded for {H100} (Spot)" in problem.rule
    known = stack.plan.workers[0].machine.model_copy(update={"spot_usd_per_hour": 20.0})
    workers = tuple(replace(host, machine=known) for host in stack.plan.workers)
    assert demand.hourly_price(replace(stack.plan, workers=workers)).total == 40.384


def test_limits_and_running_machines_ignore_spot_prices() -> None:
    on_demand = planned("gcp-a2", {}).plan
    assert not demand.spot_priced(on_demand)
    assert demand.firm_total(on_demand) == demand.hourly_price(on_demand).total
    stack = planned("gcp-a2", SPOT_WITH_LIMIT)
    assert demand.spot_priced(stack.plan) == (A2,)
    assert demand.hourly_price(stack.plan).total is not None
    assert demand.firm_total(stack.plan) is None
    assert demand.firm_usd(stack.plan.nodes[0]) is None
    rules = [problem.rule for problem in limit_is_effective.run(stack)]
    assert f"recorded Spot price of {A2}, but Spot prices change at any time" in rules[-1]
    [note] = report_price.run(stack)
    assert "; Spot prices change at any time;" in note.rule


def test_spot_machines_use_the_source_of_their_price(monkeypatch: pytest.MonkeyPatch) -> None:
    row = prices("gcp")[A2].model_copy(update={"spot_source": "spot list of 2026-01-01"})
    monkeypatch.setattr("components.platforms.demand.prices", lambda provider: {**prices(provider), row.name: row})
    found = demand.used_sources(planned("gcp-a2", SPOT_WITH_LIMIT).plan)
    assert found == (prices("gcp")["n2-standard-8"].source, "spot list of 2026-01-01")


def test_the_head_gets_the_month_limit_and_the_known_prices() -> None:
    limits = {"max_usd_per_month": 1000, "when_spent": "requeue"}
    stack = planned("azure-a100", {"limits": limits, "nodes__gpu__capacity": {"kind": "spot"}})
    text = render_repair(stack.plan, budget=demand.month_budget(stack.plan))
    # The price of Spot machines on Azure is unknown.
    head, services = stack.plan.head.machine.usd_per_hour, sum(each.usd or 0 for each in demand.services(stack.plan))
    assert head is not None
    assert read_site(text or "").budget == Budget(1000, "requeue", {"head": head, "services": services})
    assert list(limit_is_effective.run(stack)) != []
    assert demand.month_budget(planned("azure-a100", {}).plan) is None
    gpu = demand.month_budget(planned("azure-a100", {"limits": limits}).plan)
    assert (gpu or {})["usd_per_hour"].keys() == {"head", "services", f"{stack.plan.name}-gpu"}


def test_a_changed_limit_of_idle_gpus_changes_only_parameters() -> None:
    plans = [
        planned("gcp-a2", {"scheduler": "slurm", "containers": "none", "limits": limits}).plan
        for limits in ({}, {"idle_gpu": {"minutes": 30}}, {"idle_gpu": {"minutes": 45, "action": "requeue"}})
    ]
    sites = [read_site(render_repair(plan) or "") for plan in plans]
    assert [site.idle_gpu for site in sites] == [None, IdleLimit(30, "warn"), IdleLimit(45, "requeue")]
    lines = [[line for line in kind_env(plan, plan.workers[0]).splitlines() if "IDLE_GPU" in line] for plan in plans]
    assert lines == [[], ["TRAINYARD_IDLE_GPU_SECONDS=1800"], ["TRAINYARD_IDLE_GPU_SECONDS=2700"]]
    assert len({(birth_env(plan, plan.workers[0]), render_slurm_conf(plan)) for plan in plans}) == 1


def test_limit_includes_the_storage() -> None:
    # The machines cost 65.924 dollars an hour, and the services 0.396.
    stacks = [planned("azure-a100", {"limits": {"max_usd_per_hour": limit}}) for limit in (66.33, 66.32)]
    enough, less = (list(within_budget.run(stack)) for stack in stacks)
    assert enough == []
    assert "cost 66.32 dollars an hour" in less[0].rule
