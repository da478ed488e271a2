"""The QEMU command line for a machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from components.platforms.local.paths import MachineFiles, switch_socket
from components.platforms.local.seed import Macs

DATA_SERIAL = "data"
"""Serial number of the data disk. udev links the disk as /dev/disk/by-id/virtio-<serial>."""

_KERNEL = (
    # With audit=0, the kernel would run modprobe at each login and each sudo, because these programs open an audit
    # socket (61 times on a head before it was ready, 2026-11-23). The image disables audit in journald instead.
    "root=/dev/nvme0n1 rootfstype=ext4 rw console=ttyS0 net.ifnames=0 quiet systemd.show_status=false panic=1 "
    # Emulation sometimes causes a kernel oops. A panic restarts the guest, which would otherwise never become ready.
    "oops=panic "
    # Without this option, systemd loads a BPF program for the BPF security module, which takes seconds.
    "lsm=capability "
    # IPv6 duplicate address detection delays the network by seconds.
    "ipv6.disable=1"
)
_KERNEL_EMULATED = (
    # An emulated CPU has no hardware vulnerabilities. Mitigations and the clearing of pages are disabled because they
    # are slow.
    "mitigations=off init_on_alloc=0 random.trust_cpu=on no_timer_check "
    # If code has the same address in all processes, QEMU translates it only once (28.3 -> 26.1 CPU-s per boot).
    "norandmaps"
)
_MACHINE = "q35,sata=off,smbus=off,vmport=off"
"""The machine type. It omits unused devices, because the guest would load their drivers."""
_EMULATED_CPU = "max,-smap,-smep,-la57,-pku,-mpx"
"""All emulated CPU features except slow ones. smap ends a translated block at every copy to user memory, la57 adds a
level to every page walk, and pku and mpx slow down context switches. Measured: 35.5 -> 29.4 CPU-s per boot."""


FORWARDED_PORT = r"hostfwd=tcp:127\.0\.0\.1:(\d+)-:22"
"""Regular expression for the SSH port in a machine's command line."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Properties that can change when a machine is started again. `accelerator` is kvm or tcg."""

    accelerator: str
    vcpus: int
    memory_mib: int
    ssh_port: int | None
    """Port on 127.0.0.1, or None for a machine without SSH access."""
    niceness: int
    data_disk: Path | None = None
    """Disk that is kept if the machine is removed."""


def command(files: MachineFiles, hardware: Hardware, cards: Macs, kernel: Path) -> list[str]:
    """Return the command that starts a machine in the background."""
    return [
        "nice", "-n", str(hardware.niceness),
        "qemu-system-x86_64", "-name", files.name, *_processor(hardware), "-m", str(hardware.memory_mib),
        "-display", "none", "-nodefaults", "-no-user-config", "-rtc", "base=utc",
        "-daemonize", "-pidfile", str(files.pidfile),
        "-chardev", f"file,id=console,path={files.console},append=on", "-serial", "chardev:console",
        "-qmp", f"unix:{files.monitor},server=on,wait=off",
        "-kernel", str(kernel),
        "-append", _KERNEL if hardware.accelerator == "kvm" else f"{_KERNEL} {_KERNEL_EMULATED}",
        # With `unsafe`, a crash of this computer can corrupt the disk. In this case, the machine is created again.
        "-drive", f"if=none,id=root,file={files.disk},format=qcow2,cache=unsafe,discard=unmap",
        "-device", "nvme,drive=root,serial=root",
        "-drive", f"if=none,id=seed,file={files.seed},format=raw,readonly=on",
        # The seed is not an NVMe disk, because the kernel probes NVMe disks in parallel and the seed could become
        # nvme0.
        "-device", "virtio-blk-pci,drive=seed",
        *_data_disk(hardware.data_disk),
        "-netdev", _external(hardware.ssh_port),
        "-device", f"virtio-net-pci,netdev=ext,mac={cards.external},romfile=",
        "-netdev", f"vde,id=clu,sock={switch_socket(files.run)}",
        "-device", f"virtio-net-pci,netdev=clu,mac={cards.private},romfile=",
    ]  # fmt: skip


def _external(ssh_port: int | None) -> str:
    return "user,id=ext" if ssh_port is None else f"user,id=ext,hostfwd=tcp:127.0.0.1:{ssh_port}-:22"


def _data_disk(path: Path | None) -> list[str]:
    if path is None:
        return []
    drive = f"if=none,id=data,file={path},format=qcow2,cache=unsafe,discard=unmap"
    return ["-drive", drive, "-device", f"virtio-blk-pci,drive=data,serial={DATA_SERIAL}"]


def _processor(hardware: Hardware) -> list[str]:
    size = ["-smp", str(hardware.vcpus)]
    if hardware.accelerator == "kvm":
        return ["-accel", "kvm", "-machine", _MACHINE, "-cpu", "host", *size]
    # The buffer for translated code is 256 MiB. A larger buffer needs more memory. With a smaller buffer, QEMU
    # translates the same code repeatedly.
    return ["-accel", "tcg,thread=multi,tb-size=256", "-machine", _MACHINE, "-cpu", _EMULATED_CPU, *size]
