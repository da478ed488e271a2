"""Each health check passes on a healthy node and fails on a node with the fault that it detects."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from health import gpu, node
from health.daemon import function_for, report, run_check
from health.fabric import PLUGIN_FOLDERS
from health.node import FAIL, PASS, SEVERITIES, UNKNOWN, Check, Node, Ran, checks_for, load_checks, metadata, run_tool
from health.slurm import warn_jobs

from components.catalog import fabrics
from tests.cloud_init.health.health_site import FAULTS, Site, healthy, use_data_disk
from tests.cloud_init.metadata_server import Metadata

CHECKS = load_checks()
_ACTION = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from"
CASES = [(check, number) for check in CHECKS for number in range(len(FAULTS[check]))]
GPUDIRECT = {"gpudirect-cards", "network-plugin"}
"""Checks for nodes with GPUDirect. They do not apply to the healthy node, which has InfiniBand."""
SHARED = {"shared-full", "shared-disk"}
"""Checks for heads."""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return healthy(tmp_path)


def quick(check: str) -> Check:
    """Return a check that waits only briefly for a file system."""
    return replace(CHECKS[check], timeout=min(CHECKS[check].timeout, 0.2))


def test_every_check_has_a_function_and_a_fault() -> None:
    assert list(CHECKS) == list(FAULTS)
    assert all(map(function_for, CHECKS))


@pytest.mark.parametrize(("check", "number"), CASES)
def test_fault_fails_only_its_check(check: str, number: int, site: Site) -> None:
    change, text = FAULTS[check][number]
    names = {found.id for found in checks_for(site.node, "periodic")} | GPUDIRECT | {check}
    # Some checks compare later values with those of the healthy node.
    assert {run_check(site.node, quick(name)).state for name in names} == {PASS}
    site.node.memo.pop("nvidia-smi", None)
    change(site)
    outcomes = {name: run_check(site.node, quick(name)) for name in names}
    site.hanging.clear()
    assert {name: outcome.text for name, outcome in outcomes.items() if outcome.state == FAIL} == {check: text}


def test_missing_tools_and_files_are_no_verdict(site: Site) -> None:
    site.tools, site.offset = {}, None
    outcomes = {check: run_check(site.node, quick(check)).state for check in CHECKS}
    assert {check for check, state in outcomes.items() if state == FAIL} == {"nvidia-smi"}
    assert {check for check, state in outcomes.items() if state == UNKNOWN} >= {"gpu-nvlink", "clock-offset"}


def test_error_in_a_check_is_no_verdict(site: Site) -> None:
    site.tools["nvidia-smi"] = Ran(0, None)  # type: ignore[arg-type]
    outcome = run_check(site.node, CHECKS["gpu-memory"])
    assert (outcome.state, outcome.text[:17]) == (UNKNOWN, "the check failed:")


def test_stopped_file_server_is_no_fault_of_the_node(site: Site) -> None:
    site.hanging.add("/shared")
    for ports in ({2049: "refused"}, {2049: "silent", 6817: "silent"}):
        site.ports = dict(ports)
        assert run_check(site.node, quick("nfs-hang")).state == UNKNOWN
    site.hanging.clear()


@pytest.mark.parametrize(("free", "state"), [(100, PASS), (20, FAIL)])
def test_small_file_system_needs_a_tenth(free: int, state: str, site: Site) -> None:
    """On Debian 13, the size of /tmp is half of the memory: 384 MiB on a small virtual machine."""
    small: Any = SimpleNamespace(f_frsize=2**20, f_blocks=384, f_bavail=free, f_files=0, f_favail=0)
    site.node.statvfs = lambda path: small
    assert run_check(site.node, CHECKS["disk-full"]).state == state


def test_memory_of_a_busy_node_is_not_judged(site: Site) -> None:
    site.write("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cgroup.procs", "1\n")
    for check in ("low-memory", "leftover-files"):
        FAULTS[check][0][0](site)
        assert run_check(site.node, CHECKS[check]).state == UNKNOWN


def test_gpus_without_a_bridge_have_no_nvlink_fault(site: Site) -> None:
    shutil.rmtree(site.root / "proc/driver/nvidia-nvswitch/devices")
    site.tools["nvidia-smi nvlink"] = Ran(0, "GPU 0: NVIDIA RTX A6000 (UUID: GPU-1)\n\t Link 0: <inactive>\n")
    assert run_check(site.node, CHECKS["gpu-nvlink"]).state == PASS


def test_fake_gpus_are_counted_as_device_files(site: Site) -> None:
    text = (site.root / "etc/trainyard/node.env").read_text()
    site.write("/etc/trainyard/node.env", text.replace("h100", "fake").replace("/dev/nvidia", "/dev/fakegpu"))
    site.write("/dev/fakegpu0", "")
    assert run_check(site.node, CHECKS["gpu-count"]).text == "1 of 2 GPUs work"
    site.write("/dev/fakegpu1", "")
    assert run_check(site.node, CHECKS["gpu-count"]).state == PASS


def test_checks_depend_on_the_facts_of_the_node(site: Site) -> None:
    names = {check.id for check in checks_for(site.node, "periodic")}
    assert names == set(CHECKS) - SHARED - GPUDIRECT
    site.write("/etc/trainyard/node.env", "TRAINYARD_ROLE=head\nTRAINYARD_SCHEDULER=none\nTRAINYARD_GPUS=0\n")
    shutil.rmtree(site.root / "proc/driver/nvidia-nvswitch/devices")
    site.node.path("/sys/class/dmi/id/chassis_asset_tag").unlink()
    assert {check.id for check in checks_for(site.node, "periodic")} == {*SHARED, "disk-full", "root-read-only"}


def test_shared_folders_on_the_attached_disk_pass(site: Site) -> None:
    use_data_disk(site)
    assert run_check(site.node, CHECKS["shared-disk"]).state == PASS


@pytest.mark.parametrize("fabric", PLUGIN_FOLDERS)
def test_installed_plugin_with_its_receive_daemon_passes(fabric: str, site: Site) -> None:
    text = (site.root / "etc/trainyard/node.env").read_text()
    site.write("/etc/trainyard/node.env", text.replace("infiniband-ndr", fabric))
    site.write(f"{PLUGIN_FOLDERS[fabric]}/libnccl-net.so", "")
    site.tools["docker"] = Ran(0, "receive-datapath-manager\n")
    assert {check.id for check in checks_for(site.node, "periodic")} >= GPUDIRECT
    assert run_check(site.node, CHECKS["network-plugin"]).state == PASS
    site.tools["docker"] = Ran(None, problem="no result after 10 s")
    assert run_check(site.node, CHECKS["network-plugin"]).state == (PASS if fabric == "gpudirect-gib" else UNKNOWN)


def test_plugin_folders_are_those_of_the_catalog() -> None:
    catalog = {name: fabric.library_path for name, fabric in fabrics().items() if name.startswith("gpudirect-")}
    assert catalog == PLUGIN_FOLDERS


def test_rows_of_the_data_are_complete() -> None:
    for row in json.loads((Path(node.__file__).parent / "checks.json").read_text())["checks"]:
        assert row["severity"] in SEVERITIES
        assert set(row["contexts"]) <= {"boot", "prolog", "periodic", "epilog"}
        assert row["undrain"] in {"passes", "reboot"}
        assert row["source"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["dated"])
        row["fix"].format(host="x")
        # The node is drained within 45 s of a fault, unless the fault is intermittent.
        if row["id"] in {"disk-full", "munge", "root-read-only", "clock-offset", "nfs-hang", "rdma-port"}:
            assert row["every"] + 5 * (row["fails"] - 1) + row["timeout"] * row["fails"] <= 45


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', GPU has fallen off the bus.", "Xid 79, GPU has fallen"),
        ("NVRM: Xid (0000:cb:00): 48, pid=7, DBE", "Xid 48, uncorrectable memory error"),
        (f"{_ACTION} 0x0 (None) to 0x2 (Node Reboot Required)", "Xid 154"),
        (f"{_ACTION} 0x2 (Node Reboot Required) to 0x0 (None)", None),
        (f"{_ACTION} 0x2 (Node Reboot Required) to 0x0 (None), name=to Reboot", None),
        ("NVRM: Xid (PCI:0000:01:00): 13, Graphics SM Warp Exception", None),
        ("usb 1-1: Xid 79", None),
    ],
)  # fmt: skip
def test_only_fatal_xids_are_faults(line: str, text: str | None) -> None:
    found = gpu.fatal_xid(line, gpu.load_xids())
    assert (found or "").startswith(text or "")
    assert (found is None) == (text is None)


_FORGED = (
    # An unprivileged `mount -t tmpfs -o 'NVRM: ...'` in a user namespace, without and with a line break in the option.
    b"3,337,655008662,-;tmpfs: Unknown parameter 'NVRM: Xid (PCI:0000:01:00): 79'\n",
    b"3,338,655013871,-;tmpfs: Unknown parameter 'a\\x0aNVRM: Xid (PCI:0000:01:00): 79'\n",
    # A crash of a process named "NVRM: Xid (0): ".
    b"6,872,1612149820,-;NVRM: Xid (0): [29026]: segfault at 0 ip 000055ac7e79915b sp 00007ffcf5c3a4d0 error 6\n",
    # `echo '<4>NVRM: ...' >/dev/kmsg`, as root.
    b"12,870,1611741026,-;NVRM: Xid (PCI:0000:01:00): 79, from a program\n",
    # A part of a line, which has the flag "c".
    b"4,900,1611741026,c;NVRM: Xid (PCI:0000:01:00): 79\n",
)
"""Records of /dev/kmsg that no GPU driver wrote. All except the last were read with Linux 6.18 on 2026-11-24."""


@pytest.mark.parametrize("record", _FORGED)
def test_users_cannot_forge_an_xid(record: bytes) -> None:
    assert _xids(record) == []
    driver = b"4,901,1611741026,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n"
    assert _xids(driver) == ["Xid 79, GPU has fallen off the bus"]


def _xids(record: bytes) -> list[str]:
    """Return the fatal Xids in a kernel log with one record."""
    read, write = os.pipe()
    os.write(write, record)
    os.close(write)
    found = [gpu.fatal_xid(text, gpu.load_xids()) for _, text in gpu.records(read)]
    os.close(read)
    return [text for text in found if text is not None]


def test_report_names_the_failed_checks_with_cause_and_fix(site: Site) -> None:
    FAULTS["disk-full"][0][0](site)
    rows = [line.split("\t") for line in report(site.node)]
    assert rows == [["disk-full", "degraded", "/ is full", CHECKS["disk-full"].cause, CHECKS["disk-full"].fix]]


def test_hanging_tool_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck: dict[str, subprocess.Popen[str]] = {}
    monkeypatch.setattr("health.node._stuck", stuck)
    tool = tmp_path / "slow-tool"
    tool.write_text("#!/bin/sh\nexec sleep 30\n")
    tool.chmod(0o755)
    assert run_tool([str(tool)], 0.2).problem == "no result after 0 s"
    process = stuck[str(tool)]
    assert process.stdout is not None
    assert process.stdout.closed
    assert process.wait(5) == -9
    assert run_tool([str(tmp_path / "absent")], 1).problem == "No such file or directory"
    assert run_tool(["echo", "word"], 5) == Ran(0, "word\n")


AZURE = "/metadata/scheduledevents?api-version=2020-07-01"
GOOGLE = "/computeMetadata/v1/instance/"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[tuple[Node, Metadata]]:
    yield from machine(tmp_path, ("Metadata", "true"), "chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77")


@pytest.fixture
def google(tmp_path: Path) -> Iterator[tuple[Node, Metadata]]:
    yield from machine(tmp_path, ("Metadata-Flavor", "Google"), "product_name", "Google Compute Engine")


def machine(root: Path, header: tuple[str, str], file: str, text: str) -> Iterator[tuple[Node, Metadata]]:
    Site(root).write(f"/sys/class/dmi/id/{file}", f"{text}\n")
    with Metadata(header).running() as service:
        yield Node(root=root, fetch=partial(metadata, server=f"127.0.0.1:{service.port}")), service


@pytest.mark.parametrize(
    ("kind", "resource", "status", "announced"),
    [
        *((kind, "yard-gpu-0", "Scheduled", True) for kind in ("Reboot", "Redeploy", "Preempt", "Terminate")),
        ("Reboot", "yard-gpu-0", "Started", True),
        ("Freeze", "yard-gpu-0", "Scheduled", False),
        ("Preempt", "yard-gpu-1", "Scheduled", False),
        ("", "", "", False),
    ],
)
def test_only_events_that_end_this_azure_machine_are_faults(
    kind: str, resource: str, status: str, announced: bool, azure: tuple[Node, Metadata]
) -> None:
    node, service = azure
    when = "Mon, 19 Sep 2016 18:29:47 GMT" if status == "Scheduled" else ""
    event = {"EventType": kind, "Resources": [resource], "EventStatus": status, "NotBefore": when}
    document = {"DocumentIncarnation": 2, "Events": [event] if kind else []}
    service.texts |= {NAME: "yard-gpu-0", AZURE: json.dumps(document)}
    text = f"the cloud announces {kind}" + (f" after {when}" if when else "")
    found = run_check(node, CHECKS["event"])
    assert (found.state, found.text) == ((FAIL, text) if announced else (PASS, ""))


@pytest.mark.parametrize(
    ("preempted", "maintenance", "text"),
    [
        ("TRUE", "NONE", "the cloud announces preemption"),
        ("FALSE", "TERMINATE_ON_HOST_MAINTENANCE", "the cloud announces termination for host maintenance"),
        ("FALSE", "MIGRATE_ON_HOST_MAINTENANCE", ""),
        ("FALSE", "NONE", ""),
    ],
)
def test_only_events_that_end_a_google_machine_are_faults(
    preempted: str, maintenance: str, text: str, google: tuple[Node, Metadata]
) -> None:
    node, service = google
    service.texts |= {f"{GOOGLE}preempted": preempted, f"{GOOGLE}maintenance-event": maintenance}
    found = run_check(node, CHECKS["event"])
    assert (found.state, found.text) == (FAIL if text else PASS, text)


@pytest.mark.parametrize("cloud", ["azure", "google"])
def test_metadata_service_without_an_answer_is_no_fault(cloud: str, request: pytest.FixtureRequest) -> None:
    assert run_check(request.getfixturevalue(cloud)[0], CHECKS["event"]).state == UNKNOWN


def test_only_jobs_of_yard_are_warned(tmp_path: Path) -> None:
    signals: list[list[str]] = []
    own = "/shared/people/ann/jobs/b-1/job.sbatch"
    scripts = {
        "7": "/shared/jobs/a-1/job.sbatch",
        "8": "/shared/jobs/b/code/job.sbatch",
        "9": "/home/trainer/job.sbatch",
        "10": "(null)",
        # The path of a script can contain line breaks, and so imitate another job.
        "11": f"/home/x\n7 {own}",
        "12": own,
    }

    def run(argv: list[str], timeout: float) -> Ran:
        if argv[0] == "scancel":
            signals.append(argv)
        options = dict(word.split("=", 1) for word in argv[1:] if "=" in word)
        if options.get("--format") == "%o":
            return Ran(0, f"{scripts[options['--jobs']]}\n")
        return Ran(0, "".join(f"{number} {number} N/A\n" for number in scripts))

    assert warn_jobs(Node(root=tmp_path, run=run))
    assert signals == [["scancel", "--batch", "--signal=USR2", number] for number in ("7", "12")]
