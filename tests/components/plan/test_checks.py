"""Each registered check accepts a valid case and reports a problem for an invalid case."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from typer.testing import CliRunner

from components.catalog import Image, conflicts, images, machines
from components.node.slurm import render_gres_conf
from components.plan.check import Check, Draft, Level, Planned, run_checks
from components.plan.plan import driver_origin, plan_cluster
from components.platforms import PLATFORMS
from components.platforms.registry import platform_facts, platform_spec
from components.spec.cluster import GroupSpec, HeadSpec, NetworkSpec
from components.stackfile.draft_checks import DRAFT_CHECKS
from components.stackfile.plan_checks import PLAN_CHECKS
from components.stackfile.read import cluster_spec, parse_stack
from tests.components.platforms.recording import planned, stack_text
from tests.people import person
from trainyard.errors import StackFileError
from yard.commands.cli import app

OF_PLATFORMS = [check for name in PLATFORMS for check in platform_facts(name).checks]
REGISTERED: list[Check[Any]] = [*DRAFT_CHECKS, *PLAN_CHECKS, *OF_PLATFORMS]
CHECKS = {check.id: check for check in REGISTERED}
LOCAL = planned("local", {})
PEOPLE = planned("local", {"users": [person("ann")]})
HOST = {"address": "203.0.113.10", "private_ip": "10.77.0.10", "name": "node1"}
PATH = {"storage__shared": {"kind": "head_nfs", "path": "/raid/trainyard"}}
GPU_HOSTS, DRIVER = "cluster.nodes.gpu.hosts", "cluster.nodes.gpu.driver"
AVAILABLE = "driver-available"
LIMIT, SIZE = "cluster.limits.max_usd_per_hour", "cluster.storage.shared.size_gib"


def draft(head: str = "vm-head", machine: str = "vm-gpu2", count: int = 2, cidr: str = "10.77.0.0/24") -> Draft:
    return Draft(
        platform=platform_spec({"provider": "local"}),
        provider="local",
        machines={"cluster.head.machine": head, "cluster.nodes.gpu.machine": machine},
        known_machines=machines("local"),
        network=NetworkSpec.model_validate({"cidr": cidr}),
        head=HeadSpec(machine=head),
        nodes={"gpu": GroupSpec(machine=machine, count=count)},
    )


def draft_with_hosts(*hosts: str) -> Draft:
    """Return a draft in which the group lists these hosts. The platform's only host, node1, is also the head."""
    return Draft(
        platform=platform_spec({"provider": "hosts", "image": "debian-13", "hosts": [HOST]}),
        head=HeadSpec(machine="dgx-h100"),
        nodes={"gpu": GroupSpec(machine="dgx-h100", hosts=hosts, count=len(hosts))},
    )


ONE = draft_with_hosts("node1")


def gcp(limit: float | None = None, gpu: str = "a2-highgpu-8g", head: str = "a2-highgpu-1g") -> Planned:
    edits = {"head__machine": head, "nodes__gpu__machine": gpu, "limits": {"max_usd_per_hour": limit}}
    return planned("gcp-a2", {**edits, "storage__shared": {"kind": "head_nfs"}})


def with_month_limit(usd: int) -> Planned:
    edits = {"head__machine": "a2-highgpu-1g", "storage__shared": {"kind": "head_nfs"}}
    return planned("gcp-a2", {**SLURM, **edits, "limits": {"max_usd_per_month": usd}})


def with_disk(stack: str, size_gib: int) -> Planned:
    return planned(stack, {"storage__shared": {"kind": "head_nfs", "size_gib": size_gib}})


def with_versions(**versions: str) -> Planned:
    """Return a plan whose image contains these software versions."""
    image: Image = LOCAL.plan.image.model_copy(update={"versions": versions})
    return replace(LOCAL, plan=replace(LOCAL.plan, image=image))


def elastic(stack: str, edits: Mapping[str, Any] = MappingProxyType({})) -> Planned:
    return planned(stack, {**edits, "nodes__gpu__elastic": {"min": 0, "idle_minutes": 20}})


def with_driver(driver: str | None, gpu: str = "a100", image: str = "debian-13", host: bool = False) -> Planned:
    """Return a plan whose group has these GPUs and this value of `driver`, with a local machine or an existing host."""
    vm = machines("local")["vm-gpu2"]
    machine = vm if gpu == "fake" else vm.model_copy(update={"gpu_type": gpu, "gpu_device": "/dev/nvidia"})
    existing = {"provider": "hosts", "image": image, "hosts": [HOST]}
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
    return Planned(plan=plan_cluster(spec, {**machines("local"), "vm-gpu2": machine}, images()[image]))


def unverified() -> Planned:
    """Return a plan with an unverified fact about the head."""
    head = LOCAL.plan.head
    machine = head.machine.model_copy(update={"unverified": ("vcpus",)})
    return replace(LOCAL, plan=replace(LOCAL.plan, head=replace(head, machine=machine)))


IDLE_GPU = {"idle_gpu": {"minutes": 30}}
SLURM = {"scheduler": "slurm", "containers": "none"}

CASES: dict[str, tuple[Any, Any, str]] = {
    "machine-known": (draft(), draft(head="vm-heads"), "cluster.head.machine"),
    "hosts-known": (ONE, draft_with_hosts("node1", "node2"), f"{GPU_HOSTS}.1"),
    "group-fits": (draft(count=30), draft(count=31), "cluster.nodes.gpu.count"),
    "network-free": (draft(cidr="172.18.0.0/16"), draft(cidr="172.17.200.0/24"), "cluster.network.cidr"),
    "head-gpus-idle": (draft(), draft(head="vm-gpu2"), "cluster.head.machine"),
    "disk-size": (with_disk("azure-a100", 32767), with_disk("azure-a100", 32768), SIZE),
    "elastic-platform": (
        elastic("baremetal-h100", {"platform__power_command": ["/usr/local/sbin/power-node"]}),
        elastic("baremetal-h100"),
        "cluster.nodes.gpu.elastic",
    ),
    "elastic-capacity": (planned("gcp-a2", SLURM), elastic("gcp-a2", SLURM), "cluster.nodes.gpu.elastic"),
    "shared-path": (planned("lambda-a6000", PATH), planned("gcp-a2", PATH), "cluster.storage.shared.path"),
    "ssh-example": (
        planned("gcp-a2", {"access__allow_ssh_from": ["198.51.101.0/24"]}),
        planned("gcp-a2", {"access__allow_ssh_from": ["198.51.100.7/32"]}),
        "cluster.access.allow_ssh_from.0",
    ),
    "image-versions": (
        with_versions(driver="1.2", fabric_manager="1.2"),
        with_versions(driver="1.2", fabric_manager="1.3"),
        "cluster.platform.image",
    ),
    "driver-available": (with_driver("install"), with_driver("install", image="debian-12"), DRIVER),
    "driver-without-gpus": (with_driver("install"), with_driver("install", gpu="fake"), DRIVER),
    "month-limit-has-prices": (
        planned("gcp-a2", {**SLURM, "limits": {"max_usd_per_month": 100}}),
        planned("local", {"limits": {"max_usd_per_month": 100}}),
        "cluster.limits.max_usd_per_month",
    ),
    "idle-gpu-has-gpus": (
        planned("gcp-a2", {**SLURM, "limits": IDLE_GPU}),
        planned("local", {"limits": IDLE_GPU}),
        "cluster.limits.idle_gpu",
    ),
    "within-budget": (gcp(limit=62.84), gcp(limit=62.83), LIMIT),
    "limit-can-be-kept": (gcp(limit=70), gcp(limit=70, gpu="a4-highgpu-8g"), LIMIT),
    # The disk's write throughput is 240 MiB/s plus 0.48 MiB/s per GiB. Each of the 16 GPUs needs 20 MiB/s.
    "storage-throughput": (with_disk("gcp-a2", 167), with_disk("gcp-a2", 166), "cluster.storage.shared"),
    "price-region": (gcp(limit=70), gcp(limit=170, gpu="a3-highgpu-8g"), LIMIT),
    "price": (LOCAL, gcp(), "cluster"),
    "quota": (LOCAL, gcp(), "cluster.nodes"),
    "unconfirmed": (LOCAL, unverified(), "cluster"),
    "users-distinct": (
        planned("local", {"users": [person("ann"), person("bob")]}),
        planned("local", {"users": [person("ann"), person("ann")]}),
        "cluster.users.1.name",
    ),
    "limits-known": (
        planned("local", {"users": [person("ann")], "limits": {"people": {"ann": {"gpus": 1}}}}),
        planned("local", {"users": [person("bob")], "limits": {"people": {"ann": {"gpus": 1}}}}),
        "cluster.limits.people.ann",
    ),
    "users-supported": (
        PEOPLE,
        replace(PEOPLE, plan=replace(planned("lambda-a6000", {}).plan, users=PEOPLE.plan.users)),
        "cluster.users",
    ),
    "users-storage": (
        PEOPLE,
        replace(
            PEOPLE, plan=replace(PEOPLE.plan, storage=PEOPLE.plan.storage.model_copy(update={"kind": "azure_files"}))
        ),
        "cluster.storage.shared.kind",
    ),
}
"""For each check: a subject without problems, a subject with a problem, and the problem's path."""


def test_all_checks_have_cases() -> None:
    assert CHECKS.keys() - {check.id for check in OF_PLATFORMS} == {"user-data-fits", *CASES}
    assert len(CHECKS) == len(REGISTERED), "an ID is used twice"


@pytest.mark.parametrize("name", CASES)
def test_check(name: str) -> None:
    good, bad, path = CASES[name]
    assert list(CHECKS[name].run(good)) == []
    assert path in [problem.path for problem in CHECKS[name].run(bad)]


def test_draft_checks_accept_missing_sections() -> None:
    assert list(run_checks(DRAFT_CHECKS, Draft())) == []


def test_checks_command_lists_all_checks() -> None:
    rows = json.loads(CliRunner().invoke(app, ["checks", "--json"]).stdout)
    assert [row["id"] for row in rows] == list(CHECKS)
    assert {row["platform"] for row in rows} == {"all", *PLATFORMS}
    for row in rows:
        assert row["rule"].endswith("."), row
        assert all(row["fixes"] or [""]), row
    shown = CliRunner().invoke(app, ["checks"]).stdout
    assert all(row["id"] in shown for row in rows)


def test_user_data_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check = CHECKS["user-data-fits"]
    assert list(check.run(LOCAL)) == []
    monkeypatch.setattr(
        "components.platforms.local.facts.FACTS", replace(platform_facts("local"), user_data_limit=1000)
    )
    assert [problem.path for problem in check.run(LOCAL)] == ["cluster.platform"] * 2


@pytest.mark.parametrize("name", sorted(conflicts()))
def test_known_version_conflicts_are_refused(name: str) -> None:
    [problem] = CHECKS["image-versions"].run(with_versions(more="1", **conflicts()[name].versions))
    assert conflicts()[name].consequence in problem.rule


def test_largest_disk_on_google_cloud() -> None:
    sizes = [list(CHECKS["disk-size"].run(with_disk("gcp-a2", size))) for size in (65536, 65537)]
    assert [[problem.path for problem in problems] for problems in sizes] == [[], [SIZE]]


@pytest.mark.parametrize(
    ("bad", "path", "words"),
    [
        (draft_with_hosts("node1", "node1"), f"{GPU_HOSTS}.1", f"already listed in {GPU_HOSTS}.0"),
        (replace(ONE, head=HeadSpec(machine="m1", host="nod1")), "cluster.head.host", "must be one of"),
        (replace(ONE, nodes={"gpu": GroupSpec(machine="m1", count=1)}), GPU_HOSTS, "required on existing hosts"),
        (replace(draft(), head=HeadSpec(machine="vm-head", host="a")), "cluster.head.host", "creates its machines"),
    ],
)
def test_invalid_lists_of_hosts_are_refused(bad: Draft, path: str, words: str) -> None:
    [problem] = CHECKS["hosts-known"].run(bad)
    assert problem.path == path
    assert words in problem.rule


@pytest.mark.parametrize(
    ("subject", "found"),
    [
        (ONE, []),  # a head that runs jobs may have GPUs
        (draft(head="vm-gpu2"), [("head-gpus-idle", Level.WARNING)]),
        # Groups are checked even if the platform is malformed.
        (replace(draft(count=31), platform=None), [("group-fits", Level.ERROR)]),
    ],
)
def test_findings_have_check_id_and_level(subject: Draft, found: list[tuple[str, Level]]) -> None:
    assert [(finding.check, finding.level) for finding in run_checks(DRAFT_CHECKS, subject)] == found


def test_month_limit_warns_of_unknown_prices_and_other_regions() -> None:
    limits = {**SLURM, "limits": {"max_usd_per_month": 100}, "storage__shared": {"kind": "head_nfs"}}
    for check, gpu in (("limit-can-be-kept", "a4-highgpu-8g"), ("price-region", "a3-highgpu-8g")):
        problems = list(CHECKS[check].run(planned("gcp-a2", {**limits, "nodes__gpu__machine": gpu})))
        assert [problem.path for problem in problems] == ["cluster.limits.max_usd_per_month"]


@pytest.mark.parametrize(
    ("check", "subject", "rule", "fix"),
    [
        ("price", gcp(), "62.45 dollars an hour", "set cluster.limits.max_usd_per_hour"),
        ("price", gcp(limit=1000), "62.45 dollars", "the limit is 1000 dollars an hour"),
        (
            "price",
            with_month_limit(20_000),
            "62.45 dollars",
            "when 20000 dollars of a calendar month are spent",
        ),
        ("price", gcp(gpu="a4-highgpu-8g"), "3.67 dollars an hour", ""),
        ("price", gcp(gpu="a4-highgpu-8g"), "plus the unknown price of a4-highgpu-8g", ""),
        ("quota", gcp(head="n2-standard-8"), "16 of NVIDIA_A100_GPUS", ""),
        (AVAILABLE, with_driver("image"), "image debian-13 has no NVIDIA driver", "write `driver: install`"),
        (AVAILABLE, with_driver("install", image="azure-ubuntu-24.04-hpc"), "already has NVIDIA driver", "remove it"),
        (AVAILABLE, with_driver("install", image="ubuntu-22.04"), "no driver versions are locked", "debian-13, ubuntu"),
        (AVAILABLE, with_driver("install", gpu="v100"), "Turing and later GPUs only", "different machine type"),
        (AVAILABLE, with_driver("install", gpu="b200"), "do not support Blackwell", "different machine type"),
        ("unconfirmed", with_driver("install", image="ubuntu-24.04"), "packages, their hashes of driver 580", ""),
    ],
)
def test_rule_and_fix_depend_on_the_subject(check: str, subject: Planned, rule: str, fix: str) -> None:
    problem = next(iter(CHECKS[check].run(subject)))
    assert rule in problem.rule
    assert fix in problem.fix


@pytest.mark.parametrize("subject", [with_driver("image", host=True), with_driver(None, image="ubuntu-24.04")])
def test_groups_with_a_driver_are_accepted(subject: Planned) -> None:
    assert list(CHECKS["driver-available"].run(subject)) == []


@pytest.mark.parametrize(
    ("machine", "image", "exists", "origin"),
    [
        ("Standard_ND96isr_H100_v5", "azure-ubuntu-24.04-hpc", False, "image"),
        ("Standard_ND96isr_H100_v5", "ubuntu-24.04", False, "install"),
        ("Standard_ND96isr_H100_v5", "debian-12", False, "image"),
        ("Standard_ND96isr_H100_v5", "debian-13", True, "image"),
        ("Standard_D8s_v5", "azure-ubuntu-24.04-hpc", False, "none"),
    ],
)
def test_default_driver_depends_on_machine_and_image(machine: str, image: str, exists: bool, origin: str) -> None:
    assert driver_origin(None, machines("azure")[machine], images()[image], exists=exists) == origin


def test_nodes_without_a_driver_have_no_real_gpus() -> None:
    assert {host.driver for host in with_driver(None, gpu="fake").plan.workers} == {"none"}
    assert [with_driver(key, host=True).plan.head.driver for key in (None, "install")] == ["image", "install"]
    plan = with_driver("none").plan
    assert plan.workers[0].machine.gpus == 0
    assert "Name=gpu" not in render_gres_conf(plan)
    assert with_driver("none", gpu="fake").plan.workers[0].machine.gpus == 2


def test_silences_a_warning() -> None:
    idle: dict[str, Any] = {"head__machine": "vm-gpu2"}
    assert [finding.check for finding in parse_stack(stack_text("local", **idle), "f").findings] == ["head-gpus-idle"]
    assert parse_stack(stack_text("local", **idle, silence=["head-gpus-idle"]), "f").findings == ()


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("user-data-fits", "only warnings and notes can be silenced"),
        ("head-gpu-idle", "write head-gpus-idle"),
        ("gcp-zone", "no check for this stack"),
    ],
)
def test_refuses_to_silence_errors_and_unknown_checks(check: str, words: str) -> None:
    with pytest.raises(StackFileError) as caught:
        parse_stack(stack_text("local", silence=[check]), "f")
    [problem] = caught.value.problems
    assert problem.path == "cluster.silence.0"
    assert words in problem.line("f")
