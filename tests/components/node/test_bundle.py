"""The bundle, the parameters in it and in the hand-over, and the names and builders of baked images."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from repair.service import read_site

from components.catalog import Floors, driver_locks, floors
from components.cluster.outputs import Reach, cluster_outputs
from components.node.bake import baked_name, builder_user_data
from components.node.bundle import render_bundle
from components.node.files import driver_lock, driver_version, mirror_program, shipped_files
from components.node.parameters import ON_HEAD, SharedFiles, render_gates, render_repair, storage_env
from components.node.user_data import install_script
from components.plan.plan import ClusterPlan
from components.platforms import PLATFORMS
from components.spec.model import BAKED_NAME
from components.stackfile.read import parse_stack
from tests.components.platforms.recording import stack_text
from tests.yard.conftest import HOST_KEY, outputs

SMALL_GPUS = {"Standard_ND40rs_v2": 32, "Standard_ND96asr_v4": 40}
"""GPU memory in GB of the machines with floors and less than 80 GB."""
Gate = float | Literal["default", "off"]
FLOORS = Floors(name="m", source="s", dated="2026-11-23", node=431, node_gib=16, pair=400, pair_gib=8)


def members(plan: ClusterPlan, shared: SharedFiles = ON_HEAD) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(render_bundle(plan, shared).archive)) as archive:
        opened = {entry.name: archive.extractfile(entry) for entry in archive}
    return {name: file.read().decode() for name, file in opened.items() if file is not None}


def with_driver(plan: ClusterPlan, driver: str) -> ClusterPlan:
    return replace(plan, workers=tuple(replace(host, driver=driver) for host in plan.workers))


def group_of(plan: ClusterPlan, workers: int, gate: Gate, floors: Floors | None = None) -> dict[str, Any]:
    """Return the gate's parameters for a group with this number of nodes."""
    machine = plan.workers[0].machine.model_copy(update={"floors": floors, "gpu_device": "/dev/nvidia"})
    hosts = tuple(replace(plan.workers[0], machine=machine, name=f"gpu-{index}") for index in range(workers))
    text = render_gates(replace(plan, workers=hosts, busbw_gate=gate))
    assert text is not None
    found: dict[str, Any] = json.loads(text)["gpu"]
    return found


def with_spares(plan: ClusterPlan, spares: int) -> ClusterPlan:
    groups = {name: section.model_copy(update={"spares": spares}) for name, section in plan.groups.items()}
    return replace(plan, groups=groups)


def replaced(text: str, program: str) -> str:
    """Return the output of `sed -E` with this program for this text."""
    return subprocess.run(["sed", "-E", program], input=text, capture_output=True, text=True, check=True).stdout


def test_count_of_a_group_does_not_change_the_bundle(local_plan: ClusterPlan) -> None:
    first = render_bundle(local_plan, ON_HEAD)
    assert first == render_bundle(replace(local_plan, workers=local_plan.workers[:1]), ON_HEAD)
    assert first.digest == hashlib.sha256(first.archive).hexdigest()


def test_each_kind_has_its_storage_parameters(local_plan: ClusterPlan) -> None:
    shared = SharedFiles(disk="/dev/x")
    files = members(local_plan, shared)
    assert "PRIVATE KEY-" not in "".join(files.values())
    for kind, host in {"head": local_plan.head, "worker-gpu": local_plan.workers[0]}.items():
        assert files[f"kinds/{kind}/storage.env"] == storage_env(host, shared)
        assert ("/dev/x" in storage_env(host, shared)) is (kind == "head")


def test_programs_of_the_bundle_run_without_the_checkout(local_plan: ClusterPlan, tmp_path: Path) -> None:
    for path, text in members(local_plan).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    code = "import health.program, repair.service, gate.program, bandwidth.program; from trainyard.faults import UPDATE"
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}; print(UPDATE)"
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"drain_reason={done.stdout}" in (tmp_path / "reasons.sh").read_text()


def test_only_nodes_that_install_a_driver_have_its_files(local_plan: ClusterPlan) -> None:
    plan = with_driver(local_plan, "install")
    assert driver_lock(plan, plan.head) is None
    paths = [path for path in members(plan) if "driver" in path]
    assert paths == ["driver.sh", "kinds/worker-gpu/driver.lock", "stages/30-driver"]
    assert not [path for path in members(local_plan) if path.startswith("driver")]
    # User-data does not depend on the lock.
    assert "/driver.lock\n" not in install_script(plan, plan.workers[0])
    assert [driver_version(plan, host) for host in plan.hosts] == ["", "550.163.01", "550.163.01"]


def test_lock_file_has_a_line_for_each_package(local_plan: ClusterPlan) -> None:
    plan, lock = with_driver(local_plan, "install"), driver_locks()["debian-13"]
    lines = (driver_lock(plan, plan.workers[0]) or "").splitlines()
    assert lines[:2] == ["driver 550.163.01", "module nvidia-current-open"]
    smi = lock.packages["nvidia-smi"]
    assert f"package nvidia-smi {smi.version} {smi.sha256}" in lines
    assert len([line for line in lines if line.startswith("package ")]) == len(lock.packages)
    [(path, text)] = lock.files.items()
    assert lines[lines.index(f"file {path}") + 1 :] == [f"| {line}" for line in text.splitlines()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("deb http://a.example.org/debian trixie main", "deb http://m/d trixie main"),
        ("deb http://a.example.org/debian/ trixie main", "deb http://m/d/ trixie main"),
        ("URIs: https://a.example.org/debian", "URIs: http://m/d"),
        ("deb http://a.example.org/debian-security x", "deb http://m/s x"),
        ("URIs: http://azure.example.org/ubuntu/", "URIs: http://m/u/"),
        ("URIs: http://a.example.org/ubuntu http://b.example.org/ubuntu", "URIs: http://m/u http://m/u"),
        ("deb http://a.example.org/apt/debian x", "deb http://a.example.org/apt/debian x"),
    ],
)
def test_mirrors_replace_archives_of_the_distribution(line: str, expected: str) -> None:
    mirrors = {"debian": "http://m/d", "debian_security": "http://m/s", "ubuntu": "http://m/u"}
    assert replaced(line, mirror_program(mirrors, distribution=True)) == expected
    # Other programs replace only the archives of vendors.
    assert mirror_program(mirrors) == ""
    vendors = mirror_program({**mirrors, "google_cloud": "http://m/g"})
    assert replaced(f"{line}\ndeb https://packages.cloud.google.com/apt x", vendors) == f"{line}\ndeb http://m/g x"


def test_user_data_contains_mirrors_only_if_configured(local_plan: ClusterPlan) -> None:
    for mirrors in ({}, {"debian": "http://m/d"}):
        script = install_script(replace(local_plan, mirrors=mirrors), local_plan.head)
        assert ("birth/mirrors.sh\n" in script) is bool(mirrors)


@pytest.mark.parametrize(
    ("workers", "gate", "floors", "expected"),
    [
        (2, 185.0, None, (None, 185.0)),
        (1, 185.0, None, (185.0, 185.0)),
        (1, 185.0, FLOORS, (431, 185.0)),
        (2, "default", FLOORS, (431, 400)),
        (1, "default", None, (None, None)),
    ],
)
def test_a_number_is_the_floor_for_a_single_node(
    local_plan: ClusterPlan, workers: int, gate: Gate, floors: Floors | None, expected: tuple[float | None, ...]
) -> None:
    group = group_of(local_plan, workers, gate, floors)
    assert (group["alone"], group["pair"]) == expected
    assert group["sizes"] == (["16G", "8G"] if floors else ["4G", "4G"])
    assert not group["drain_unmeasured"]
    assert group_of(replace(local_plan, unmeasured="drain"), workers, gate)["drain_unmeasured"]


def test_each_floor_is_measured_at_the_size_of_its_source(local_plan: ClusterPlan) -> None:
    rows = {name: row for provider in PLATFORMS for name, row in floors(provider).items()}
    assert len(rows) > 5
    for name, row in rows.items():
        assert (row.node is None, row.pair is None) == (row.node_gib is None, row.pair_gib is None), name
        sizes = [gib or 4 for gib in (row.node_gib, row.pair_gib)]
        assert group_of(local_plan, 2, "default", row)["sizes"] == [f"{size}G" for size in sizes], name
        # nccl-tests with -c 1 allocates three buffers (src/common.cu at v2.17.1; read 2026-11-22).
        assert 3 * max(sizes) < SMALL_GPUS.get(name, 80), name


def test_repair_service_reads_its_parameters(local_plan: ClusterPlan) -> None:
    text = render_repair(with_spares(local_plan, 1))
    assert text is not None
    site = read_site(text)
    assert site.silent_seconds == 15
    assert [(group.name, group.spares) for group in site.groups] == [("gpu", 1)]
    assert site.addresses == {host.name: str(host.private_ip) for host in local_plan.workers}
    assert render_repair(replace(local_plan, scheduler="none")) is None


@pytest.mark.parametrize(("spares", "shown"), [(1, {"gpu": 1}), (0, {})])
def test_outputs_contain_the_spares(local_plan: ClusterPlan, spares: int, shown: dict[str, int]) -> None:
    plan = with_spares(local_plan, spares)
    reach = {host.name: Reach(host_key=HOST_KEY, address=None, port=22) for host in plan.workers}
    assert cluster_outputs(plan, outputs(2, "fake", 1, None).head, reach).spares == shown


ONCE = sorted(file.stage for file in shipped_files() if file.stage and "# runs: once" in file.text.splitlines())


def plan_of(stack: str = "local", **edits: Any) -> ClusterPlan:
    return parse_stack(stack_text(stack, **edits), "test").plan


def name(base: str = "base", **edits: Any) -> str:
    return baked_name(plan_of(**edits), base)


def test_the_name_changes_with_the_content() -> None:
    direct: dict[str, Any] = {"scheduler": "none"}
    names = [
        name(),
        name(base="other"),
        name(**direct),
        name(**direct, containers="docker"),
        baked_name(replace(plan_of(), workers=()), "base"),
    ]
    assert len(set(names)) == len(names)


def test_the_name_does_not_depend_on_names_and_mirrors() -> None:
    edits: dict[str, Any] = {
        "name": "other",
        "network__cidr": "10.99.0.0/20",
        "nodes__gpu__count": 3,
        "mirrors": {"debian": "http://mirror.example.org/debian"},
        "nodes": {"renamed": {"machine": "vm-gpu2", "count": 2}},
    }
    assert {name(**{key: value}) for key, value in edits.items()} == {name()}


@pytest.mark.parametrize("stack", ["local", "azure-a100", "gcp-a3-mega"])
def test_the_builder_runs_all_stages_and_has_no_keys(stack: str) -> None:
    plan = plan_of(stack)
    assert re.fullmatch(BAKED_NAME, baked_name(plan, "base"))
    assert plan.image.os.replace(".", "-") in baked_name(plan, "base")
    text = builder_user_data(plan)
    assert ONCE == ["10-base", "15-archive", "20-apt", "31-system"]
    for stage in ONCE:
        assert text.count(f"/stages/{stage}\n") == 1
        assert text.count(f"{stage}\n") > 2, "each kind of node lists the stage"
    # Only the workers of gcp-a3-mega need NCCL's transport.
    assert text.count("\n45-transport\n") == (stack == "gcp-a3-mega")
    assert "users: []" in text
    assert not re.search("ssh-ed25519 |ssh-rsa |PRIVATE KEY|ssh_authorized_keys", text)


def test_the_builder_uses_mirrors_and_locks() -> None:
    text = builder_user_data(plan_of(mirrors={"debian": "http://mirror.example.org/debian"}))
    assert "/mirrors.sh\n" in text
    assert "http://mirror.example.org/debian" in text
    assert "/driver.lock" not in text.partition("=== /etc")[0]
    plan = plan_of()
    locked = replace(plan, workers=tuple(replace(host, driver="install") for host in plan.workers))
    assert "=== /var/lib/trainyard/bundles/birth/kinds/worker-gpu/driver.lock\n" in builder_user_data(locked)
    assert baked_name(locked, "base") != baked_name(plan, "base")
