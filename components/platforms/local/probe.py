"""Chooses between KVM and software emulation by booting the golden image's kernel as a test.

The existence of /dev/kvm is not enough. In some virtual machines, its ioctls succeed, but guests do not run.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from components.platforms.local.paths import cache_folder

Accelerator = Literal["auto", "kvm", "tcg"]

DEVICE = Path("/dev/kvm")
PROBE_SECONDS = 3.0
"""Timeout of the test boot. If KVM works, the kernel prints its first line within a second."""
_CACHED = "kvm-probe.json"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The accelerator (kvm or tcg) and the reason for the choice."""

    accelerator: str
    reason: str


def choose(requested: Accelerator, kernel: Path, qemu: str = "qemu-system-x86_64") -> Choice:
    """Return the accelerator. With `auto`, a test boot (up to 3 s) runs once after each start of this computer."""
    if requested != "auto":
        return Choice(accelerator=requested, reason="set in the stack file")
    choice = _cached()
    if choice is None:
        choice = probe(kernel, qemu)
        _cache(choice)
    return choice


def probe(kernel: Path, qemu: str = "qemu-system-x86_64", device: Path = DEVICE) -> Choice:
    """Boot `kernel` with KVM, and choose KVM only if the kernel prints to its serial console."""
    if not device.exists():
        return Choice(accelerator="tcg", reason=f"{device} does not exist")
    if not os.access(device, os.R_OK | os.W_OK):
        return Choice(accelerator="tcg", reason=f"this user cannot open {device}")
    command = [
        qemu, "-accel", "kvm", "-machine", "q35", "-cpu", "host", "-m", "256", "-display", "none", "-nodefaults",
        "-no-user-config", "-no-reboot", "-serial", "stdio", "-monitor", "none", "-kernel", str(kernel),
        "-append", "console=ttyS0 earlyprintk=serial panic=-1",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as expired:
        printed, failure = expired.stdout, f"its guest printed nothing for {PROBE_SECONDS:g} s"
    else:
        errors = done.stderr.decode(errors="replace").strip().splitlines()
        cause = errors[0] if errors else f"exit status {done.returncode}"
        printed, failure = done.stdout, f"QEMU cannot use it ({cause})"
    if printed:
        return Choice(accelerator="kvm", reason="the test boot succeeded")
    return Choice(accelerator="tcg", reason=f"/dev/kvm opens, but {failure}")


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _cached() -> Choice | None:
    try:
        cached = json.loads((cache_folder() / _CACHED).read_text())
        return Choice(**cached["choice"]) if cached["boot_id"] == _boot_id() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _cache(choice: Choice) -> None:
    # The file is replaced atomically, so that no other process reads an incomplete one.
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{_CACHED}.{os.getpid()}"
    new.write_text(json.dumps({"boot_id": _boot_id(), "choice": asdict(choice)}))
    new.rename(folder / _CACHED)
