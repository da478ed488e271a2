"""A QEMU machine on this computer: its folder, process and console log. Imports no Pulumi."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

from components.platforms.local import process, qemu, qmp
from components.platforms.local.image import GoldenImage
from components.platforms.local.network import connecting
from components.platforms.local.paths import MachineFiles
from components.platforms.local.seed import Macs, meta_data, network_config, write_seed
from trainyard.errors import PlatformError
from trainyard.printable import printable

HOST_KEY_MARK = "trainyard-hostkey: "
_PANIC_MARK = "Kernel panic - not syncing"
_PANICS = 3
"""Number of kernel panics after which a boot fails. The kernel restarts after a panic, so an occasional panic is
harmless."""
HOST_KEY_SECONDS = 420.0
"""Maximum time from power-on until the host key is printed. A boot takes half a minute, or four minutes if three other
machines boot at the same time."""
_SHUT_DOWN_SECONDS = 40.0
_POLL_SECONDS = 0.3
_TAIL_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Machine(MachineFiles):
    """A machine and its QEMU process."""

    @property
    def pid(self) -> int | None:
        """Process id, or None if the machine is off."""
        return process.find(self.pidfile)

    def make_disk(
        self, image: GoldenImage, machine_id: str, cards: Macs, private: IPv4Interface, user_data: str
    ) -> None:
        """Create the root disk and the seed disk. An existing machine with the same name is removed first."""
        self.remove()
        self.folder.mkdir(mode=0o700, parents=True)
        _create_qcow2(self.name, "-F", "qcow2", "-b", str(image.disk), str(self.disk))
        write_seed(self.seed, user_data, meta_data(machine_id, self.name), network_config(cards, private))

    def start(self, image: GoldenImage, hardware: qemu.Hardware, cards: Macs) -> None:
        """Start the machine. Raises PlatformError if its SSH port is in use or QEMU fails."""
        if hardware.ssh_port is not None:
            _check_port(self.name, hardware.ssh_port)
        self.monitor.unlink(missing_ok=True)
        command = qemu.command(self, hardware, cards, image.kernel)
        # QEMU continues in the background after it has connected to the switch.
        with connecting(self.run):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PlatformError(f"{self.name}: QEMU did not start: {done.stderr.strip() or 'no error message'}")
        if self.pid is not None:
            process.set_niceness(self.pid, hardware.niceness)

    def console_size(self) -> int:
        """Return the size of the console log in bytes. The output of the next start begins at this offset."""
        return self.console.stat().st_size if self.console.exists() else 0

    def wait_host_key(self, since: int, seconds: float = HOST_KEY_SECONDS) -> str:
        """Return the SSH host key from the console log after byte `since`.

        Raises PlatformError with the last lines of the log if the machine stops or the timeout expires.
        """
        deadline = time.monotonic() + seconds
        while True:
            alive = self.pid is not None
            output = self.console_output(since)
            key = _host_key(output)
            if key is not None:
                return key
            failure = _boot_failure(output, alive, time.monotonic() > deadline)
            if failure:
                tail = printable("\n  ".join(output.splitlines()[-_TAIL_LINES:])) or "(nothing)"
                raise PlatformError(
                    f"{self.name}: the machine {failure}. Its console log ({self.console}) ends with:\n  {tail}"
                )
            time.sleep(_POLL_SECONDS)

    def shut_down(self) -> None:
        """Shut the machine down if it is running. The QEMU process is terminated if the guest does not respond in
        time."""
        pid = self.pid
        if pid is None:
            return
        if not (qmp.begin_shutdown(self.monitor) and process.wait_gone(pid, _SHUT_DOWN_SECONDS)):
            self.power_off()

    def power_off(self) -> None:
        """Terminate the QEMU process if it is running."""
        pid = self.pid
        if pid is not None:
            process.end(pid)

    def remove(self) -> None:
        """Terminate the process and delete all files and sockets of the machine, if they exist."""
        self.power_off()
        self.monitor.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def console_output(self, since: int) -> str:
        if not self.console.exists():
            return ""
        with self.console.open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")


def make_data_disk(path: Path, gib: int) -> None:
    """Create an empty sparse disk. Raises PlatformError if qemu-img fails."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _create_qcow2(path.stem, str(path), f"{gib}G")


def _create_qcow2(name: str, *arguments: str) -> None:
    command = ["qemu-img", "create", "-q", "-f", "qcow2", *arguments]
    process.run_program(name, "install the qemu-utils package", *command)


def _host_key(console: str) -> str | None:
    for line in console.splitlines(keepends=True):
        _, mark, key = line.partition(HOST_KEY_MARK)
        if mark and line.endswith("\n"):  # an incomplete line has no newline
            return key.strip()
    return None


def _boot_failure(console: str, alive: bool, late: bool) -> str | None:
    if not alive:
        return "stopped while it was booting"
    if console.count(_PANIC_MARK) >= _PANICS:
        return "has a kernel panic"
    return "has printed no host key in time" if late else None


def _check_port(name: str, port: int) -> None:
    # The check of the stack file has found the port free. Another program can use it since then.
    if process.port_in_use(port):
        raise PlatformError(
            f"{name}: port {port} on 127.0.0.1 is in use by another program. Fix: run the command again. It names the "
            "stack file and a free value for cluster.platform.ssh_port_base"
        )
