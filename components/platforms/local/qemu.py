"""The QEMU command line of one machine. Pure: a MachineConfig in, an argument list out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

QEMU = "qemu-system-x86_64"

_KERNEL = (
    "root=/dev/nvme0n1 rootfstype=ext4 rw console=ttyS0 net.ifnames=0 quiet systemd.show_status=false audit=0 panic=1 "
    # Emulation makes a kernel stumble now and then; half alive, it would never be ready: it starts again instead.
    "oops=panic "
    # No policy is loaded, but systemd would spend seconds on a BPF program for a security module that listens.
    "lsm=capability "
    # Duplicate address detection holds the network up for seconds on a segment where nobody speaks IPv6.
    "ipv6.disable=1"
)
_KERNEL_EMULATED = (
    # An emulated CPU has none of the known flaws, and pays for every guard and every cleared page.
    "mitigations=off init_on_alloc=0 random.trust_cpu=on no_timer_check "
    # Code that lies at the same address in every process is translated once (28.3 -> 26.1 CPU-s per boot).
    "norandmaps"
)
_MACHINE = "q35,sata=off,smbus=off,vmport=off"
"""Without the devices that a guest would find, load drivers for and never use."""
_EMULATED_CPU = "max,-smap,-smep,-la57,-pku,-mpx"
"""All that QEMU can emulate, but for what only costs: smap ends a translated block at every copy to user memory, la57
adds a level to every page walk, pku and mpx make every context switch larger. Measured: 35.5 -> 29.4 CPU-s per boot."""


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """Everything that decides a machine's command line. Paths are absolute; `accelerator` is kvm or tcg,
    `niceness` the process's own, as nice(1) counts."""

    name: str
    accelerator: str
    vcpus: int
    memory_mib: int
    ssh_port: int
    mac_external: str
    mac_private: str
    kernel: Path
    disk: Path
    seed: Path
    console: Path
    pidfile: Path
    monitor: Path
    switch: Path
    niceness: int


def command(config: MachineConfig) -> list[str]:
    """Return the arguments that start the machine in the background; they return once it runs."""
    return [
        "nice", "-n", str(config.niceness),
        QEMU, "-name", config.name, *_processor(config), "-m", str(config.memory_mib),
        "-display", "none", "-nodefaults", "-no-user-config", "-rtc", "base=utc",
        "-daemonize", "-pidfile", str(config.pidfile),
        "-chardev", f"file,id=console,path={config.console},append=on", "-serial", "chardev:console",
        "-qmp", f"unix:{config.monitor},server=on,wait=off",
        "-kernel", str(config.kernel), "-append", _kernel_command_line(config),
        # Losing the host, not the guest, is what `unsafe` risks: a machine that dies here is made anew.
        "-drive", f"if=none,id=root,file={config.disk},format=qcow2,cache=unsafe,discard=unmap",
        "-device", "nvme,drive=root,serial=root",
        "-drive", f"if=none,id=seed,file={config.seed},format=raw,readonly=on",
        # Not a second NVMe disk: the kernel finds those at the same time, and either may become nvme0.
        "-device", "virtio-blk-pci,drive=seed",
        "-netdev", f"user,id=ext,hostfwd=tcp:127.0.0.1:{config.ssh_port}-:22",
        "-device", f"virtio-net-pci,netdev=ext,mac={config.mac_external},romfile=",
        "-netdev", f"vde,id=clu,sock={config.switch}",
        "-device", f"virtio-net-pci,netdev=clu,mac={config.mac_private},romfile=",
    ]  # fmt: skip


def _kernel_command_line(config: MachineConfig) -> str:
    return _KERNEL if config.accelerator == "kvm" else f"{_KERNEL} {_KERNEL_EMULATED}"


def _processor(config: MachineConfig) -> list[str]:
    size = ["-smp", str(config.vcpus)]
    if config.accelerator == "kvm":
        return ["-accel", "kvm", "-machine", _MACHINE, "-cpu", "host", *size]
    # 256 MiB of translated code per machine: more is host memory, less is translated again and again.
    return ["-accel", "tcg,thread=multi,tb-size=256", "-machine", _MACHINE, "-cpu", _EMULATED_CPU, *size]
