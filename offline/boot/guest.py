"""Shell commands that give a booted machine the properties of a cloud's image and of a machine type."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence

from components.catalog import image_contracts
from offline.boot.description import CloudMachine, Gpus, InfiniBand

DRIVER = "580.173.02"
"""The driver in Azure's pinned image (components/catalog/images.yaml). image/modules/nvidia.c has the same version."""
_PORT = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "link_layer": "InfiniBand",
    "pkeys/1": "0x7fff",
    "counters/link_downed": "0",
    "counters/symbol_error": "0",
}
"""Files of an InfiniBand port in /sys (Linux, Documentation/ABI/stable/sysfs-class-infiniband)."""


def first_boot(wanted: CloudMachine) -> Iterator[str]:
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


def every_boot(wanted: CloudMachine, outside: str, macs: Sequence[str]) -> Iterator[str]:
    """Yield commands that configure the network cards, and create the devices that the machine type has.

    `outside` is the MAC address of the card with Internet access, and `macs` those of the machine's own cards.
    """
    yield "set -eu"
    yield "mkdir -p /run/systemd/network"
    for number, (card, mac) in enumerate(zip(wanted.cards, macs, strict=True)):
        if card.name:
            yield from _renamed(mac, card.name)
        config = f"[Match]\nMACAddress={mac}\n[Network]\nAddress={card.address}\nLinkLocalAddressing=no\n"
        if number == 0:
            config += "".join(f"[Route]\nDestination={cidr}\nScope=link\n" for cidr in wanted.neighbours)
        yield f"printf %s {shlex.quote(config)} >/run/systemd/network/05-offline-{number}.network"
    # In Azure's HPC image, cloud-init does not configure the network (image_contracts.yaml), but the image does.
    config = f"[Match]\nMACAddress={outside}\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\n"
    # Azure's DHCP server also announces these routes, and waagent waits for the first one.
    config += "".join(f"[Route]\nDestination={one}\nScope=link\n" for one in ("168.63.129.16", "169.254.169.254"))
    yield f"printf %s {shlex.quote(config)} >/run/systemd/network/90-offline.network"
    if wanted.cd:
        # udev loads the drivers of few devices in the golden image.
        yield "modprobe -a virtio_scsi sr_mod udf"
        yield "for _ in $(seq 50); do [ ! -b /dev/sr0 ] || break; sleep 0.2; done"
    if wanted.cards[0].firewall is not None:
        # Until the service has read the rules, a few seconds later, all connections are accepted.
        yield "systemctl start --no-block offline-firewall.service"
    if wanted.gpus is not None:
        yield from _gpus(wanted.gpus)
    if wanted.infiniband is not None:
        yield from _infiniband(wanted.infiniband)
    if wanted.apertures:
        yield from _apertures(wanted.apertures)


def _renamed(mac: str, name: str) -> Iterator[str]:
    """Yield commands that rename a card. The kernel's option net.ifnames=0 turns off the names of PCI devices."""
    yield "for _ in $(seq 100); do"
    yield f"card=$(grep -l '^{mac}$' /sys/class/net/*/address || true)"
    yield '[ -z "$card" ] || break'
    yield "sleep 0.2"
    yield "done"
    # udev may have given the name to another card as an alternative name.
    yield f"ip link property del dev {name} altname {name} 2>/dev/null || true"
    yield f"ip link set dev $(basename ${{card%/address}}) name {name}"


def _gpus(gpus: Gpus) -> Iterator[str]:
    yield f"printf %s {shlex.quote(json.dumps({**vars(gpus), 'driver': DRIVER}))} >/run/offline-gpus.json"
    yield f"modprobe nvidia nvswitch={int(gpus.nvswitch)}"
    yield f"for index in $(seq 0 {gpus.count - 1}); do mknod -m 0666 /dev/nvidia$index c 195 $index; done"
    yield "mknod -m 0666 /dev/nvidiactl c 195 255"


def _infiniband(fabric: InfiniBand) -> Iterator[str]:
    yield "modprobe ib_core"
    yield "mount -t tmpfs -o mode=0755 infiniband /sys/class/infiniband"
    yield f"for index in $(seq 0 {fabric.count - 1}); do"
    yield "port=/sys/class/infiniband/mlx5_ib$index/ports/1"
    yield "mkdir -p $port/pkeys $port/counters"
    for path, text in {**_PORT, "rate": fabric.rate, "pkeys/0": fabric.partition}.items():
        yield f"echo {shlex.quote(text)} >$port/{path}"
    yield "done"


def _apertures(count: int) -> Iterator[str]:
    """Yield commands that add PCI devices to /sys. The links to the real devices are copied, and stay valid."""
    yield "mkdir -p /run/offline-pci"
    yield "mount -t tmpfs -o mode=0755 pci /run/offline-pci"
    yield "cp -a /sys/bus/pci/devices/. /run/offline-pci"
    yield f"for index in $(seq 1 {count}); do"
    yield "device=/run/offline-pci/0000:c$index:00.0"
    yield "mkdir $device"
    yield "echo 0x1ae0 >$device/vendor"
    yield "echo 0x0084 >$device/device"
    # Gloo reads the class of each device.
    yield "echo 0x088000 >$device/class"
    yield ": >$device/resource0"
    yield "done"
    yield "mount --bind /run/offline-pci /sys/bus/pci/devices"
