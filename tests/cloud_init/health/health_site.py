"""A folder with fake tools that represents a healthy node, and one fault for each check."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from health.node import Node, Ran

BOOT = "8b169027-b633-4019-9fb9-af6189d6cf7d"
LINKS_UP = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n"
HEALTHY_GPUS = "0, 0, No, No, 0x0000000000000001, 16, 16\n1, 0, No, No, 0x0000000000000004, 16, 16\n"
"""Rows in the format that nvidia-smi printed for an H100 with driver 580.159.04 on 2026-11-22."""
_NODE_ENV = """TRAINYARD_NODE=yard-gpu-0
TRAINYARD_ROLE=worker
TRAINYARD_SCHEDULER=slurm
TRAINYARD_HEAD_IP=10.77.0.4
TRAINYARD_GPUS=2
TRAINYARD_GPU_TYPE=h100
TRAINYARD_GPU_DEVICE=/dev/nvidia
TRAINYARD_RDMA=2
TRAINYARD_FABRIC=infiniband-ndr
TRAINYARD_CONTAINERS=docker
"""
_MOUNTS = """/dev/vda1 / ext4 rw,relatime 0 0
tmpfs /tmp tmpfs rw 0 0
10.77.0.4:/shared /shared nfs4 rw,hard,vers=4.2 0 0
"""
_LITTLE_MEMORY = "MemTotal: 1000000 kB\nMemAvailable: 50000 kB\n"
_PLUGINS = "/var/lib/tcpxo/lib64"
_PORT = "/sys/class/infiniband/mlx5_ib1/ports/1"
_PORT_FILES = {
    "state": "4: ACTIVE\n",
    "rate": "400 Gb/sec (4X NDR)\n",
    "pkeys/0": "0x8001\n",
    "pkeys/1": "0x7fff\n",
    "counters/link_downed": "3\n",
    "counters/symbol_error": "70\n",
    "counters/port_rcv_errors": "2\n",
}
_MANAGER = "/sys/fs/cgroup/system.slice/nvidia-fabricmanager.service/cgroup.procs"
_EVICTION = '[{"EventType": "Preempt", "Resources": ["yard-gpu-0"], "EventStatus": "Started", "NotBefore": ""}]'


@dataclass
class Site:
    """A node. Cases replace values. `usage`: free blocks and free inodes in percent by path."""

    root: Path
    usage: dict[str, tuple[int, int]] = field(default_factory=dict)
    tools: dict[str, Ran] = field(default_factory=dict)
    offset: float | None = 0.01
    ports: dict[int, str] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    events: str = "[]"
    node: Node = field(default_factory=Node)

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def statvfs(self, path: str) -> Any:
        while path in self.hanging:
            time.sleep(0.01)
        free, inodes = self.usage.get(path, (60, 60))
        return SimpleNamespace(
            f_frsize=4096, f_blocks=10_000_000, f_bavail=free * 100_000, f_files=1000, f_favail=inodes * 10
        )

    def fetch(self, path: str, headers: Mapping[str, str], timeout: float) -> str:
        is_name = path.startswith("/metadata/instance/compute/name?")
        return "yard-gpu-0" if is_name else f'{{"DocumentIncarnation": 3, "Events": {self.events}}}'

    def run(self, argv: list[str], timeout: float) -> Ran:
        key = " ".join(argv[:2]) if argv[1:2] in (["nvlink"], ["update"], ["-o"]) else argv[0]
        ran = self.tools.get(key, Ran(None, problem="No such file or directory"))
        if argv[:3] != ["docker", "ps", "--filter"] or ran.code != 0:
            return ran
        pattern = argv[3].removeprefix("name=")
        return Ran(0, "".join(f"{name}\n" for name in ran.output.split() if re.search(pattern, name)))


def healthy(root: Path) -> Site:
    """Return a healthy node on which every check applies and passes."""
    site = Site(root)
    site.node = Node(
        root=root,
        statvfs=site.statvfs,
        run=site.run,
        clock_offset=lambda host, timeout: site.offset,
        connects=lambda host, port, timeout: site.ports.get(port, "open"),
        fetch=site.fetch,
    )
    site.tools |= {
        "nvidia-smi": Ran(0, HEALTHY_GPUS),
        "nvidia-smi nvlink": Ran(0, LINKS_UP),
        "nv-fabricmanager": Ran(0, "Fabric Manager version is : 580.159.04\n"),
        "docker": Ran(0, "yard-train-1-0-0\nreceive-datapath-manager\n"),
    }
    site.write("/proc/812/cmdline", "docker\0run\0--rm\0--name\0yard-train-1-0-0\0image\0")
    site.write("/etc/trainyard/node.env", _NODE_ENV)
    site.write("/etc/trainyard/fabric.env", "NCCL_IB_HCA=mlx5_ib\nNCCL_FASTRAK_IFNAME=enp6s0,enp7s0\n")
    site.write("/proc/sys/kernel/random/boot_id", f"{BOOT}\n")
    site.write("/sys/class/dmi/id/chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77\n")
    site.write(f"{_PLUGINS}/libnccl-net.so", "")
    site.write("/proc/self/mounts", _MOUNTS)
    site.write("/proc/meminfo", "MemTotal: 1000000 kB\nMemFree: 100 kB\nMemAvailable: 700000 kB\n")
    site.write("/proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information", "Device Minor: 0\n")
    site.write("/sys/module/nvidia/version", "580.159.04\n")
    site.write(_MANAGER, "812\n")
    for number in (0, 1):
        for name, text in _PORT_FILES.items():
            site.write(f"/sys/class/infiniband/mlx5_ib{number}/ports/1/{name}", text)
    # A storage port that collectives do not use.
    site.write("/sys/class/infiniband/mlx5_an0/ports/1/state", "1: DOWN\n")
    for card in ("enp6s0", "enp7s0"):
        site.write(f"/sys/class/net/{card}/operstate", "up\n")
    _listen(root / "run/munge/munge.socket.2")
    return site


_LISTENERS: list[socket.socket] = []


def _listen(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    _LISTENERS.append(server)
    # The path of a socket is limited to 108 bytes (unix(7)), so the test uses a path relative to the folder.
    folder = os.open(path.parent, os.O_RDONLY)
    server.bind(f"/proc/self/fd/{folder}/{path.name}")
    server.listen()
    os.close(folder)


def _tool(name: str, ran: Ran) -> Callable[[Site], None]:
    return lambda site: site.tools.__setitem__(name, ran)


def _gpus(row: str) -> Callable[[Site], None]:
    """Replace the row of GPU 0."""
    return _tool("nvidia-smi", Ran(0, f"{row}\n{HEALTHY_GPUS.splitlines()[1]}\n"))


def _file(path: str, text: str) -> Callable[[Site], None]:
    return lambda site: site.write(path, text)


def _full(path: str, free: int, inodes: int = 60) -> Callable[[Site], None]:
    return lambda site: site.usage.__setitem__(path, (free, inodes))


_DISK = "/dev/disk/azure/scsi1/lun0"


def use_data_disk(site: Site, options: str = "rw", source: str = "/dev/sdd") -> None:
    """Make the node a head whose data disk is /dev/sdd."""
    site.write("/etc/trainyard/node.env", f"{_NODE_ENV}TRAINYARD_SHARED_DISK={_DISK}\n")
    site.write("/dev/sdd", "")
    site.node.path(_DISK).parent.mkdir(parents=True)
    site.node.path(_DISK).symlink_to("../../../sdd")
    site.write("/proc/self/mounts", f"{_MOUNTS}{source} /home ext4 rw 0 0\n{source} /shared ext4 {options} 0 0\n")


def _detached(site: Site) -> None:
    use_data_disk(site)
    site.node.path("/dev/sdd").unlink()


def _no_munge(site: Site) -> None:
    site.node.path("/run/munge/munge.socket.2").unlink()


def _xid(site: Site) -> None:
    site.node.events["gpu-xid"] = "Xid 79, GPU has fallen off the bus"


def _stuck_process(site: Site) -> None:
    site.node.events["leftover-processes"] = "4711 4712"
    site.write("/proc/4712/stat", "4712 (python3) D")


def use_gpudirect(site: Site) -> None:
    site.write("/etc/trainyard/node.env", _NODE_ENV.replace("infiniband-ndr", "gpudirect-tcpxo"))


def _no_plugin(site: Site) -> None:
    use_gpudirect(site)
    site.node.path(f"{_PLUGINS}/libnccl-net.so").unlink()


def _no_receiver(site: Site) -> None:
    use_gpudirect(site)
    site.tools["docker"] = Ran(0, "yard-train-1-0-0\n")


_MISMATCH = Ran(18, "Driver/library version mismatch\n")
_LINK_DOWN = Ran(0, LINKS_UP.replace("1: 26.562 GB/s", "1: <inactive>"))
_OTHER_MANAGER = Ran(0, "version is : 570.1\n")
FAULTS: dict[str, list[tuple[Callable[[Site], None], str]]] = {
    # check: [(change that makes a healthy node fail, expected failure text)]
    "gpu-xid": [(_xid, "Xid 79, GPU has fallen off the bus")],
    "gpu-count": [(_tool("nvidia-smi", Ran(0, HEALTHY_GPUS.splitlines()[0])), "1 of 2 GPUs work")],
    "nvidia-smi": [
        (_tool("nvidia-smi", Ran(None, problem="No such file or directory")), "nvidia-smi: No such file or directory"),
        (_tool("nvidia-smi", Ran(None, problem="no result after 20 s")), "nvidia-smi: no result after 20 s"),
        (_tool("nvidia-smi", Ran(15, "Unable to determine the device handle")), "nvidia-smi ends with exit code 15"),
    ],
    "gpu-driver": [(_tool("nvidia-smi", _MISMATCH), "driver and libraries have different versions")],
    "gpu-memory": [(_gpus("0, 2, No, No, 0x0, 16, 16"), "uncorrectable memory errors on GPU 0")],
    "gpu-row-remap": [
        (_gpus("0, 0, Yes, No, 0x0, 16, 16"), "row remapping on GPU 0"),
        (_gpus("0, 0, No, Yes, 0x0, 16, 16"), "row remapping on GPU 0"),
    ],
    "gpu-throttle": [
        (_gpus("0, 0, No, No, 0x0000000000000048, 16, 16"), "hardware slowdown on GPU 0"),
        (_gpus("0, 0, No, No, 0x0000000000000080, 16, 16"), "hardware slowdown on GPU 0"),
    ],
    "gpu-pcie": [(_gpus("0, 0, No, No, 0x0, 8, 16"), "missing PCIe lanes on GPU 0")],
    "gpu-nvlink": [(_tool("nvidia-smi nvlink", _LINK_DOWN), "NVLink is down on GPU 0")],
    "fabric-manager": [
        (_file(_MANAGER, ""), "the fabric manager is not running"),
        (_tool("nv-fabricmanager", _OTHER_MANAGER), "fabric manager and driver have different versions"),
    ],
    "rdma-port": [(_file(f"{_PORT}/state", "1: DOWN\n"), "1 of 2 RDMA ports are active")],
    "rdma-rate": [(_file(f"{_PORT}/rate", "200 Gb/sec (2X NDR)\n"), "mlx5_ib1/1 has a low rate")],
    "rdma-partition": [
        (_file(f"{_PORT}/pkeys/0", "0x8002\n"), "the ports are in different partitions"),
        (_file(f"{_PORT}/pkeys/0", "0x7fff\n"), "mlx5_ib1/1 is not a full member of a partition"),
    ],
    "rdma-flap": [(_file(f"{_PORT}/counters/link_downed", "5\n"), "mlx5_ib1/1 lost its link repeatedly")],
    "rdma-errors": [(_file(f"{_PORT}/counters/symbol_error", "5000\n"), "mlx5_ib1/1 has many errors")],
    "gpudirect-cards": [(_file("/sys/class/net/enp7s0/operstate", "down\n"), "network card enp7s0 is down")],
    "network-plugin": [
        (_no_plugin, f"{_PLUGINS} contains no NCCL plugin"),
        (_no_receiver, "the container receive-datapath-manager is not running"),
    ],
    "nfs-hang": [(lambda site: site.hanging.add("/shared"), "/shared does not answer")],
    "disk-full": [(_full("/", 1), "/ is full"), (_full("/var", 60, 1), "/var has no free inodes")],
    "shared-full": [(_full("/shared", 0), "/shared is full")],
    "shared-disk": [
        (_detached, f"the disk {_DISK} is detached"),
        # The disk was attached again, with another name.
        (lambda site: use_data_disk(site, source="/dev/sdc"), f"/home is not on the disk {_DISK}"),
        (lambda site: use_data_disk(site, options="ro"), "/shared is read-only"),
    ],
    "root-read-only": [(_file("/proc/self/mounts", "/dev/vda1 / ext4 ro,relatime 0 0\n"), "/ is read-only")],
    "low-memory": [(_file("/proc/meminfo", _LITTLE_MEMORY), "memory is in use although no job is running")],
    "clock-offset": [(lambda site: setattr(site, "offset", 400.0), "the clock differs from the head's clock")],
    "munge": [(_no_munge, "munged is not running")],
    "leftover-processes": [(_stuck_process, "processes of an ended job cannot be killed")],
    "leftover-containers": [(_tool("docker", Ran(0, "yard-old-7-0-0\n")), "containers of an ended job are running")],
    "leftover-files": [(_full("/dev/shm", 20), "files of ended jobs fill /dev/shm")],  # noqa: S108
    "event": [(lambda site: setattr(site, "events", _EVICTION), "the cloud announces Preempt")],
}
