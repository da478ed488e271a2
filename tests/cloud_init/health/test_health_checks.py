"""Each health check passes on a healthy node and fails on a node with the fault that it detects."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from health import gpu, node
from health.daemon import FUNCTIONS, report, run_check
from health.fabric import PLUGIN_FOLDERS
from health.node import FAIL, PASS, SEVERITIES, UNKNOWN, Check, Ran, checks_for, load_checks, run_tool

from components.catalog import fabrics
from tests.cloud_init.health.health_site import FAULTS, Site, healthy

CHECKS = load_checks()
_ACTION = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from"
DATA = Path(node.__file__).parent
CASES = [
    pytest.param(check, number, id=f"{check}-{number}")
    for check in CHECKS
    for number in range(len(FAULTS.get(check, ())))
]
GPUDIRECT = {"gpudirect-cards", "network-plugin"}
"""Checks for nodes with GPUDirect. They do not apply to the healthy node, which has InfiniBand."""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return healthy(tmp_path)


def quick(check: str) -> Check:
    """Return a check that waits only briefly for a file system."""
    return replace(CHECKS[check], timeout=min(CHECKS[check].timeout, 0.2))


def test_every_check_has_a_function_and_a_fault() -> None:
    assert list(CHECKS) == list(FAULTS)
    assert set(CHECKS) == set(FUNCTIONS)


@pytest.mark.parametrize("check", CHECKS)
def test_healthy_node_passes(check: str, site: Site) -> None:
    assert run_check(site.node, quick(check)).state == PASS


@pytest.mark.parametrize(("check", "number"), CASES)
def test_fault_fails_its_check(check: str, number: int, site: Site) -> None:
    # A first run on the healthy node sets the values that some checks compare.
    run_check(site.node, quick(check))
    site.node.memo.pop("nvidia-smi", None)
    change, text = FAULTS[check][number]
    change(site)
    outcome = run_check(site.node, quick(check))
    site.hanging.clear()
    assert (outcome.state, outcome.text) == (FAIL, text)


@pytest.mark.parametrize(("check", "number"), CASES)
def test_fault_causes_no_other_verdict(check: str, number: int, site: Site) -> None:
    others = {found.id for found in checks_for(site.node, "periodic")} | GPUDIRECT
    for other in others:
        run_check(site.node, quick(other))
    site.node.memo.pop("nvidia-smi", None)
    FAULTS[check][number][0](site)
    failed = {other for other in others if run_check(site.node, quick(other)).state == FAIL}
    site.hanging.clear()
    assert failed == {check} & others


def test_missing_tools_and_files_are_no_verdict(tmp_path: Path) -> None:
    site = healthy(tmp_path)
    site.tools = {"nvidia-smi": site.tools["nvidia-smi"]}
    site.offset = None
    for check in ("gpu-nvlink", "fabric-manager", "clock-offset"):
        assert run_check(site.node, CHECKS[check]).state == UNKNOWN, check
    site.tools = {}
    site.node.memo.clear()
    failed = {check for check in CHECKS if run_check(site.node, quick(check)).state == FAIL}
    assert failed == {"nvidia-smi"}


def test_error_in_a_check_is_no_verdict(site: Site) -> None:
    site.tools["nvidia-smi"] = Ran(0, None)  # type: ignore[arg-type]
    outcome = run_check(site.node, CHECKS["gpu-memory"])
    assert outcome.state == UNKNOWN
    assert "TypeError" in outcome.text or "AttributeError" in outcome.text


def test_stopped_file_server_is_no_fault_of_the_node(site: Site) -> None:
    site.hanging.add("/shared")
    for ports in ({2049: "refused"}, {2049: "silent", 6817: "silent"}):
        site.ports = dict(ports)
        assert run_check(site.node, quick("nfs-hang")).state == UNKNOWN
    site.hanging.clear()


@pytest.mark.parametrize(("free", "state"), [(100, PASS), (20, FAIL)])
def test_small_file_system_needs_a_tenth(free: int, state: str, site: Site) -> None:
    """On Debian 13, the size of /tmp is half of the memory: 384 MiB on a small virtual machine."""

    def statvfs(path: str) -> Any:
        return SimpleNamespace(f_frsize=2**20, f_blocks=384, f_bavail=free, f_files=0, f_favail=0)

    site.node.statvfs = statvfs
    assert run_check(site.node, CHECKS["disk-full"]).state == state


def test_memory_of_a_busy_node_is_not_judged(site: Site) -> None:
    site.write("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cgroup.procs", "1\n")
    for check in ("low-memory", "leftover-files"):
        FAULTS[check][0][0](site)
        assert run_check(site.node, CHECKS[check]).state == UNKNOWN


def test_gpus_without_a_bridge_have_no_nvlink_fault(site: Site) -> None:
    (site.root / "proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information").unlink()
    (site.root / "proc/driver/nvidia-nvswitch/devices/0000:05:00.0").rmdir()
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
    assert names == set(CHECKS) - {"shared-full"} - GPUDIRECT
    site.write("/etc/trainyard/node.env", "TRAINYARD_ROLE=head\nTRAINYARD_SCHEDULER=none\nTRAINYARD_GPUS=0\n")
    (site.root / "proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information").unlink()
    (site.root / "proc/driver/nvidia-nvswitch/devices/0000:05:00.0").rmdir()
    site.node.path("/sys/class/dmi/id/chassis_asset_tag").unlink()
    assert {check.id for check in checks_for(site.node, "periodic")} == {"shared-full", "disk-full", "root-read-only"}


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
    rows = json.loads((DATA / "checks.json").read_text())["checks"]
    for row in rows:
        assert row["class"] in SEVERITIES
        assert set(row["contexts"]) <= {"boot", "prolog", "periodic", "epilog"}
        assert row["undrain"] in {"passes", "reboot"}
        assert row["source"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["dated"])
        assert row["id"] not in {"roll", "update"}
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
        ("NVRM: Xid (PCI:0000:01:00): 13, Graphics SM Warp Exception", None),
        ("NVRM: Xid (PCI:0000:01:00): 31, MMU Fault", None),
        ("NVRM: Xid (PCI:0000:01:00): 94, Contained: SM", None),
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
    try:
        found = [gpu.fatal_xid(text, gpu.load_xids()) for _, text in gpu.records(read)]
    finally:
        os.close(read)
    return [text for text in found if text is not None]


def test_a_program_name_does_not_decide_about_xid_154() -> None:
    line = f"{_ACTION} 0x2 (Node Reboot Required) to 0x0 (None), name=to Reboot"
    assert gpu.fatal_xid(line, gpu.load_xids()) is None


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
