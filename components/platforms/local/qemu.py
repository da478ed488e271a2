"""The QEMU command line of one machine. Pure: a MachineConfig in, an argument list out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

QEMU = "qemu-system-x86_64"

KERNEL_COMMAND_LINE = (
    "root=/dev/nvme0n1 rootfstype=ext4 rw console=ttyS0 net.ifnames=0 quiet "
    # An emulated CPU has none of these flaws, and pays for every guard and every cleared page.
    "mitigations=off init_on_alloc=0 random.trust_cpu=on tsc=reliable no_timer_check audit=0 apparmor=0 selinux=0 "
    # Duplicate address detection holds the network up for seconds on a segment where nobody speaks IPv6.
    "ipv6.disable=1 systemd.show_status=false"
)


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """Everything that decides a machine's command line. Paths are absolute; `accelerator` is kvm or tcg."""

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


def command(config: MachineConfig) -> list[str]:
    """Return the arguments that start the machine in the background; they return once it runs."""
    return [
        QEMU, "-name", config.name, *_processor(config), "-m", str(config.memory_mib),
        "-display", "none", "-nodefaults", "-no-user-config", "-rtc", "base=utc",
        "-daemonize", "-pidfile", str(config.pidfile),
        "-chardev", f"file,id=console,path={config.console},append=on", "-serial", "chardev:console",
        "-qmp", f"unix:{config.monitor},server=on,wait=off",
        "-kernel", str(config.kernel), "-append", KERNEL_COMMAND_LINE,
        # Losing the host, not the guest, is what `unsafe` risks: a machine that dies here is made anew.
        "-drive", f"if=none,id=root,file={config.disk},format=qcow2,cache=unsafe,discard=unmap",
        "-device", "nvme,drive=root,serial=root",
        "-drive", f"if=none,id=seed,file={config.seed},format=raw,readonly=on",
        "-device", "virtio-blk-pci,drive=seed",
        "-device", "virtio-rng-pci",
        "-netdev", f"user,id=ext,hostfwd=tcp:127.0.0.1:{config.ssh_port}-:22",
        "-device", f"virtio-net-pci,netdev=ext,mac={config.mac_external},romfile=",
        "-netdev", f"vde,id=clu,sock={config.switch}",
        "-device", f"virtio-net-pci,netdev=clu,mac={config.mac_private},romfile=",
    ]  # fmt: skip


def _processor(config: MachineConfig) -> list[str]:
    if config.accelerator == "kvm":
        return ["-accel", "kvm", "-machine", "q35", "-cpu", "host", "-smp", str(config.vcpus)]
    # 256 MiB of translated code per machine: more is host memory, less is translated again and again.
    return ["-accel", "tcg,thread=multi,tb-size=256", "-machine", "q35", "-cpu", "max", "-smp", str(config.vcpus)]
