"""KVM or software emulation: asks the processor to boot the real kernel, because the device alone proves nothing.

A /dev/kvm inside another virtual machine may open, answer every ioctl and still never run a guest.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from components.platforms.local.paths import cache_folder

Accelerator = Literal["auto", "kvm", "tcg"]

DEVICE = Path("/dev/kvm")
PROBE_SECONDS = 3.0
"""A working KVM prints its first line well within a second; one that does not stays silent."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How machines run, and why: `accelerator` is kvm or tcg."""

    accelerator: str
    reason: str


def choose(wish: Accelerator, kernel: Path, qemu: str = "qemu-system-x86_64") -> Choice:
    """Return what `wish` comes to on this machine. `auto` probes once per start of this machine (about 3 s)."""
    if wish == "kvm":
        return Choice(accelerator="kvm", reason="the stack file asks for it")
    if wish == "tcg":
        return Choice(accelerator="tcg", reason="the stack file asks for software emulation")
    remembered = _remembered()
    if remembered is None:
        remembered = probe(kernel, qemu)
        _remember(remembered)
    return remembered


def probe(kernel: Path, qemu: str = "qemu-system-x86_64", device: Path = DEVICE) -> Choice:
    """Boot `kernel` under KVM for a moment; KVM is chosen only when the kernel speaks on its serial line."""
    if not device.exists():
        return Choice(accelerator="tcg", reason=f"there is no {device}")
    if not os.access(device, os.R_OK | os.W_OK):
        return Choice(accelerator="tcg", reason=f"this user may not open {device}")
    command = [
        qemu, "-accel", "kvm", "-machine", "q35", "-cpu", "host", "-m", "256", "-display", "none", "-nodefaults",
        "-no-user-config", "-no-reboot", "-serial", "stdio", "-monitor", "none", "-kernel", str(kernel),
        "-append", "console=ttyS0 earlyprintk=serial panic=-1",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            return _verdict(process)
        finally:
            process.kill()


def _verdict(process: subprocess.Popen[bytes]) -> Choice:
    """Wait for the guest's first byte, for the end of the process, or for the deadline."""
    if process.stdout is None or process.stderr is None:
        raise ValueError("the probe needs both pipes")
    deadline = time.monotonic() + PROBE_SECONDS
    select.select([process.stdout], [], [], PROBE_SECONDS)
    if process.stdout in select.select([process.stdout], [], [], 0)[0] and os.read(process.stdout.fileno(), 1):
        return Choice(accelerator="kvm", reason="the probe's kernel spoke under KVM")
    try:
        process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return Choice(accelerator="tcg", reason=f"/dev/kvm opens, but a guest said nothing for {PROBE_SECONDS:.0f} s")
    said = process.stderr.read().decode(errors="replace").strip().splitlines()
    words = said[0] if said else f"exit status {process.returncode}"
    return Choice(accelerator="tcg", reason=f"/dev/kvm opens, but QEMU cannot use it ({words})")


def _memory() -> Path:
    return cache_folder() / "kvm-probe.json"


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _remembered() -> Choice | None:
    try:
        kept = json.loads(_memory().read_text())
        return Choice(**kept["choice"]) if kept["boot_id"] == _boot_id() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _remember(choice: Choice) -> None:
    # Another reader of the cache must never see half a file.
    _memory().parent.mkdir(parents=True, exist_ok=True)
    new = _memory().with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps({"boot_id": _boot_id(), "choice": asdict(choice)}))
    new.rename(_memory())
