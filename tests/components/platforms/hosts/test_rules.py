"""Checks for stacks with existing hosts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from components.catalog import images
from components.plan.check import Check, Planned
from components.plan.plan import plan_cluster
from components.platforms.hosts.facts import FACTS
from components.spec.model import machine_types
from components.stackfile.read import cluster_spec
from tests.components.platforms.recording import stack_text

KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5{'A' * 48}"


def section(hosts: dict[int, dict[str, Any]] | None = None, **edits: Any) -> dict[str, Any]:
    """Return the cluster section of lambda-a6000 with `edits`. `hosts` contains changes to hosts by their index."""
    document = yaml.safe_load(stack_text("lambda-a6000", **edits))
    cluster: dict[str, Any] = document["config"]["trainyard:cluster"]
    for place, change in (hosts or {}).items():
        cluster["platform"]["hosts"][place] |= change
    return cluster


def on(place: int, **change: Any) -> dict[str, Any]:
    """Return the cluster section with a change to one host."""
    return section({place: change})


def machine(**facts: Any) -> dict[str, Any]:
    """Return the cluster with a machine type `own`."""
    return section(platform__machines={"own": {"vcpus": 8, "memory_gib": 64, **facts}})


def unused() -> dict[str, Any]:
    return section(nodes__gpu__hosts=["lambda-1"])


def collectives(kind: str, devices: int, **facts: Any) -> dict[str, Any]:
    """Return the cluster with a machine type and a number of RDMA devices."""
    return section(
        platform__rdma_devices=[f"mlx5_{index}" for index in range(devices)],
        platform__machines={"own": {"vcpus": 8, "memory_gib": 64, **facts}},
        head__machine=kind,
        nodes__gpu__machine=kind,
    )


FIRST = "cluster.platform.hosts.0"
SECOND = "cluster.platform.hosts.1"
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "hosts-address": (on(1, address="203.0.113.10", port=2222), on(1, address="203.0.113.10"), f"{SECOND}.address"),
    "hosts-private-ip": (section(), on(1, private_ip="10.19.60.10"), f"{SECOND}.private_ip"),
    "hosts-network": (on(0, private_ip="10.19.60.254"), on(0, private_ip="10.19.61.1"), f"{FIRST}.private_ip"),
    "hosts-host-key": (section(), on(0, host_key=None), f"{FIRST}.host_key"),
    "hosts-proxy": (on(1, proxy_jump="lambda-1"), on(1, proxy_jump="ubuntu@:x"), f"{SECOND}.proxy_jump"),
    "hosts-key-private": (section(), section(), "cluster.platform.key"),
    "hosts-key-missing": (section(), section(platform__key="/nowhere/key"), "cluster.platform.key"),
    "hosts-unused": (section(), unused(), f"{SECOND}"),
    "hosts-head-works": (section(), section(scheduler="slurm"), "cluster.nodes.gpu.hosts"),
    "hosts-machine": (
        machine(gpus=8, gpu_type="h100", fabric="infiniband", rdma=8),
        machine(gpus=8),
        "cluster.platform.machines.own.gpu_type",
    ),
    "hosts-rdma-devices": (
        collectives("dgx-h100", 8),
        collectives("dgx-h100", 7),
        "cluster.platform.rdma_devices",
    ),
    "hosts-defaults": (section(), section(access__via="private"), "cluster.access.via"),
    "hosts-storage": (section(), section(storage__shared={"kind": "filestore"}), "cluster.storage.shared.kind"),
    "hosts-unconfined": (section(), section(scheduler="slurm"), "cluster.platform.image"),
}
"""Check id -> a stack that passes, a stack that fails, and the path of the problem."""


def planned(cluster: dict[str, Any]) -> Planned:
    spec = cluster_spec(cluster)
    return Planned(plan=plan_cluster(spec, machine_types(spec.platform), images()[spec.platform.image]))


def paths(rule: Check[Planned], cluster: dict[str, Any]) -> list[str]:
    return [problem.path for problem in rule.run(planned(cluster))]


def test_every_rule_has_cases() -> None:
    assert sorted(rule.id for rule in FACTS.checks) == sorted(CASES)


@pytest.mark.parametrize("rule", FACTS.checks, ids=lambda rule: rule.id)
def test_check_passes_and_fails(rule: Check[Planned], tmp_path: Path) -> None:
    good, bad, path = CASES[rule.id]
    if rule.id == "hosts-key-private":
        good, bad = (key_file(tmp_path / str(mode), mode) for mode in (0o600, 0o640))
    assert paths(rule, good) == []
    assert paths(rule, bad) == [path]


def key_file(file: Path, mode: int) -> dict[str, Any]:
    file.touch()
    file.chmod(mode)
    return section(platform__key=str(file))


def rule(name: str) -> Check[Planned]:
    return next(rule for rule in FACTS.checks if rule.id == name)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"proxy_jump": "lambda-2"}, f"{SECOND}.proxy_jump"),  # itself
        ({"proxy_jump": "u@h:70000", "proxy_host_key": KEY}, f"{SECOND}.proxy_jump"),
        ({"proxy_jump": "u@h:22"}, f"{SECOND}.proxy_host_key"),
        ({"proxy_jump": "u@h:22", "proxy_host_key": "what"}, f"{SECOND}.proxy_host_key"),
        ({"proxy_jump": "u@h:22", "proxy_host_key": KEY}, None),
    ],
)
def test_a_jump_host_needs_a_host_key(change: dict[str, Any], path: str | None) -> None:
    assert paths(rule("hosts-proxy"), on(1, **change)) == ([path] if path else [])


def test_invalid_host_key_is_refused_with_the_scan_command() -> None:
    [problem] = rule("hosts-host-key").run(planned(on(1, host_key="SHA256:abc")))
    assert "yard hosts scan 203.0.113.11:22" in problem.fix


def test_a_head_in_a_group_has_the_machine_type_of_the_group() -> None:
    cluster = section(head__machine="small-server")
    assert paths(rule("hosts-head-works"), cluster) == ["cluster.head.machine"]


def test_rdma_requires_infiniband_or_roce() -> None:
    assert paths(rule("hosts-machine"), machine(rdma=2)) == ["cluster.platform.machines.own.rdma"]
    assert paths(rule("hosts-machine"), machine(fabric="infiniband")) == ["cluster.platform.machines.own.rdma"]
    assert paths(rule("hosts-machine"), machine(fabric="roce")) == ["cluster.platform.machines.own.rdma"]
    assert paths(rule("hosts-machine"), machine(fabric="roce", rdma=2)) == []


@pytest.mark.parametrize(("devices", "good"), [(0, False), (2, True), (3, False)])
def test_roce_requires_rdma_devices(devices: int, good: bool) -> None:
    found = paths(rule("hosts-rdma-devices"), collectives("own", devices, fabric="roce", rdma=2))
    assert found == ([] if good else ["cluster.platform.rdma_devices"])


@pytest.mark.parametrize(
    ("edits", "path"),
    [
        ({"nodes__gpu__placement": "compact"}, "cluster.nodes.gpu.placement"),
        ({"nodes__gpu__placement": "same_fabric"}, "cluster.nodes.gpu.placement"),
        ({"nodes__gpu__capacity": {"kind": "spot"}}, "cluster.nodes.gpu.capacity"),
        ({"nodes__gpu__capacity": {"kind": "reservation", "reservation": "r"}}, "cluster.nodes.gpu.capacity"),
        ({"access__via": "bastion"}, "cluster.access.via"),
    ],
)
def test_cloud_settings_are_refused_on_existing_hosts(edits: dict[str, Any], path: str) -> None:
    [problem] = rule("hosts-defaults").run(planned(section(**edits)))
    assert problem.path == path
    assert "has no effect" in problem.rule
    assert problem.fix == "leave it out"


def test_infiniband_devices_need_no_names() -> None:
    assert paths(rule("hosts-rdma-devices"), collectives("dgx-h100", 0)) == []


@pytest.mark.parametrize(
    ("path", "good"),
    [
        ("/raid/trainyard", True),
        ("/mnt/nvme0/a/b", True),
        ("/raid", False),
        ("/shared/x", False),
        ("/home/x", False),
        ("/etc/x", False),
        ("/raid/../etc", False),
        ("/raid//x", False),
        ("/raid/x/", False),
    ],
)
def test_the_shared_folder_is_outside_system_folders(path: str, good: bool) -> None:
    found = paths(rule("hosts-storage"), section(storage__shared={"kind": "head_nfs", "path": path}))
    assert found == ([] if good else ["cluster.storage.shared.path"])
