"""Every registered check has a case that it passes and one that it finds fault with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from components.catalog import Image, conflicts, images, machines
from components.checks import DRAFT_CHECKS, PLAN_CHECKS, Check, Draft, Level, Planned, findings
from components.plan import plan_cluster
from components.platforms import platform_class, platform_spec
from components.spec import ClusterSpec, GroupSpec, HeadSpec, NetworkSpec
from tests.platforms.recording import stack_text


def draft(head: str = "vm-head", machine: str = "vm-gpu2", count: int = 2, cidr: str = "10.77.0.0/24") -> Draft:
    return Draft(
        platform=platform_spec({"provider": "local"}),
        network=NetworkSpec.model_validate({"cidr": cidr}),
        head=HeadSpec(machine=head),
        nodes={"gpu": GroupSpec(machine=machine, count=count)},
    )


def planned(count: int = 2) -> Planned:
    spec = ClusterSpec.model_validate(
        {
            "name": "c",
            "platform": {"provider": "local"},
            "head": {"machine": "vm-head"},
            "nodes": {"gpu": {"machine": "vm-gpu2", "count": count}},
        }
    )
    return Planned(spec=spec, plan=plan_cluster(spec, machines("local"), images()["debian-13"]))


def priced(limit: float | None = None, gpu: str = "a2-highgpu-8g", head: str = "a2-highgpu-1g") -> Planned:
    """A plan of two machines and a head whose types a provider's price list has, or not."""
    spec = ClusterSpec.model_validate(
        {
            "name": "c",
            "platform": {"provider": "gcp", "project": "my-project-123456", "zone": "us-central1-f"},
            "head": {"machine": head},
            "nodes": {"gpu": {"machine": gpu, "count": 2}},
            "limits": {"max_usd_per_hour": limit},
        }
    )
    return Planned(spec=spec, plan=plan_cluster(spec, machines("gcp"), images()["gcp-ubuntu-24.04-nvidia-580"]))


def stored(provider: str, size_gib: int) -> Planned:
    """A plan of a cloud's stack whose head shares a disk of that size."""
    shared = {"kind": "head_nfs", "size_gib": size_gib}
    text = stack_text({"azure": "azure-a100", "gcp": "gcp-a2"}[provider], storage__shared=shared)
    spec = ClusterSpec.model_validate(yaml.safe_load(text)["config"]["trainyard:cluster"])
    return Planned(spec=spec, plan=plan_cluster(spec, machines(provider), images()[spec.platform.image]))


def folder(stack: str) -> Planned:
    """A plan of a stack whose stack file names a folder for /shared."""
    text = stack_text(stack, storage__shared={"kind": "head_nfs", "path": "/raid/trainyard"})
    spec = ClusterSpec.model_validate(yaml.safe_load(text)["config"]["trainyard:cluster"])
    known = spec.platform.known_machines()
    return Planned(spec=spec, plan=plan_cluster(spec, known, images()[spec.platform.image]))


def pinned(fabric_manager: str = "1.3", **versions: str) -> Planned:
    """A plan whose image has these versions."""
    found = planned()
    image = replace_versions(found, {"fabric_manager": fabric_manager, **versions})
    return replace(found, plan=replace(found.plan, image=image))


def replace_versions(subject: Planned, versions: dict[str, str]) -> Image:
    return subject.plan.image.model_copy(update={"versions": versions})


def confirmed(yes: bool) -> Planned:
    """A plan of a head whose vCPUs somebody published, or nobody."""
    found = planned()
    machine = found.plan.head.machine.model_copy(update={"unverified": () if yes else ("vcpus",)})
    return replace(found, plan=replace(found.plan, head=replace(found.plan.head, machine=machine)))


def listed(*hosts: str) -> Draft:
    """A group of hosts that exist; the platform's list has one, which is also the head."""
    facts = {"address": "203.0.113.10", "private_ip": "10.77.0.10", "name": "node1"}
    return Draft(
        platform=platform_spec({"provider": "hosts", "image": "debian-13", "hosts": [facts]}),
        head=HeadSpec(machine="dgx-h100"),
        nodes={"gpu": GroupSpec(machine="dgx-h100", hosts=hosts, count=len(hosts))},
    )


DRAFT_CASES: dict[str, tuple[Draft, Draft, str]] = {
    "machine-known": (draft(), draft(head="vm-heads"), "cluster.head.machine"),
    "hosts-known": (listed("node1"), listed("node1", "node2"), "cluster.nodes.gpu.hosts.1"),
    "group-fits": (draft(count=30), draft(count=31), "cluster.nodes.gpu.count"),
    "network-free": (draft(cidr="172.18.0.0/16"), draft(cidr="172.17.200.0/24"), "cluster.network.cidr"),
    "head-gpus-idle": (draft(), draft(head="vm-gpu2"), "cluster.head.machine"),
}
"""Check id -> what it passes, what it refuses, and where."""

PLAN_CASES: dict[str, tuple[Planned, Planned, str]] = {
    "platform-fits": (planned(), planned(count=33), "cluster.nodes.gpu.count"),
    "user-data-fits": (planned(), planned(), "cluster.platform"),
    "disk-size": (stored("azure", 32767), stored("azure", 32768), "cluster.storage.shared.size_gib"),
    "shared-path": (folder("lambda-a6000"), folder("gcp-a2"), "cluster.storage.shared.path"),
    "image-versions": (pinned(driver="1.2", fabric_manager="1.2"), pinned(driver="1.2"), "cluster.platform.image"),
    "within-budget": (priced(limit=62.69), priced(limit=62.68), "cluster.limits.max_usd_per_hour"),
    "limit-can-be-kept": (priced(limit=70), priced(limit=70, head="n2-standard-8"), "cluster.limits.max_usd_per_hour"),
    # 240 MiB/s, and 0.48 MiB/s for each GiB; 16 GPUs need 20 MiB/s each.
    "storage-throughput": (stored("gcp", 167), stored("gcp", 166), "cluster.storage.shared"),
    "price-region": (
        priced(limit=70),
        priced(limit=170, gpu="a3-highgpu-8g"),
        "cluster.limits.max_usd_per_hour",
    ),
    "price": (planned(), priced(), "cluster"),
    "quota": (planned(), priced(), "cluster.nodes"),
    "unconfirmed": (planned(), confirmed(False), "cluster"),
}


def test_every_check_has_cases() -> None:
    assert [check.id for check in DRAFT_CHECKS] == list(DRAFT_CASES)
    assert [check.id for check in PLAN_CHECKS] == list(PLAN_CASES)


@pytest.mark.parametrize("check", DRAFT_CHECKS, ids=lambda check: check.id)
def test_a_draft_check_passes_and_refuses(check: Check[Draft]) -> None:
    good, bad, path = DRAFT_CASES[check.id]
    assert list(check.run(good)) == []
    assert path in [problem.path for problem in check.run(bad)]


@pytest.mark.parametrize("check", DRAFT_CHECKS, ids=lambda check: check.id)
def test_a_draft_check_says_nothing_about_sections_that_are_not_there(check: Check[Draft]) -> None:
    assert list(check.run(Draft())) == []


@pytest.mark.parametrize("check", PLAN_CHECKS, ids=lambda check: check.id)
def test_a_plan_check_passes_and_refuses(check: Check[Planned], monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad, path = PLAN_CASES[check.id]
    assert list(check.run(good)) == []
    if good == bad:
        # The same plan, on a platform that takes less.
        monkeypatch.setattr(platform_class("local"), "user_data_limit", 1000)
    assert path in [problem.path for problem in check.run(bad)]


@pytest.mark.parametrize("name", sorted(conflicts()))
def test_versions_known_to_break_one_another_are_refused(name: str) -> None:
    [check] = [check for check in PLAN_CHECKS if check.id == "image-versions"]
    found, known = planned(), conflicts()[name]
    image = replace_versions(found, {"more": "1", **known.versions})
    [problem] = check.run(replace(found, plan=replace(found.plan, image=image)))
    assert known.consequence in problem.rule


@pytest.mark.parametrize(("provider", "largest"), [("azure", 32767), ("gcp", 65536)])
def test_the_largest_disk_of_each_cloud(provider: str, largest: int) -> None:
    [check] = [check for check in PLAN_CHECKS if check.id == "disk-size"]
    assert list(check.run(stored(provider, largest))) == []
    assert [problem.path for problem in check.run(stored(provider, largest + 1))] == ["cluster.storage.shared.size_gib"]


ONLY_COUNTED = {"gpu": GroupSpec(machine="m1", count=1)}


@pytest.mark.parametrize(
    ("bad", "path", "words"),
    [
        (listed("node1", "node1"), "cluster.nodes.gpu.hosts.1", "listed in cluster.nodes.gpu.hosts.0 already"),
        (replace(listed("node1"), head=HeadSpec(machine="m1", host="nod1")), "cluster.head.host", "must be one of"),
        (replace(listed("node1"), nodes=ONLY_COUNTED), "cluster.nodes.gpu.hosts", "missing"),
        (replace(draft(), head=HeadSpec(machine="vm-head", host="a")), "cluster.head.host", "makes its machines"),
    ],
)
def test_hosts_are_listed_once_and_only_where_they_exist(bad: Draft, path: str, words: str) -> None:
    [check] = [check for check in DRAFT_CHECKS if check.id == "hosts-known"]
    [problem] = check.run(bad)
    assert problem.path == path
    assert words in problem.rule


def test_gpus_of_a_head_that_works_are_not_idle() -> None:
    assert [found.check for found in findings(DRAFT_CHECKS, listed("node1"))] == []


def test_findings_carry_their_check_and_level() -> None:
    [finding] = findings(DRAFT_CHECKS, draft(head="vm-gpu2"))
    assert (finding.check, finding.level) == ("head-gpus-idle", Level.WARNING)


def test_a_group_whose_platform_is_malformed_is_still_measured() -> None:
    found_paths = [finding.problem.path for finding in findings(DRAFT_CHECKS, replace(draft(count=31), platform=None))]
    assert found_paths == ["cluster.nodes.gpu.count"]


@pytest.mark.parametrize(("check", "words"), [("price", "62.45 dollars an hour"), ("quota", "16 of NVIDIA_A100_GPUS")])
def test_what_a_stack_costs_and_needs_is_told_in_figures(check: str, words: str) -> None:
    [found] = [found for found in PLAN_CHECKS if found.id == check]
    gpu_less_head = priced(head="n2-standard-8" if check == "quota" else "a2-highgpu-1g")
    [problem] = found.run(gpu_less_head)
    assert words in problem.rule


def test_an_unknown_price_is_named_and_the_rest_counted() -> None:
    [price] = [found for found in PLAN_CHECKS if found.id == "price"]
    [problem] = price.run(priced(head="n2-standard-8"))
    assert "58.78 dollars" in problem.rule
    assert "n2-standard-8" in problem.rule
