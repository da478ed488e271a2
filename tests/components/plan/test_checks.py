"""Each registered check accepts a valid case and reports a problem for an invalid case."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from components.catalog import Image, conflicts, images, machines
from components.plan.check import Check, Draft, Level, Planned, run_checks
from components.plan.plan import plan_cluster
from components.platforms.registry import platform_facts, platform_spec
from components.spec.cluster import GroupSpec, HeadSpec, NetworkSpec
from components.spec.model import machine_types
from components.stackfile.draft_checks import DRAFT_CHECKS
from components.stackfile.plan_checks import PLAN_CHECKS
from components.stackfile.read import cluster_spec
from tests.components.platforms.recording import stack_text


def draft(head: str = "vm-head", machine: str = "vm-gpu2", count: int = 2, cidr: str = "10.77.0.0/24") -> Draft:
    return Draft(
        platform=platform_spec({"provider": "local"}),
        provider="local",
        machines={"cluster.head.machine": head, "cluster.nodes.gpu.machine": machine},
        known_machines=tuple(machines("local")),
        network=NetworkSpec.model_validate({"cidr": cidr}),
        head=HeadSpec(machine=head),
        nodes={"gpu": GroupSpec(machine=machine, count=count)},
    )


def planned(count: int = 2) -> Planned:
    spec = cluster_spec(
        {
            "name": "c",
            "platform": {"provider": "local"},
            "head": {"machine": "vm-head"},
            "nodes": {"gpu": {"machine": "vm-gpu2", "count": count}},
        }
    )
    return Planned(plan=plan_cluster(spec, machines("local"), images()["debian-13"]))


def gcp_plan(limit: float | None = None, gpu: str = "a2-highgpu-8g", head: str = "a2-highgpu-1g") -> Planned:
    """Return a plan with two workers and a head on Google Cloud."""
    spec = cluster_spec(
        {
            "name": "c",
            "platform": {"provider": "gcp", "project": "my-project-123456", "zone": "us-central1-f"},
            "head": {"machine": head},
            "nodes": {"gpu": {"machine": gpu, "count": 2}},
            "limits": {"max_usd_per_hour": limit},
        }
    )
    return Planned(plan=plan_cluster(spec, machines("gcp"), images()["gcp-ubuntu-24.04-nvidia-580"]))


def plan_with_disk(provider: str, size_gib: int) -> Planned:
    """Return a plan for a cloud's stack with a head_nfs disk of this size."""
    shared = {"kind": "head_nfs", "size_gib": size_gib}
    text = stack_text({"azure": "azure-a100", "gcp": "gcp-a2"}[provider], storage__shared=shared)
    spec = cluster_spec(yaml.safe_load(text)["config"]["trainyard:cluster"])
    return Planned(plan=plan_cluster(spec, machines(provider), images()[spec.platform.image]))


def plan_with_path(stack: str) -> Planned:
    """Return a plan for a stack with a path set for head_nfs."""
    text = stack_text(stack, storage__shared={"kind": "head_nfs", "path": "/raid/trainyard"})
    spec = cluster_spec(yaml.safe_load(text)["config"]["trainyard:cluster"])
    known = machine_types(spec.platform)
    return Planned(plan=plan_cluster(spec, known, images()[spec.platform.image]))


SSH_PATH = "cluster.access.allow_ssh_from.0"


def plan_with_ssh(network: str) -> Planned:
    """Return a plan whose head accepts SSH connections from this network."""
    text = stack_text("gcp-a2", access={"allow_ssh_from": [network], "via": "public"})
    spec = cluster_spec(yaml.safe_load(text)["config"]["trainyard:cluster"])
    return Planned(plan=plan_cluster(spec, machines("gcp"), images()[spec.platform.image]))


def plan_with_versions(fabric_manager: str = "1.3", **versions: str) -> Planned:
    """Return a plan whose image contains these software versions."""
    found = planned()
    image = image_with(found, {"fabric_manager": fabric_manager, **versions})
    return replace(found, plan=replace(found.plan, image=image))


def image_with(subject: Planned, versions: dict[str, str]) -> Image:
    return subject.plan.image.model_copy(update={"versions": versions})


def plan_with_driver(driver: str | None, gpu: str = "a100", image: str = "debian-13", host: bool = False) -> Planned:
    """Return a plan whose group has these GPUs and this value of `driver`.

    The group consists of local machines, or of an existing host if `host` is set.
    """
    vm = machines("local")["vm-gpu2"]
    machine = vm if gpu == "fake" else vm.model_copy(update={"gpu_type": gpu, "gpu_device": "/dev/nvidia"})
    facts = {"address": "203.0.113.10", "private_ip": "10.77.0.10", "name": "node1"}
    existing = {"provider": "hosts", "image": image, "hosts": [facts]}
    spec = cluster_spec(
        {
            "name": "c",
            "platform": existing if host else {"provider": "local"},
            "head": {"machine": "vm-gpu2" if host else "vm-head"},
            "nodes": {
                "gpu": {"machine": "vm-gpu2", "driver": driver} | ({"hosts": ["node1"]} if host else {"count": 1})
            },
        }
    )
    types = {**machines("local"), "vm-gpu2": machine}
    return Planned(plan=plan_cluster(spec, types, images()[image]))


def unverified() -> Planned:
    """Return a plan with an unverified fact about the head."""
    found = planned()
    machine = found.plan.head.machine.model_copy(update={"unverified": ("vcpus",)})
    return replace(found, plan=replace(found.plan, head=replace(found.plan.head, machine=machine)))


def draft_with_hosts(*hosts: str) -> Draft:
    """Return a draft in which the group lists these hosts. The platform's only host, node1, is also the head."""
    facts = {"address": "203.0.113.10", "private_ip": "10.77.0.10", "name": "node1"}
    return Draft(
        platform=platform_spec({"provider": "hosts", "image": "debian-13", "hosts": [facts]}),
        head=HeadSpec(machine="dgx-h100"),
        nodes={"gpu": GroupSpec(machine="dgx-h100", hosts=hosts, count=len(hosts))},
    )


DRAFT_CASES: dict[str, tuple[Draft, Draft, str]] = {
    "machine-known": (draft(), draft(head="vm-heads"), "cluster.head.machine"),
    "hosts-known": (draft_with_hosts("node1"), draft_with_hosts("node1", "node2"), "cluster.nodes.gpu.hosts.1"),
    "group-fits": (draft(count=30), draft(count=31), "cluster.nodes.gpu.count"),
    "network-free": (draft(cidr="172.18.0.0/16"), draft(cidr="172.17.200.0/24"), "cluster.network.cidr"),
    "head-gpus-idle": (draft(), draft(head="vm-gpu2"), "cluster.head.machine"),
}
"""For each check id: an input without problems, an input with a problem, and the path of the problem."""

PLAN_CASES: dict[str, tuple[Planned, Planned, str]] = {
    "disk-size": (plan_with_disk("azure", 32767), plan_with_disk("azure", 32768), "cluster.storage.shared.size_gib"),
    "shared-path": (plan_with_path("lambda-a6000"), plan_with_path("gcp-a2"), "cluster.storage.shared.path"),
    "ssh-example": (plan_with_ssh("198.51.101.0/24"), plan_with_ssh("198.51.100.7/32"), SSH_PATH),
    "image-versions": (
        plan_with_versions(driver="1.2", fabric_manager="1.2"),
        plan_with_versions(driver="1.2"),
        "cluster.platform.image",
    ),
    "driver-available": (
        plan_with_driver("install"),
        plan_with_driver("install", image="debian-12"),
        "cluster.nodes.gpu.driver",
    ),
    "driver-without-gpus": (
        plan_with_driver("install"),
        plan_with_driver("install", gpu="fake"),
        "cluster.nodes.gpu.driver",
    ),
    "within-budget": (gcp_plan(limit=62.69), gcp_plan(limit=62.68), "cluster.limits.max_usd_per_hour"),
    "limit-can-be-kept": (
        gcp_plan(limit=70),
        gcp_plan(limit=70, gpu="a4-highgpu-8g"),
        "cluster.limits.max_usd_per_hour",
    ),
    # The disk's write throughput is 240 MiB/s plus 0.48 MiB/s per GiB. Each of the 16 GPUs needs 20 MiB/s.
    "storage-throughput": (plan_with_disk("gcp", 167), plan_with_disk("gcp", 166), "cluster.storage.shared"),
    "price-region": (
        gcp_plan(limit=70),
        gcp_plan(limit=170, gpu="a3-highgpu-8g"),
        "cluster.limits.max_usd_per_hour",
    ),
    "price": (planned(), gcp_plan(), "cluster"),
    "quota": (planned(), gcp_plan(), "cluster.nodes"),
    "unconfirmed": (planned(), unverified(), "cluster"),
}


def test_all_checks_have_cases() -> None:
    assert sorted(check.id for check in DRAFT_CHECKS) == sorted(DRAFT_CASES)
    assert sorted(check.id for check in PLAN_CHECKS) == sorted(["user-data-fits", *PLAN_CASES])


@pytest.mark.parametrize("check", DRAFT_CHECKS, ids=lambda check: check.id)
def test_draft_check(check: Check[Draft]) -> None:
    good, bad, path = DRAFT_CASES[check.id]
    assert list(check.run(good)) == []
    assert path in [problem.path for problem in check.run(bad)]


@pytest.mark.parametrize("check", DRAFT_CHECKS, ids=lambda check: check.id)
def test_draft_check_accepts_missing_sections(check: Check[Draft]) -> None:
    assert list(check.run(Draft())) == []


@pytest.mark.parametrize(
    "check", [check for check in PLAN_CHECKS if check.id in PLAN_CASES], ids=lambda check: check.id
)
def test_plan_check(check: Check[Planned]) -> None:
    good, bad, path = PLAN_CASES[check.id]
    assert list(check.run(good)) == []
    assert path in [problem.path for problem in check.run(bad)]


def test_user_data_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    [check] = [check for check in PLAN_CHECKS if check.id == "user-data-fits"]
    assert list(check.run(planned())) == []
    facts = replace(platform_facts("local"), user_data_limit=1000)
    monkeypatch.setattr("components.platforms.local.facts.FACTS", facts)
    assert [problem.path for problem in check.run(planned())] == ["cluster.platform"] * 2


@pytest.mark.parametrize("name", sorted(conflicts()))
def test_known_version_conflicts_are_refused(name: str) -> None:
    [check] = [check for check in PLAN_CHECKS if check.id == "image-versions"]
    found, known = planned(), conflicts()[name]
    image = image_with(found, {"more": "1", **known.versions})
    [problem] = check.run(replace(found, plan=replace(found.plan, image=image)))
    assert known.consequence in problem.rule


@pytest.mark.parametrize(("provider", "largest"), [("azure", 32767), ("gcp", 65536)])
def test_largest_disk_of_each_cloud(provider: str, largest: int) -> None:
    [check] = [check for check in PLAN_CHECKS if check.id == "disk-size"]
    assert list(check.run(plan_with_disk(provider, largest))) == []
    assert [problem.path for problem in check.run(plan_with_disk(provider, largest + 1))] == [
        "cluster.storage.shared.size_gib"
    ]


WITHOUT_HOSTS = {"gpu": GroupSpec(machine="m1", count=1)}


@pytest.mark.parametrize(
    ("bad", "path", "words"),
    [
        (
            draft_with_hosts("node1", "node1"),
            "cluster.nodes.gpu.hosts.1",
            "already listed in cluster.nodes.gpu.hosts.0",
        ),
        (
            replace(draft_with_hosts("node1"), head=HeadSpec(machine="m1", host="nod1")),
            "cluster.head.host",
            "must be one of",
        ),
        (
            replace(draft_with_hosts("node1"), nodes=WITHOUT_HOSTS),
            "cluster.nodes.gpu.hosts",
            "required on existing hosts",
        ),
        (replace(draft(), head=HeadSpec(machine="vm-head", host="a")), "cluster.head.host", "creates its machines"),
    ],
)
def test_invalid_lists_of_hosts_are_refused(bad: Draft, path: str, words: str) -> None:
    [check] = [check for check in DRAFT_CHECKS if check.id == "hosts-known"]
    [problem] = check.run(bad)
    assert problem.path == path
    assert words in problem.rule


def test_head_that_runs_jobs_may_have_gpus() -> None:
    assert [found.check for found in run_checks(DRAFT_CHECKS, draft_with_hosts("node1"))] == []


def test_findings_have_check_id_and_level() -> None:
    [finding] = run_checks(DRAFT_CHECKS, draft(head="vm-gpu2"))
    assert (finding.check, finding.level) == ("head-gpus-idle", Level.WARNING)


def test_groups_are_checked_if_the_platform_is_malformed() -> None:
    found_paths = [
        finding.problem.path for finding in run_checks(DRAFT_CHECKS, replace(draft(count=31), platform=None))
    ]
    assert found_paths == ["cluster.nodes.gpu.count"]


@pytest.mark.parametrize(("check", "words"), [("price", "62.45 dollars an hour"), ("quota", "16 of NVIDIA_A100_GPUS")])
def test_reports_price_and_quota(check: str, words: str) -> None:
    [found] = [found for found in PLAN_CHECKS if found.id == check]
    subject = gcp_plan(head="n2-standard-8" if check == "quota" else "a2-highgpu-1g")
    [problem] = found.run(subject)
    assert words in problem.rule


def test_price_advises_a_limit_only_if_none_is_set() -> None:
    [price] = [found for found in PLAN_CHECKS if found.id == "price"]
    [without], [limited] = price.run(gcp_plan()), price.run(gcp_plan(limit=1000))
    assert without.fix.startswith("set cluster.limits.max_usd_per_hour")
    assert limited.fix == "the limit of 1000 dollars an hour refuses changes that cost more"


def test_price_names_machines_with_unknown_price() -> None:
    [price] = [found for found in PLAN_CHECKS if found.id == "price"]
    [problem] = price.run(gcp_plan(gpu="a4-highgpu-8g"))
    assert "3.67 dollars" in problem.rule
    assert "plus the unknown price of a4-highgpu-8g" in problem.rule
