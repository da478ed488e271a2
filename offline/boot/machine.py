"""Starts, changes and deletes the local virtual machines that take the place of a simulated cloud's machines.

A machine receives exactly the user-data of the stack, through its cloud's own channel. What differs from the cloud is
listed in DIFFERENCES, which `up` prints.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path

from components.platforms.local.image import ensure_image, hold_image
from components.platforms.local.image_build import DEFAULT_SUITE, GOLDEN, Recipe
from components.platforms.local.machine import (
    Hardware,
    Machine,
    Macs,
    base_command,
    drive,
    execute,
    macs,
    make_data_disk,
    network,
    start_switch,
    switch_pid,
)
from components.platforms.local.paths import switch_socket
from components.platforms.local.probe import choose
from components.platforms.local.process import run_program, sweep_run
from offline.boot import MEMORY_MIB, VCPUS
from offline.boot.description import MAC, SERVICES, CloudMachine
from offline.boot.firewall import outside, render
from offline.boot.guest import every_boot, first_boot
from offline.boot.service import read_attributes, read_command
from trainyard.errors import PlatformError
from trainyard.project import installed

ENVIRONMENT = "TRAINYARD_OFFLINE_BOOT"
"""Environment variable that makes the simulated clouds boot machines."""
SUITE = "TRAINYARD_OFFLINE_SUITE"
"""Environment variable with the suite of the booted machines' image."""


def image_of(environment: Mapping[str, str]) -> Recipe:
    """Return the recipe of the booted machines' image."""
    suite = environment.get(SUITE) or DEFAULT_SUITE
    return Recipe(name="cloud", suite=suite, folders=(installed("offline/boot/image"), *GOLDEN.folders))


IMAGE = image_of(os.environ)
PUBLIC = IPv4Network("127.77.0.0/16")
"""Public addresses are addresses of this computer, on which a machine's sshd has port 22."""
_TUNNELS = IPv4Network("127.78.0.0/16")
"""Addresses of this computer at which offline/programs/az reaches machines without a public address."""
_SYSTEMS = {
    "trixie": "Debian 13 with Slurm 24.11 instead of Ubuntu 24.04 with Slurm 23.11, and Debian's kernel",
    "noble": "Ubuntu's kernel instead of the cloud's; this suite has never been booted",
}
DIFFERENCES = (
    f"{_SYSTEMS.get(IMAGE.suite, IMAGE.suite)}; no UEFI, no boot loader",
    f"{VCPUS} vCPU, {MEMORY_MIB} MiB and no topology, also in slurm.conf and gres.conf",
    f"addresses: storage services in {SERVICES}, public addresses in {PUBLIC}",
    "one more network card, which has Internet access and the metadata service",
    "GPUs, their driver, their tools, InfiniBand and GPUDirect's images are fixtures",
    "nftables on each machine applies the cloud's firewall rules",
    "every other file that a node receives is the same as on the cloud (tests/integration/received.py)",
)
OUTSIDE = "160.0.0.0/4"
"""The network of QEMU's user-mode network. QEMU forwards an address to a program only if the network contains it, so
the network contains the metadata services' addresses 169.254.169.254 and 168.63.129.16."""
_SERVICE = Path(__file__).with_name("service.py")
_SERVICES = {
    "gce": {"169.254.169.254:80": "gce", "169.254.169.254:81": "firewall"},
    "azure": {
        "169.254.169.254:80": "imds",
        "169.254.169.254:81": "firewall",
        "168.63.129.16:80": "wire",
        "168.63.129.16:32526": "hostga",
    },
}
"""For each cloud, a mapping from the address of a service for guests to its name in service.py."""
_UNPLUG_SECONDS = 60.0
"""Maximum time in which a guest releases a disk."""
_HANDLER = {"bin/run": 0o755, "HandlerManifest.json": 0o644}
"""The files of the fixture of Azure's extension for run commands, and their permissions."""


@dataclass(frozen=True)
class Hypervisor:
    """The machines of a stack's simulated cloud, in the folder `run`."""

    run: Path
    image: Recipe = field(default=IMAGE)

    def apply(self, wanted: CloudMachine) -> None:
        """Create, start, stop or update a machine. Raises PlatformError if QEMU fails."""
        machine = Machine(run=self.run, name=wanted.name)
        with self._locked():
            for folder in (self.run, *(self._network(card.network) for card in wanted.cards[1:])):
                if switch_pid(folder) is None:
                    start_switch(folder)
            image = ensure_image(self.image)
            cards = macs(str(self.run), wanted.name)
            if not machine.disk.exists():
                hold_image(image, machine.disk)
                machine.make_root_disk(image)
                own = [cards.private, *(card.private for card in self._further(wanted))]
                _write_properties(machine, wanted, cards.external, own)
            text = json.dumps(wanted.metadata).replace(MAC, cards.external.replace(":", "").upper())
            _write(machine.folder / "metadata.json", text)
        if not wanted.runs and wanted.notice is None:
            machine.power_off()
        elif not wanted.runs:
            if machine.pid is not None:
                time.sleep(wanted.notice or 0)
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
            _write(machine.folder / "delay", str(wanted.metadata_delay))
            command = [*base_command(machine, hardware, image.kernel), *self._devices(machine, wanted, cards)]
            machine.launch(command, hardware.niceness)
        else:
            exchange_disks(machine.monitor, wanted)

    def filter(self, wanted: CloudMachine) -> None:
        """Apply the firewall rules of a machine, if it exists."""
        folder, (primary, *_) = self.run / wanted.name, wanted.cards
        if primary.firewall is None or not folder.exists():
            return
        cards = macs(str(self.run), wanted.name)
        rules = {cards.external: outside(primary.firewall, primary.address.network), cards.private: primary.firewall}
        for card, own in zip(wanted.cards[1:], self._further(wanted), strict=True):
            if card.firewall is not None:
                rules[own.private] = card.firewall
        _write(folder / "firewall", render(rules))

    def remove(self, name: str) -> None:
        """Delete a machine and its files. The last machine's switch is also ended."""
        Machine(run=self.run, name=name).remove()
        with self._locked():
            if not any(self.run.glob("*/disk.qcow2")):
                for folder in (*self.run.glob("network-*"), self.run):
                    sweep_run(folder)

    def console(self, name: str) -> str:
        return Machine(run=self.run, name=name).console_output(0)

    def command(self, name: str, command: str) -> tuple[str, str] | None:
        """Return the state and the output of an Azure run command, or None if the machine's agent reported none."""
        return read_command(self.run / name, command)

    def attribute(self, name: str, key: str) -> str | None:
        """Return a guest attribute (NAMESPACE/KEY), or None if the guest has not written it."""
        namespace, _, last = key.partition("/")
        return read_attributes(self.run / name).get(namespace, {}).get(last)

    def _network(self, name: str) -> Path:
        """Return the folder of the switch of a further network."""
        return self.run / f"network-{name}"

    def _further(self, wanted: CloudMachine) -> Sequence[Macs]:
        """Return the MAC addresses of the machine's cards in further networks. Only `private` is used."""
        return [macs(str(self._network(card.network)), wanted.name) for card in wanted.cards[1:]]

    def _devices(self, machine: Machine, wanted: CloudMachine, cards: Macs) -> list[str]:
        outside = [f"user,id=ext,ipv6=off,net={OUTSIDE}"]
        for address, service in _SERVICES[wanted.cloud].items():
            outside.append(f"guestfwd=tcp:{address}-cmd:{sys.executable} -IS {_SERVICE} {service} {machine.folder}")
        outside.append(f"hostfwd=tcp:{wanted.public or _tunnel(machine.folder)}:22-:22")
        options = [word for value in wanted.firmware for word in ("-smbios", value)]
        if wanted.cd:
            options += ["-device", "virtio-scsi-pci", "-device", "scsi-cd,drive=cd"]
            options += ["-drive", f"if=none,id=cd,file={machine.folder / 'cd.iso'},format=raw,media=cdrom"]
        options += drive("offline", machine.folder / "offline.iso", "offline", read_only=True)
        for number, (disk, device) in enumerate(zip(wanted.disks, _disks(wanted).values(), strict=True)):
            # Only devices behind a port can be removed.
            options += ["-device", f"pcie-root-port,id=port{number},chassis={number}"]
            file = f"node-name=file{number},file.driver=file,file.filename={disk.path},file.discard=unmap"
            options += ["-blockdev", f"driver=qcow2,{file},discard=unmap,cache.no-flush=on"]
            options += ["-device", ",".join("=".join(pair) for pair in device.items())]
        options += network(machine.run, ",".join(outside), cards)
        for number, (card, further) in enumerate(zip(wanted.cards[1:], self._further(wanted), strict=True)):
            socket = switch_socket(self._network(card.network))
            options += ["-netdev", f"vde,id=net{number},sock={socket}"]
            options += ["-device", f"virtio-net-pci,netdev=net{number},mac={further.private},romfile="]
        return options

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.run.with_name(f"{self.run.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _disks(wanted: CloudMachine) -> Mapping[str, Mapping[str, str]]:
    """Return a mapping from QEMU's names of the data disks to the properties of their devices."""
    return {
        f"data{at}": {"driver": "virtio-blk-pci", "id": f"data{at}", "drive": f"file{at}", "bus": f"port{at}"}
        | {"serial": disk.serial}
        for at, disk in enumerate(wanted.disks)
    }


def exchange_disks(monitor: Path, wanted: CloudMachine) -> None:
    """Detach disks from a running machine, or attach disks again with which it was started."""
    disks = _disks(wanted)

    def attached() -> set[str]:
        found = execute(monitor, {"execute": "qom-list", "arguments": {"path": "/machine/peripheral"}})
        # A busy monitor is asked again at the machine's next update.
        return {one["name"] for one in found[0] if one["name"].startswith("data")} if found else {*disks}

    for name in attached() - disks.keys():
        execute(monitor, {"execute": "device_del", "arguments": {"id": name}})
        deadline = time.monotonic() + _UNPLUG_SECONDS
        while name in attached():
            if time.monotonic() > deadline:
                raise PlatformError(f"{wanted.name}: the guest did not release the disk {name}")
            time.sleep(0.2)
    for name in disks.keys() - attached():
        if execute(monitor, {"execute": "device_add", "arguments": disks[name]}) is None:
            raise PlatformError(f"{wanted.name}: QEMU did not attach the disk {name}. Fix: restart the machine")


def _tunnel(folder: Path) -> str:
    """Return the address of a machine without a public address. A file contains it for offline/programs/az."""
    digest = hashlib.sha256(str(folder).encode()).digest()
    address = str(_TUNNELS[1 + int.from_bytes(digest[:2]) % (_TUNNELS.num_addresses - 2)])
    (folder / "tunnel").write_text(address)
    return address


def hypervisor(folder: Path) -> Hypervisor:
    """Return the hypervisor of the simulated clouds in a stack's folder."""
    return Hypervisor(folder / "machines")


def disk_file(folder: Path, identity: str) -> Path:
    """Return the path of a data disk in a stack's folder."""
    return folder / "disks" / f"{hashlib.sha256(identity.lower().encode()).hexdigest()[:24]}.qcow2"


def is_wanted() -> bool:
    """Return whether the simulated clouds boot machines."""
    return bool(os.environ.get(ENVIRONMENT))


def _write_properties(machine: Machine, wanted: CloudMachine, outside: str, own: Sequence[str]) -> None:
    """Write the disk that the guest's offline-machine.service applies."""
    work = machine.folder / "offline"
    work.mkdir()
    (work / "first-boot").write_text("".join(f"{line}\n" for line in first_boot(wanted)))
    (work / "every-boot").write_text("".join(f"{line}\n" for line in every_boot(wanted, outside, own)))
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


def _write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
