"""Checks of the fabric manager, RDMA ports, and GPUDirect's network cards and NCCL plugins.

These checks have never run on a real fabric.
"""

from __future__ import annotations

import time
from pathlib import Path

from health.node import Check, Node, Outcome, failed, passed, unknown

_FABRIC_ENV = "/etc/trainyard/fabric.env"
_FULL_MEMBER = 0x8000
"""The bit of a partition key that grants full membership (InfiniBand Architecture Specification 1.4, 10.9.1)."""
_CARD_LISTS = (
    "NCCL_FASTRAK_CTRL_DEV",
    "NCCL_FASTRAK_IFNAME",
    "NCCL_GPUDIRECTTCPX_CTRL_DEV",
    "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME",
)
PLUGIN_FOLDERS = {
    "gpudirect-tcpx": "/var/lib/tcpx/lib64",
    "gpudirect-tcpxo": "/var/lib/tcpxo/lib64",
    "gpudirect-gib": "/usr/local/gib/lib64",
}
"""Mapping from fabric to its NCCL plugin's folder, which is `library_path` in components/catalog/fabrics.yaml."""
_WITH_RECEIVER = {"gpudirect-tcpx", "gpudirect-tcpxo"}
_RECEIVER = "receive-datapath-manager"
"""The receive daemon's container, started by the 45-transport stage."""


def fabric_manager(node: Node, check: Check) -> Outcome:
    """Check that the fabric manager is running and has the same version as the driver."""
    processes = node.path("/sys/fs/cgroup/system.slice/nvidia-fabricmanager.service/cgroup.procs")
    if not processes.parent.parent.exists():
        return unknown("no cgroup v2")
    if not node.read(processes):
        return failed("the fabric manager is not running")
    driver = node.read("/sys/module/nvidia/version")
    ran = node.run(["nv-fabricmanager", "--version"], check.timeout)
    version = ran.output.rpartition(":")[2].strip()
    if ran.code != 0 or not driver or not version:
        return unknown("the version of the driver or of the fabric manager could not be read")
    return passed() if version == driver else failed("fabric manager and driver have different versions")


def rdma_port(node: Node, check: Check) -> Outcome:
    """Check that the expected number of RDMA ports is active."""
    expected = node.count("TRAINYARD_RDMA")
    active = [port for port in _ports(node) if "ACTIVE" in node.read(port / "state")]
    return passed() if len(active) >= expected else failed(f"{len(active)} of {expected} RDMA ports are active")


def rdma_rate(node: Node, check: Check) -> Outcome:
    """Check that all active ports are as fast as the fastest port on this node."""
    rates = {
        port: _leading_number(node.read(port / "rate"))
        for port in _ports(node)
        if "ACTIVE" in node.read(port / "state")
    }
    slow = [_name(port) for port, rate in rates.items() if rate < max(rates.values())]
    return failed(f"{', '.join(slow)} has a low rate") if slow else passed()


def rdma_partition(node: Node, check: Check) -> Outcome:
    """Check that all ports are full members of the same partitions, and that these have not changed since the boot."""
    keys = {port: _partitions(node, port) for port in _ports(node)}
    if not keys:
        return unknown("no ports")
    outside = [_name(port) for port, found in keys.items() if not found]
    if outside:
        return failed(f"{', '.join(outside)} is not a full member of a partition")
    usual, *others = keys.values()
    if any(found != usual for found in others):
        return failed("the ports are in different partitions")
    first = node.baseline.setdefault("partition", [node.boot_id, usual])
    if first[0] != node.boot_id:
        first = node.baseline["partition"] = [node.boot_id, usual]
    return passed() if first[1] == usual else failed("the partition key has changed")


def rdma_flap(node: Node, check: Check) -> Outcome:
    """Check that no port has lost its link repeatedly."""
    return _growth(node, check, ("counters/link_downed",), "lost its link repeatedly")


def rdma_errors(node: Node, check: Check) -> Outcome:
    """Check that no port has had many symbol or receive errors recently."""
    return _growth(node, check, ("counters/symbol_error", "counters/port_rcv_errors"), "has many errors")


def gpudirect_cards(node: Node, check: Check) -> Outcome:
    """Check that all network cards listed in fabric.env are up."""
    listed = [name for key in _CARD_LISTS for name in node.variable(key, _FABRIC_ENV).split(",") if name]
    names = listed or [path.name for path in node.glob("/sys/class/infiniband/*/device/net/*")]
    if not names:
        return unknown("fabric.env lists no cards")
    down = [name for name in names if node.read(f"/sys/class/net/{name}/operstate") != "up"]
    return failed(f"network card {', '.join(down)} is down") if down else passed()


def network_plugin(node: Node, check: Check) -> Outcome:
    """Check that the NCCL plugin exists and the receive daemon is running, as far as the fabric needs them."""
    fabric = node.variable("TRAINYARD_FABRIC")
    if fabric not in PLUGIN_FOLDERS:
        return passed()
    if not node.glob(f"{PLUGIN_FOLDERS[fabric]}/libnccl-net*.so*"):
        return failed(f"{PLUGIN_FOLDERS[fabric]} contains no NCCL plugin")
    if fabric not in _WITH_RECEIVER:
        return passed()
    listed = node.run(["docker", "ps", "--filter", f"name=^{_RECEIVER}$", "--format", "{{.Names}}"], check.timeout)
    if listed.code != 0:
        return unknown("docker does not answer")
    return passed() if _RECEIVER in listed.output.split() else failed(f"the container {_RECEIVER} is not running")


def _growth(node: Node, check: Check, counters: tuple[str, ...], text: str) -> Outcome:
    """Fail if the sum of a port's counters grew by more than the limit within the check's period."""
    now = time.time()
    seen: dict[str, list[list[float]]] = node.baseline.setdefault(check.id, {})
    bad = []
    for port in _ports(node):
        total = sum(_leading_number(node.read(port / counter)) for counter in counters)
        # Counters restart at zero when the driver is loaded.
        rows = [row for row in seen.get(_name(port), []) if now - row[0] < check.limits["seconds"] and row[1] <= total]
        # One row per tenth of the period is enough.
        if not rows or now - rows[-1][0] > check.limits["seconds"] / 10:
            rows.append([now, total])
        seen[_name(port)] = rows
        if total - rows[0][1] > check.limits["max_growth"]:
            bad.append(_name(port))
    return failed(f"{', '.join(bad)} {text}") if bad else passed()


def _ports(node: Node) -> list[Path]:
    """Return the ports that collectives use. NCCL_IB_HCA lists prefixes of device names, or whole names after "="."""
    setting = node.variable("NCCL_IB_HCA", _FABRIC_ENV)
    exact, names = setting.startswith("="), [name for name in setting.lstrip("=").split(",") if name]
    ports = node.glob("/sys/class/infiniband/*/ports/1")
    if not names:
        return ports
    return [
        port
        for port in ports
        if (_device(port) in names if exact else any(_device(port).startswith(name) for name in names))
    ]


def _device(port: Path) -> str:
    return port.parent.parent.name


def _name(port: Path) -> str:
    return f"{_device(port)}/{port.name}"


def _partitions(node: Node, port: Path) -> list[str]:
    keys = {node.read(file) for file in (port / "pkeys").glob("*")}
    return sorted(key for key in keys if key.startswith("0x") and int(key, 16) & _FULL_MEMBER)


def _leading_number(text: str) -> float:
    try:
        return float(text.split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return 0.0
