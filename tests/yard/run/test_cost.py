"""`yard cost`: the bill of a recorded day, forecasts and jobs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from components.cluster.outputs import cluster_outputs
from tests.components.platforms.recording import planned
from tests.yard.conftest import FakeStack, printed, refused
from trainyard.on_times import month_bounds, parse_on_times
from trainyard.outputs import Cluster, Prices
from yard.run.cost import Cost, JobBill, JobCost, costs, forecast, job_bill, job_costs, total

DAY = 1764028800.0
"""2025-11-25 00:00:00 UTC."""
HOUR = 3600
# List prices of Standard_D8s_v5 and Standard_ND96isr_H100_v5 in eastus (components/catalog/prices.yaml, which names the
# source and the date). The price of the services is an example.
PRICES = Prices(head=0.384, nodes={"gpu": 98.32}, services=0.1909)
RECORD = "".join(
    f"{DAY + hours * HOUR:.0f} {node} {state}\n"
    for hours, node, state in [
        (-30, "head", "on"),
        (-30, "yard-gpu-0", "on"),
        (-2, "yard-gpu-0", "off"),
        (-2, "yard-gpu-1", "on"),
        (1.5, "yard-gpu-1", "off"),
        (9, "yard-gpu-0", "on"),
        (17.25, "yard-gpu-0", "off"),
        (22, "yard-gpu-1", "on"),
    ]
)


@pytest.fixture
def cluster(local: Cluster) -> Cluster:
    return replace(local, prices=PRICES)


def test_the_bill_of_a_recorded_day_is_exact_to_the_cent(cluster: Cluster) -> None:
    """By hand: the head is on for 24 h, 24 x 0.384 = 9.216. The services cost 24 x 0.1909 = 4.5816. Until the end of
    the day, yard-gpu-1 is on from 0:00 to 1:30 and from 22:00, and yard-gpu-0 from 9:00 to 17:15. These are
    1.5 + 2 + 8.25 = 11.75 h, and 11.75 x 98.32 = 1155.26. The sum is 9.22 + 4.58 + 1155.26 = 1169.06.
    """
    found = costs(parse_on_times(RECORD, DAY + 30 * HOUR), cluster, DAY, DAY + 24 * HOUR)
    assert found == [
        Cost(day="2025-11-25", part="gpu", hours=11.75, usd=1155.26),
        Cost(day="2025-11-25", part="head", hours=24.0, usd=9.22),
        Cost(day="2025-11-25", part="services", hours=24.0, usd=4.58),
    ]
    assert total(found) == 1169.06


def test_the_bill_of_a_stack_includes_disks_addresses_and_nat(local: Cluster) -> None:
    """By hand, with the sources in components/catalog/prices.yaml and service_prices.yaml, for the stack azure-a100.

    The head (Standard_D8s_v5) is on for 24 h: 24 x 0.384 = 9.216. The two ND96amsr_A100_v4 cost 32.77 an hour each and
    are on for 11.75 h together: 11.75 x 32.77 = 385.0475. Even while machines are off, these cost money: the head's P30
    disk (135.17 a month), three P15 boot disks (38.01 a month each), two addresses (0.005 an hour each) and a NAT
    gateway (0.045 an hour). A month has 730 hours, so they cost (135.17 + 3 x 38.01) / 730 + 2 x 0.005 + 0.045 =
    0.396369 an hour, which the outputs round to 0.3964, and 24 x 0.3964 = 9.5136. The sum is 385.05 + 9.22 + 9.51.
    """
    made = cluster_outputs(planned("azure-a100", {}).plan, local.head, {})
    assert made.prices is not None
    assert made.prices.unpriced == ()
    record = parse_on_times(RECORD.replace("yard-gpu", f"{made.name}-gpu"), DAY + 30 * HOUR)
    found = costs(record, replace(local, name=made.name, prices=made.prices), DAY, DAY + 24 * HOUR)
    assert {row.part: row.usd for row in found} == {"gpu": 385.05, "head": 9.22, "services": 9.51}
    assert total(found) == 403.78


def test_each_day_has_its_own_hours(cluster: Cluster) -> None:
    found = costs(parse_on_times(RECORD, DAY + 30 * HOUR), cluster, DAY - 48 * HOUR, DAY + 48 * HOUR)
    assert [(row.day, row.hours) for row in found if row.part == "gpu"] == [
        ("2025-11-23", 6.0),
        ("2025-11-24", 22.0 + 2.0),
        ("2025-11-25", 11.75),
        ("2025-11-26", 6.0),
    ]


def test_an_incomplete_record_and_repeated_lines_are_read(cluster: Cluster) -> None:
    text = f"{DAY:.0f} head on\n{DAY + HOUR:.0f} head on\n{DAY + HOUR:.0f} gone-1 off\n17640"
    assert parse_on_times(text, DAY + 2 * HOUR) == {
        "head": [(DAY, DAY + 2 * HOUR)],
        "services": [(DAY, DAY + 2 * HOUR)],
    }


def test_the_storage_of_a_sleeping_cluster_costs_money(cluster: Cluster) -> None:
    text = "".join(f"{DAY + hour * HOUR:.0f} head {state}\n" for hour, state in ((0, "on"), (4, "off"), (9, "on")))
    found = costs(parse_on_times(text, DAY + 10 * HOUR), cluster, DAY, DAY + 24 * HOUR)
    assert [(row.part, row.hours) for row in found] == [("head", 5.0), ("services", 10.0)]


def test_removed_nodes_belong_to_their_group_and_unknown_prices_are_unknown(cluster: Cluster) -> None:
    text = f"{DAY:.0f} yard-gpu-7 on\n{DAY + HOUR:.0f} yard-gpu-7 off\n{DAY:.0f} yard-old-0 on\n"
    found = costs(parse_on_times(text, DAY + HOUR), cluster, DAY, DAY + HOUR)
    assert [(row.part, row.usd) for row in found] == [("gpu", 98.32), ("old", None)]
    assert total(found) is None


def test_the_forecast_continues_the_last_week(cluster: Cluster) -> None:
    """By hand: only the head, for 48 h until now, at (0.384 + 0.1909) an hour. November ends 120 h later."""
    now = DAY + 24 * HOUR
    record = parse_on_times(f"{now - 48 * HOUR:.0f} head on\n", now)
    start, end = month_bounds("2025-11")
    assert (end - now, now - start) == (120 * HOUR, 25 * 24 * HOUR)
    assert forecast(record, cluster, now) == pytest.approx(168 * 0.5749, abs=0.05)
    assert forecast({}, cluster, now) is None
    assert forecast(record, replace(cluster, prices=None), now) is None


def test_jobs_cost_their_share_of_the_gpus(cluster: Cluster) -> None:
    """By hand: a node of the cluster has 2 GPUs, so a GPU hour costs 98.32 / 2 = 49.16."""
    rows = """\
7|ann|7200|yard-gpu-0|billing=2,cpu=2,gres/gpu=1,node=1
8|bob|1800|yard-gpu-[0-1]|cpu=2,gres/gpu=4,gres/gpu:fake=4
9|bob|1800|yard-gpu-0|cpu=2
10|bob|0|None assigned|
===cost===
7|small
8|a|b
9|no GPUs
7|ann|3600000|yard-gpu-0|gres/gpu=8|the name of job 9 has several lines
"""
    assert job_costs(rows, cluster) == [
        JobCost(job=7, user="ann", name="(several names)", gpu_hours=2.0, usd=98.32),
        JobCost(job=8, user="bob", name="a|b", gpu_hours=2.0, usd=98.32),
    ]


STARTS = "".join(f"7|ann|1800|yard-gpu-{node}|cpu=2,gres/gpu=2,node=1\n" for node in (0, 1)) + (
    "===cost===\n7|train\n7|train\n"
)
GOODPUT = {"wall_s": 3900, "waiting_s": 300, "useful_s": 2700, "redone_s": 360, "saving_s": 36, "steps": 900,
           "redone_steps": 120}  # fmt: skip


def test_the_bill_of_a_job_names_the_price_of_a_step_and_what_was_lost(cluster: Cluster) -> None:
    """By hand: two starts of 1800 s with both GPUs of a node for $98.32 an hour are 2 GPU hours and $98.32.

    The job held its nodes for 3900 - 300 = 3600 s. Useful steps: 98.32 x 2700 / 3600 = 73.74, and 73.74 / 900 steps =
    0.081933. Repeated steps: 98.32 x 360 / 3600 = 9.832. Checkpoints: 98.32 x 36 / 3600 = 0.9832. The rest is
    98.32 - 73.74 - 9.83 - 0.98 = 13.77.
    """
    assert job_bill(STARTS, cluster, GOODPUT) == JobBill(
        job=7, user="ann", name="train", starts=2, gpu_hours=2.0, usd=98.32, steps=900, redone_steps=120,
        usd_per_step=73.74 / 900, useful_usd=73.74, redone_usd=9.83, saving_usd=0.98,
        other_usd=13.77,
    )  # fmt: skip
    unknown = job_bill(STARTS, replace(cluster, prices=None), GOODPUT)
    assert unknown is not None
    assert (unknown.usd, unknown.useful_usd) == (None, None)
    assert job_bill("9|bob|1800|yard-gpu-0|cpu=2\n", cluster, GOODPUT) is None


@pytest.mark.parametrize("has_steps", [True, False])
def test_the_command_prints_the_bill_of_a_job(stack: FakeStack, cluster: Cluster, has_steps: bool) -> None:
    stack.deploy(cluster)
    record = "JobId=7 JobName=train UserId=ann(1) JobState=COMPLETED WorkDir=/shared/jobs/train-1"
    found = json.dumps({"7": GOODPUT if has_steps else None})
    stack.program("ssh", f"case $* in *scontrol*) echo '{record}' ;; *sacct*) printf '{STARTS}' ;; "
                  f"*) cat >/dev/null; echo '{found}' ;; esac")  # fmt: skip
    out = printed("cost", "--job", "7")
    assert "job 7 (train) of ann: $98.32 for 2.00 GPU hours in 2 starts" in out
    assert ("useful steps             $73.74  900 steps, $0.0819 each" in out) == has_steps
    assert ("has recorded no steps" in out) != has_steps
    assert json.loads(printed("cost", "--job", "7", "--json"))["redone_usd"] == (9.83 if has_steps else None)


def test_the_command_prints_the_sum_and_the_forecast(stack: FakeStack, cluster: Cluster) -> None:
    stack.deploy(replace(cluster, prices=replace(PRICES, unpriced=("bastion-standard",))))
    stack.program("ssh", f"printf '%s' '{RECORD}'; echo ===cost===; echo {DAY + 24 * HOUR:.0f}")
    out = printed("cost", "--month", "2025-11")
    assert "2025-11-25  gpu       11.75" in out
    assert "forecast for 2025-11: $" in out
    left_out = "bastion-standard, network traffic (yard preview prints its price per GB), discounts"
    assert f"list prices. Not included: {left_out}" in out
    rows = json.loads(printed("cost", "--month", "2025-11", "--json"))
    assert {row["part"] for row in rows} == {"gpu", "head", "services"}
    assert "forecast" not in printed("cost", "--month", "2025-10")
    stack.deploy(replace(cluster, scheduler="none"))
    assert "without Slurm" in refused("cost")


def test_a_platform_without_prices_says_so(stack: FakeStack) -> None:
    stack.program("ssh", f"printf '%s' '{RECORD}'; echo ===cost===; echo {DAY:.0f}")
    out = printed("cost", "--month", "2025-11")
    assert "the machines of this platform have no price" in out
    assert "COST" not in out
    assert "services" not in out
