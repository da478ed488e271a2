"""Machines as a simulated cloud describes them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any, Literal

from components.catalog import Machine as MachineType
from offline.boot.firewall import Firewall

SERVICES = "198.51.100.0/24"
"""Addresses of simulated storage services, which machines reach without a router."""
NOTICE = 30
"""Seconds between the notice of an eviction and the shutdown of a Spot machine, on both clouds (docs/health.md)."""
MAC = "(MAC address)"
"""Placeholder in a machine's metadata for the MAC address of its card with access to the service."""


@dataclass(frozen=True, kw_only=True)
class CloudDisk:
    """A data disk. The guest's udev rules derive the cloud's name of the disk from `serial`."""

    path: Path
    serial: str
    gib: int


@dataclass(frozen=True, kw_only=True)
class Gpus:
    count: int
    name: str
    memory_mib: int
    links: int
    """Number of NVLinks of each GPU."""
    nvswitch: bool = False


@dataclass(frozen=True, kw_only=True)
class Card:
    """A network card with a private address."""

    address: IPv4Interface
    network: str = ""
    """Name of the card's network. The first cards of all machines are in one network, whose name is not used."""
    name: str = ""
    """The card's name in the guest, or "" for the kernel's."""
    firewall: Firewall | None = None
    """The cloud's firewall rules for the card, or None if the cloud does not filter its traffic."""


@dataclass(frozen=True, kw_only=True)
class InfiniBand:
    """InfiniBand devices, whose ports have the same rate and are in the same partition."""

    count: int
    rate: str
    partition: str
    """The partition key, with full membership."""


@dataclass(frozen=True, kw_only=True)
class CloudMachine:
    """A machine as a cloud describes it."""

    resource: str
    """ID of the resource in the simulated cloud."""
    name: str
    cloud: Literal["gce", "azure"]
    firmware: Sequence[str] = ()
    """Values of QEMU's option -smbios, which identify the cloud."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the metadata service returns (service.py)."""
    cards: Sequence[Card]
    """The network cards. Workers and head reach each other through the first one."""
    neighbours: Sequence[str] = (SERVICES,)
    """Other networks (CIDR) that the machine reaches without a router."""
    public: str = ""
    """The public address, or "" for a machine without one."""
    disks: Sequence[CloudDisk] = ()
    cd: Mapping[str, str] = field(default_factory=dict)
    """Names and texts of the files on a CD with a UDF file system."""
    contract: str = ""
    """The image's key in image_contracts.yaml, or "" if the image has none."""
    first_boot: Sequence[str] = ()
    """Further shell commands that make the guest equal to the cloud's image."""
    gpus: Gpus | None = None
    infiniband: InfiniBand | None = None
    apertures: int = 0
    """Number of PCI devices through which network cards write into GPU memory (GPUDirect-TCPXO)."""
    runs: bool = True
    notice: float | None = 0
    """If `runs` is no longer set, the seconds between the change of the metadata and the shutdown, or None if the
    machine loses its power instead."""
    metadata_delay: float = 0
    """Seconds until the metadata service answers a request."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """The clients in `ranges` (CIDR), whose root user is the server's root user or, with `squash`, nobody."""

    ranges: Sequence[str]
    squash: bool


def nfs_server(resource: str, name: str, address: str, path: str, exports: Sequence[Export]) -> CloudMachine:
    """Return the machine that serves `path` over NFS in place of a storage service."""
    neighbours = [cidr for export in exports for cidr in export.ranges]
    squash = {True: "root_squash,anonuid=65534,anongid=65534", False: "no_root_squash"}
    clients = [
        f"{cidr}(rw,sync,no_subtree_check,{squash[export.squash]})" for export in exports for cidr in export.ranges
    ]
    return CloudMachine(
        resource=resource,
        name=name,
        cloud="gce",
        cards=[Card(address=IPv4Interface(f"{address}/24"))],
        neighbours=neighbours,
        first_boot=[
            "touch /etc/cloud/cloud-init.disabled",
            f"echo {name} >/etc/hostname",
            f"mkdir -p {path}",
            f"echo {shlex.quote(' '.join([path, *clients]))} >/etc/exports",
            *PORTMAPPER,
            "systemctl --quiet enable nfs-server.service",
            "systemctl start --no-block nfs-server.service",
        ],
    )


PORTMAPPER = (
    "systemctl --quiet unmask rpcbind.service rpcbind.socket rpc-statd.service rpc-statd-notify.service",
    "systemctl --quiet enable rpcbind.socket",
    "systemctl start --no-block rpcbind.socket",
)
"""Commands that enable what NFS version 3 needs. The golden image masks these units, and the clouds' images do not."""


_MODELS = {"a100": ("NVIDIA A100-SXM4-40GB", 40960, 12), "h100": ("NVIDIA H100 80GB HBM3", 81559, 18)}
"""Mapping from GPU type to nvidia-smi's name, memory in MiB and number of NVLinks."""


def gpus_of(kind: MachineType) -> Gpus | None:
    """Return a machine type's GPUs, or None if it has none."""
    if not kind.gpus:
        return None
    name, memory, links = _MODELS.get(kind.gpu_type or "", ("NVIDIA GPU", 16384, 0))
    return Gpus(count=kind.gpus, name=name, memory_mib=memory, links=links)
