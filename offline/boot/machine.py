"""Starts, changes and deletes the local virtual machines that take the place of a simulated cloud's machines.

A machine receives exactly the user-data of the stack, through its cloud's own channel. What differs from the cloud is
listed in DIFFERENCES, which `up` prints.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any, Literal

from components.catalog import Machine as MachineType
from components.catalog import image_contracts
from components.platforms.local.image import ensure_image, hold_image
from components.platforms.local.image_build import GOLDEN, Recipe
from components.platforms.local.machine import (
    Hardware,
    Machine,
    Macs,
    base_command,
    drive,
    macs,
    make_data_disk,
    network,
    start_switch,
    switch_pid,
)
from components.platforms.local.probe import choose
from components.platforms.local.process import run_program, sweep_run
from offline.boot import MEMORY_MIB, VCPUS
from offline.boot.service import read_attributes, read_command
from trainyard.project import installed

ENVIRONMENT = "TRAINYARD_OFFLINE_BOOT"
"""Environment variable that makes the simulated clouds boot machines."""
IMAGE = Recipe(name="cloud", folders=(installed("offline/boot/image"), *GOLDEN.folders))
PUBLIC = IPv4Network("127.77.0.0/16")
"""Public addresses are addresses of this computer, on which a machine's sshd has port 22."""
SERVICES = "198.51.100.0/24"
"""Addresses of simulated storage services, which machines reach without a router."""
DIFFERENCES = (
    "Debian 13 with Slurm 24.11 instead of Ubuntu 24.04 with Slurm 23.11; no UEFI, no boot loader, kernel of Debian",
    f"{VCPUS} vCPU, {MEMORY_MIB} MiB and no topology, also in slurm.conf and gres.conf",
    f"addresses: storage services in {SERVICES}, public addresses in {PUBLIC}",
    "two network cards: one with Internet access and the metadata service, one with the private address",
    "GPUs, their driver, their tools and InfiniBand are fixtures",
    "every other file that a node receives is the same as on the cloud (tests/integration/received.py)",
)
OUTSIDE = "160.0.0.0/4"
"""The network of QEMU's user-mode network. QEMU forwards an address to a program only if the network contains it, so
the network contains the metadata services' addresses 169.254.169.254 and 168.63.129.16."""
NOTICE = 30
"""Seconds between the notice of an eviction and the shutdown of a Spot machine, on both clouds (docs/health.md)."""
MAC = "(MAC address)"
"""Placeholder in a machine's metadata for the MAC address of its card with access to the service."""
_DRIVER = "580.173.02"
"""The driver in Azure's pinned image (components/catalog/images.yaml). image/modules/nvidia.c has the same version."""
_SERVICE = Path(__file__).with_name("service.py")
_SERVICES = {
    "gce": {"169.254.169.254:80": "gce"},
    "azure": {"169.254.169.254:80": "imds", "168.63.129.16:80": "wire", "168.63.129.16:32526": "hostga"},
}
"""For each cloud, a mapping from the address of a service for guests to its name in service.py."""
_PORT = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "link_layer": "InfiniBand",
    "rate": "200 Gb/sec (4X HDR)",
    "pkeys/0": "0x8001",
    "pkeys/1": "0x7fff",
    "counters/link_downed": "0",
    "counters/symbol_error": "0",
}
"""Files of an InfiniBand port in /sys (Linux, Documentation/ABI/stable/sysfs-class-infiniband)."""
_HANDLER = {"bin/run": 0o755, "HandlerManifest.json": 0o644}
"""The files of the fixture of Azure's extension for run commands, and their permissions."""


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
    address: IPv4Interface
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
    infiniband: int = 0
    """Number of InfiniBand devices."""
    runs: bool = True
    notice: float = 0
    """Seconds between the change of the metadata and the shutdown, if `runs` is no longer set."""


@dataclass(frozen=True)
class Hypervisor:
    """The machines of a stack's simulated cloud, in the folder `run`."""

    run: Path
    image: Recipe = field(default=IMAGE)

    def apply(self, wanted: CloudMachine) -> None:
        """Create, start, stop or update a machine. Raises PlatformError if QEMU fails."""
        machine = Machine(run=self.run, name=wanted.name)
        with self._locked():
            if switch_pid(self.run) is None:
                start_switch(self.run)
            image = ensure_image(self.image)
            cards = macs(str(self.run), wanted.name)
            if not machine.disk.exists():
                hold_image(image, machine.disk)
                machine.make_root_disk(image)
                _write_properties(machine, wanted, cards)
            text = json.dumps(wanted.metadata).replace(MAC, cards.external.replace(":", "").upper())
            _write(machine.folder / "metadata.json", text)
        if not wanted.runs:
            if machine.pid is not None:
                time.sleep(wanted.notice)
            machine.shut_down()
        elif machine.pid is None:
            for disk in wanted.disks:
                if not disk.path.exists():
                    make_data_disk(disk.path, disk.gib)
            hardware = Hardware(
                accelerator=choose("auto", image.kernel).accelerator,
                vcpus=VCPUS,
                memory_mib=MEMORY_MIB,
                ssh_port=None,
                niceness=0,
            )
            command = [*base_command(machine, hardware, image.kernel), *_devices(machine, wanted, cards)]
            machine.launch(command, hardware.niceness)

    def remove(self, name: str) -> None:
        """Delete a machine and its files. The last machine's switch is also ended."""
        Machine(run=self.run, name=name).remove()
        with self._locked():
            if not any(self.run.glob("*/disk.qcow2")):
                sweep_run(self.run)

    def console(self, name: str) -> str:
        return Machine(run=self.run, name=name).console_output(0)

    def command(self, name: str, command: str) -> tuple[str, str] | None:
        """Return the state and the output of an Azure run command, or None if the machine's agent reported none."""
        return read_command(self.run / name, command)

    def attribute(self, name: str, key: str) -> str | None:
        """Return a guest attribute (NAMESPACE/KEY), or None if the guest has not written it."""
        namespace, _, last = key.partition("/")
        return read_attributes(self.run / name).get(namespace, {}).get(last)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.run.with_name(f"{self.run.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


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
        address=IPv4Interface(f"{address}/24"),
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


def hypervisor(folder: Path) -> Hypervisor:
    """Return the hypervisor of the simulated clouds in a stack's folder."""
    return Hypervisor(folder / "machines")


def disk_file(folder: Path, identity: str) -> Path:
    """Return the path of a data disk in a stack's folder."""
    return folder / "disks" / f"{hashlib.sha256(identity.lower().encode()).hexdigest()[:24]}.qcow2"


_MODELS = {"a100": ("NVIDIA A100-SXM4-40GB", 40960, 12), "h100": ("NVIDIA H100 80GB HBM3", 81559, 18)}
"""Mapping from GPU type to nvidia-smi's name, memory in MiB and number of NVLinks."""


def gpus_of(kind: MachineType) -> Gpus | None:
    """Return a machine type's GPUs, or None if it has none."""
    if not kind.gpus:
        return None
    name, memory, links = _MODELS.get(kind.gpu_type or "", ("NVIDIA GPU", 16384, 0))
    return Gpus(count=kind.gpus, name=name, memory_mib=memory, links=links)


def is_wanted() -> bool:
    """Return whether the simulated clouds boot machines."""
    return bool(os.environ.get(ENVIRONMENT))


def _devices(machine: Machine, wanted: CloudMachine, cards: Macs) -> list[str]:
    outside = [f"user,id=ext,net={OUTSIDE}"]
    for address, service in _SERVICES[wanted.cloud].items():
        outside.append(f"guestfwd=tcp:{address}-cmd:{sys.executable} -IS {_SERVICE} {service} {machine.folder}")
    outside += [f"hostfwd=tcp:{wanted.public}:22-:22"] if wanted.public else []
    options = [word for value in wanted.firmware for word in ("-smbios", value)]
    if wanted.cd:
        options += ["-device", "virtio-scsi-pci", "-device", "scsi-cd,drive=cd"]
        options += ["-drive", f"if=none,id=cd,file={machine.folder / 'cd.iso'},format=raw,media=cdrom"]
    options += drive("offline", machine.folder / "offline.iso", "offline", read_only=True)
    for number, disk in enumerate(wanted.disks):
        options += drive(f"data{number}", disk.path, disk.serial)
    return [*options, *network(machine.run, ",".join(outside), cards)]


def _write_properties(machine: Machine, wanted: CloudMachine, cards: Macs) -> None:
    """Write the disk that the guest's offline-machine.service applies."""
    work = machine.folder / "offline"
    work.mkdir()
    (work / "first-boot").write_text("".join(f"{line}\n" for line in _first_boot(wanted)))
    (work / "every-boot").write_text("".join(f"{line}\n" for line in _every_boot(wanted, cards)))
    command = ["genisoimage", "-quiet", "-input-charset", "utf-8", "-volid", "OFFLINE", "-rock"]
    iso = machine.folder / "offline.iso"
    run_program(iso.name, "install the genisoimage package", *command, "-output", str(iso), str(work))
    shutil.rmtree(work)
    if not wanted.cd:
        return
    work.mkdir()
    for name, text in wanted.cd.items():
        (work / name).write_text(text)
    cd = machine.folder / "cd.iso"
    run_program(cd.name, "install the genisoimage package", *command[:4], "-udf", "-output", str(cd), str(work))
    shutil.rmtree(work)
    with zipfile.ZipFile(machine.folder / "handler.zip", "w") as archive:
        for name, mode in _HANDLER.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, (_SERVICE.parent / "handler" / name).read_text())


def _first_boot(wanted: CloudMachine) -> Iterator[str]:
    """Yield commands that give the guest the properties of the cloud's image."""
    yield "set -eu"
    if wanted.contract:
        contract = image_contracts()[wanted.contract]
        for pattern in contract.removed:
            yield f"rm -rf {pattern}"
        # The golden image's machine ID is empty as well, and systemd has already created this machine's ID.
        for path, text in ((path, text) for path, text in contract.files.items() if path != "/etc/machine-id"):
            yield f"install -D -m 0644 /dev/null {path}"
            yield f"printf %s {shlex.quote(text)} >{path}"
        for unit, state in contract.services.items():
            verb = {"enabled": "enable", "disabled": "disable", "masked": "mask"}[state]
            yield f"[ ! -e /usr/lib/systemd/system/{unit} ] || systemctl --quiet {verb} {unit}"
    yield from wanted.first_boot


def _every_boot(wanted: CloudMachine, cards: Macs) -> Iterator[str]:
    yield "set -eu"
    yield "mkdir -p /run/systemd/network"
    config = (
        f"[Match]\nMACAddress={cards.private}\n[Network]\nAddress={wanted.address}\nLinkLocalAddressing=no\n"
        + "".join(f"[Route]\nDestination={cidr}\nScope=link\n" for cidr in wanted.neighbours)
    )
    yield f"printf %s {shlex.quote(config)} >/run/systemd/network/05-offline.network"
    # In Azure's HPC image, cloud-init does not configure the network (image_contracts.yaml), but the image does.
    outside = f"[Match]\nMACAddress={cards.external}\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\n"
    # Azure's DHCP server also announces these routes, and waagent waits for the first one.
    outside += "".join(f"[Route]\nDestination={one}\nScope=link\n" for one in ("168.63.129.16", "169.254.169.254"))
    yield f"printf %s {shlex.quote(outside)} >/run/systemd/network/90-offline.network"
    if wanted.cd:
        # udev loads the drivers of few devices in the golden image.
        yield "modprobe -a virtio_scsi sr_mod udf"
        yield "for _ in $(seq 50); do [ ! -b /dev/sr0 ] || break; sleep 0.2; done"
    if wanted.gpus is not None:
        facts = {**vars(wanted.gpus), "driver": _DRIVER}
        yield f"printf %s {shlex.quote(json.dumps(facts))} >/run/offline-gpus.json"
        yield f"modprobe nvidia nvswitch={int(wanted.gpus.nvswitch)}"
        yield f"for index in $(seq 0 {wanted.gpus.count - 1}); do mknod -m 0666 /dev/nvidia$index c 195 $index; done"
        yield "mknod -m 0666 /dev/nvidiactl c 195 255"
    if wanted.infiniband:
        yield "modprobe ib_core"
        yield "mount -t tmpfs -o mode=0755 infiniband /sys/class/infiniband"
        yield f"for index in $(seq 0 {wanted.infiniband - 1}); do"
        yield "port=/sys/class/infiniband/mlx5_ib$index/ports/1"
        yield "mkdir -p $port/pkeys $port/counters"
        for path, text in _PORT.items():
            yield f"echo {shlex.quote(text)} >$port/{path}"
        yield "done"


def _write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
