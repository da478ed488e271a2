"""Differences between two revisions of a stack: prices, hosts, quotas and rendered files."""

from __future__ import annotations

from tests.yard.preview.conftest import DescribeEdited
from yard.preview.compare import compare
from yard.preview.describe import describe


def test_a_stack_does_not_differ_from_itself() -> None:
    difference = compare(describe("azure-a100"), describe("azure-a100"))
    assert difference["usd_per_hour"] == 0
    assert not any(difference[key] for key in ("new", "hosts_added", "hosts_removed", "quota", "files"))


def test_more_nodes_change_price_hosts_quota_and_files(edited: DescribeEdited) -> None:
    difference = compare(edited("azure-a100"), edited("azure-a100", nodes__gpu__count=4, limits={}))
    assert difference["usd_per_hour"] == 65.54
    assert difference["hosts_added"] == ["opt-gpu-2", "opt-gpu-3"]
    assert {need["quota"]: need["amount"] for need in difference["quota"]} == {
        "cores": 192,
        "standard NDAMSv4_A100Family": 192,
    }
    [slurm] = [file for file in difference["files"] if file["file"] == "slurm.conf"]
    assert "\n-NodeName=opt-gpu-[0-1] " in slurm["diff"]
    assert "\n+NodeName=opt-gpu-[0-3] " in slurm["diff"]


def test_a_larger_disk_costs_more(edited: DescribeEdited) -> None:
    small = edited("azure-a100", storage__shared={"kind": "head_nfs", "size_gib": 256})
    difference = compare(small, edited("azure-a100"))
    # The change from P15 to P30 costs 97.16 dollars a month.
    assert difference["usd_per_hour"] == 0.133


def test_an_unknown_price_makes_the_difference_unknown(edited: DescribeEdited) -> None:
    # No dated source contains the price of Azure Bastion.
    difference = compare(edited("azure-h100"), edited("azure-h100", nodes__gpu__count=1))
    assert (difference["usd_per_hour"], difference["known_usd_per_hour"]) == (None, -98.32)
    assert difference["hosts_removed"] == ["hopper-gpu-1"]


def test_a_new_stack_has_no_file_differences(edited: DescribeEdited) -> None:
    difference = compare(None, edited("local"))
    assert difference["new"]
    assert difference["files"] == []
    assert difference["hosts_added"] == ["yard-head", "yard-gpu-0", "yard-gpu-1"]


def test_the_same_change_of_two_roles_is_shown_once() -> None:
    before, after = describe("local"), describe("local")
    for role in ("head", "gpu"):
        after["files"][f"user-data of {role}"] += "echo more\n"
    [file] = compare(before, after)["files"]
    assert (file["file"], file["same_in"]) == ("user-data of head", ["user-data of gpu"])
    assert file["diff"].endswith("+echo more\n")


def test_refused_stacks_can_be_compared(edited: DescribeEdited) -> None:
    refused = edited("local", nodes__gpu__count=0)
    assert compare(refused, edited("local"))["hosts_added"] == ["yard-head", "yard-gpu-0", "yard-gpu-1"]
    assert compare(edited("local"), refused)["hosts_removed"] == ["yard-head", "yard-gpu-0", "yard-gpu-1"]
