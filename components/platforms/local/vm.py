"""One machine's life on this host: a folder with its disk, a process, a console log. Imports no pulumi."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

from components.errors import PlatformError
from components.platforms.local import process, qemu, qmp
from components.platforms.local.image import GoldenImage
from components.platforms.local.paths import PIDFILE, socket_folder
from components.platforms.local.seed import Macs, meta_data, network_config, write_seed
from components.platforms.local.switch import switch_socket

HOST_KEY_MARK = "trainyard-hostkey: "
_PANIC_MARK = "Kernel panic - not syncing"
_PANICS = 3
"""After a panic the kernel starts again by itself; with so many, it is no chance."""
HOST_KEY_SECONDS = 420.0
"""From power-on to the host key: half a minute alone, and four on a host that is busy with three others."""
_SHUT_DOWN_SECONDS = 40.0
_POLL_SECONDS = 0.3
_TAIL_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What may change on a machine's next start. `accelerator` is kvm or tcg."""

    accelerator: str
    vcpus: int
    memory_mib: int
    ssh_port: int
    niceness: int


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine by the folder of its run and its name, existing or not."""

    run: Path
    name: str

    @property
    def folder(self) -> Path:
        """Everything the machine is, but for its sockets."""
        return self.run / self.name

    @property
    def disk(self) -> Path:
        """Its own disk, a layer over the golden image."""
        return self.folder / "disk.qcow2"

    @property
    def console(self) -> Path:
        """All that its serial console ever said."""
        return self.folder / "console.log"

    @property
    def monitor(self) -> Path:
        """QEMU's control socket."""
        return socket_folder(self.run) / f"{self.name}.qmp"

    @property
    def pid(self) -> int | None:
        """Its process, None when it is off."""
        return process.find(self.folder / PIDFILE)

    def make_disk(
        self, image: GoldenImage, machine_id: str, cards: Macs, private: IPv4Interface, user_data: str
    ) -> None:
        """Give it a fresh disk and the seed that configures it. What was there under this name is removed."""
        self.remove()
        self.folder.mkdir(mode=0o700, parents=True)
        command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(image.disk), str(self.disk)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise PlatformError(f"{self.name}: qemu-img is missing. Fix: install the qemu-utils package") from error
        except subprocess.CalledProcessError as error:
            raise PlatformError(f"{self.name}: qemu-img failed: {error.stderr.strip()}") from error
        seed = self.folder / "seed.img"
        write_seed(seed, user_data, meta_data(machine_id, self.name), network_config(cards, private))

    def start(self, image: GoldenImage, hardware: Hardware, cards: Macs) -> None:
        """Power it on. Raises PlatformError when its port is taken or QEMU refuses."""
        _check_port(self.name, hardware.ssh_port)
        self.monitor.unlink(missing_ok=True)
        command = qemu.command(
            qemu.MachineConfig(
                name=self.name,
                accelerator=hardware.accelerator,
                vcpus=hardware.vcpus,
                memory_mib=hardware.memory_mib,
                ssh_port=hardware.ssh_port,
                mac_external=cards.external,
                mac_private=cards.private,
                kernel=image.kernel,
                disk=self.disk,
                seed=self.folder / "seed.img",
                console=self.console,
                pidfile=self.folder / PIDFILE,
                monitor=self.monitor,
                switch=switch_socket(self.run),
                niceness=hardware.niceness,
            )
        )
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise PlatformError(f"{self.name}: {qemu.QEMU} is missing. Fix: install qemu-system-x86") from error
        if done.returncode:
            raise PlatformError(f"{self.name}: QEMU did not start: {done.stderr.strip() or 'it said nothing'}")
        if self.pid is not None:
            process.weigh(self.pid, hardware.niceness)

    def console_size(self) -> int:
        """Return how much the console has said so far: what comes after belongs to the next start."""
        return self.console.stat().st_size if self.console.exists() else 0

    def wait_host_key(self, since: int, seconds: float = HOST_KEY_SECONDS) -> str:
        """Return the ssh host key that the machine prints on its console after byte `since`.

        Raises PlatformError, with the console's last lines, when the machine dies or the deadline passes.
        """
        deadline = time.monotonic() + seconds
        while True:
            alive = self.pid is not None
            said = self._said(since)
            key = _host_key(said)
            if key is not None:
                return key
            failure = _boot_failure(said, alive, time.monotonic() > deadline)
            if failure:
                tail = "\n  ".join(said.splitlines()[-_TAIL_LINES:]) or "(nothing)"
                raise PlatformError(f"{self.name}: the machine {failure}. Its console ({self.console}) ends:\n  {tail}")
            time.sleep(_POLL_SECONDS)

    def shut_down(self) -> None:
        """Switch it off in an orderly way, the hard way when it does not answer. One that is off is fine."""
        pid = self.pid
        if pid is None:
            return
        if not (qmp.ask(self.monitor, *qmp.SHUT_DOWN) and process.wait_gone(pid, _SHUT_DOWN_SECONDS)):
            self.power_off()

    def power_off(self) -> None:
        """Switch it off at once. One that is off is fine."""
        pid = self.pid
        if pid is not None:
            process.end(pid)

    def remove(self) -> None:
        """Leave nothing of it: process, disk, seed, log, sockets. Nothing there is fine."""
        self.power_off()
        self.monitor.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _said(self, since: int) -> str:
        if not self.console.exists():
            return ""
        with self.console.open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")


def _host_key(console: str) -> str | None:
    for line in console.splitlines(keepends=True):
        _, mark, key = line.partition(HOST_KEY_MARK)
        if mark and line.endswith("\n"):  # a line still being written has no end yet
            return key.strip()
    return None


def _boot_failure(console: str, alive: bool, late: bool) -> str | None:
    if not alive:
        return "died while it booted"
    if console.count(_PANIC_MARK) >= _PANICS:
        return "has a kernel panic"
    return "has printed no host key in time" if late else None


def _check_port(name: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise PlatformError(
                f"{name}: port {port} on 127.0.0.1 is taken ({error.strerror}). Fix: end what listens there, "
                "or set another cluster.platform.ssh_port_base"
            ) from error
