"""QEMU machines on this computer, their private network and their seed disks. Imports no Pulumi."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

from components.platforms.local import process
from components.platforms.local.image import GoldenImage
from components.platforms.local.image_build import Release
from components.platforms.local.paths import MachineFiles, make_private, socket_folder, switch_socket
from components.platforms.local.process import find, run_program
from trainyard.errors import PlatformError
from trainyard.printable import printable

EXTERNAL_ADDRESS = "10.0.2.15/24"
_GATEWAY = "10.0.2.2"
_RESOLVER = "10.0.2.3"
"""Addresses of QEMU's user-mode network (QEMU's manual, "Using the user mode network stack")."""


@dataclass(frozen=True, kw_only=True)
class Macs:
    """MAC addresses of a machine's external and private network interfaces."""

    external: str
    private: str


def macs(stack: str, name: str) -> Macs:
    """Return MAC addresses that begin with QEMU's prefix 52:54:00 and depend only on `stack` and `name`."""
    digest = hashlib.sha256(f"{stack}/{name}".encode()).hexdigest()
    tail = f"{digest[0:2]}:{digest[2:4]}:{int(digest[4:6], 16) & 0xFE:02x}"
    last = f"{int(digest[4:6], 16) | 0x01:02x}"
    return Macs(external=f"52:54:00:{tail}", private=f"52:54:00:{tail[:-2]}{last}")


def network_config(cards: Macs, private: IPv4Interface) -> str:
    """Return the network configuration (version 2), which names the interfaces ext0 and clu0."""
    # cloud-init 25.1 fails on `to: default` with networkd.
    outside = {
        "match": {"macaddress": cards.external},
        "set-name": "ext0",
        "addresses": [EXTERNAL_ADDRESS],
        "routes": [{"to": "0.0.0.0/0", "via": _GATEWAY}],
        "nameservers": {"addresses": [_RESOLVER]},
    }
    inside = {"match": {"macaddress": cards.private}, "set-name": "clu0", "addresses": [private.with_prefixlen]}
    return json.dumps({"version": 2, "ethernets": {"ext0": outside, "clu0": inside}}, indent=1)


def meta_data(machine_id: str, name: str) -> str:
    """Return the metadata. `dsmode: local` keeps cloud-init from waiting for the network."""
    return json.dumps({"instance-id": machine_id, "local-hostname": name, "dsmode": "local"})


def write_seed(path: Path, user_data: str, meta: str, network: str) -> None:
    """Write the seed disk, an ISO 9660 image with the label cidata. Raises PlatformError if genisoimage fails."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        for name, content in (("user-data", user_data), ("meta-data", meta), ("network-config", network)):
            (Path(folder) / name).write_text(content)
        command = ["genisoimage", "-quiet", "-input-charset", "utf-8", "-volid", "cidata", "-rock"]
        run_program(path.name, "install the genisoimage package", *command, "-output", str(path), folder)


DATA_SERIAL = "data"
"""Serial number of the data disk. udev creates the link /dev/disk/by-id/virtio-<serial> to the disk."""

_KERNEL = (
    # With audit=0, the kernel would run modprobe whenever login or sudo opens an audit socket (61 times on a head
    # before it was ready, 2026-11-23). The image disables audit in journald instead.
    "rootfstype=ext4 rw console=ttyS0 net.ifnames=0 quiet systemd.show_status=false panic=1 "
    # Emulation sometimes causes a kernel oops. Without a restart, the guest would then never become ready.
    "oops=panic "
    # IPv6 duplicate address detection delays the network by seconds. With ipv6.disable=1, the kernel would start
    # modprobe for each IPv6 socket that a program tries to open (33 times on a head before it was ready, 2026-11-27).
    "sysctl.net.ipv6.conf.default.accept_dad=0"
)
_KERNEL_EMULATED = (
    # Mitigations and page clearing are slow, and an emulated CPU has no hardware vulnerabilities.
    "mitigations=off init_on_alloc=0 random.trust_cpu=on no_timer_check "
    # The kernel would test each cryptographic algorithm at its first use (0.5 to 0.8 CPU-s per boot).
    "cryptomgr.notests "
    # If code has the same address in all processes, QEMU translates it only once (28.3 -> 26.1 CPU-s per boot).
    "norandmaps"
)
_MACHINE = "q35,sata=off,smbus=off,vmport=off"
"""Machine type without unused devices, so that the guest does not load drivers for them."""
_EMULATED_CPU = "max,-smap,-smep,-la57,-pku,-mpx"
"""All emulated CPU features except the slow ones: smap ends a translated block at every copy to user memory, la57 adds
a level to every page walk, and pku and mpx slow down context switches (measured: 35.5 -> 29.4 CPU-s per boot)."""


FORWARDED_PORT = r"hostfwd=tcp:127\.0\.0\.1:(\d+)-:22"
"""Regular expression that finds the SSH port in a machine's command line."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Properties that can change between two starts of a machine."""

    accelerator: str
    """kvm or tcg."""
    vcpus: int
    memory_mib: int
    ssh_port: int | None
    """Port on 127.0.0.1, or None for a machine without SSH access."""
    niceness: int
    data_disk: Path | None = None
    """Disk that remains when the machine is removed."""
    forward: str | None = None
    """Option of the user-mode network that forwards an address to a program on this computer (power.py)."""


_CODE_MIB = 640
"""Size of QEMU's buffer for translated code. When the buffer is full, QEMU discards its content and translates again.
After the demo's job, a worker has 562 MiB of code. With 256 MiB, QEMU discarded the code three times, and the job ended
after 97 instead of 91 s (2026-11-27)."""
_HUGE_PAGES = ("env", "GLIBC_TUNABLES=glibc.malloc.hugetlb=1")
"""Lets the table in which QEMU finds translated code use huge pages. A fifth of an emulated machine's time is spent in
lookups that wait for memory, and huge pages save 4 to 5 % of the CPU time (measured 2026-11-29). glibc before 2.35
ignores the setting."""
OVERHEAD_MIB = _CODE_MIB + 100
"""Memory that an emulated machine's QEMU process needs besides its guest's memory."""


def qemu_command(files: MachineFiles, hardware: Hardware, cards: Macs, kernel: Path) -> list[str]:
    """Return the command that starts a machine in the background."""
    port = hardware.ssh_port
    outside = "user,id=ext,ipv6=off" + ("" if port is None else f",hostfwd=tcp:127.0.0.1:{port}-:22")
    outside += "" if hardware.forward is None else f",{hardware.forward}"
    # The seed is not an NVMe disk, because the kernel probes NVMe disks in parallel and the seed could become nvme0.
    drives = [*drive("seed", files.seed, "", read_only=True), *_data_disk(hardware.data_disk)]
    return [*base_command(files, hardware, kernel), *drives, *network(files.run, outside, cards)]


def base_command(files: MachineFiles, hardware: Hardware, kernel: Path) -> list[str]:
    """Return the command with the machine's processor, memory, console, kernel and root disk."""
    release = GoldenImage(kernel.parent).release
    return [
        *([] if hardware.accelerator == "kvm" else _HUGE_PAGES), "nice", "-n", str(hardware.niceness),
        "qemu-system-x86_64", "-name", files.name, *_processor(hardware), "-m", str(hardware.memory_mib),
        "-display", "none", "-nodefaults", "-no-user-config", "-rtc", "base=utc",
        "-daemonize", "-pidfile", str(files.pidfile),
        "-chardev", f"file,id=console,path={files.console},append=on", "-serial", "chardev:console",
        "-qmp", f"unix:{files.monitor},server=on,wait=off",
        "-kernel", str(kernel),
        "-append", " ".join(_kernel_options(release, hardware)),
        # With `unsafe`, a crash of this computer can corrupt the disk. The machine can then be created again.
        "-drive", f"if=none,id=root,file={files.disk},format=qcow2,cache=unsafe,discard=unmap",
        # A virtio disk has no serial number, because the name in /dev/disk would be that of a data disk.
        "-device", "nvme,drive=root,serial=root" if release.root == "nvme0n1" else "virtio-blk-pci,drive=root",
    ]  # fmt: skip


def _kernel_options(release: Release, hardware: Hardware) -> Iterator[str]:
    # The first virtio disk on the command line becomes vda.
    yield f"root=/dev/{release.root}"
    yield _KERNEL
    # Without this option, systemd loads a BPF program for the BPF security module, which takes seconds.
    yield f"lsm={release.security}"
    if hardware.accelerator != "kvm":
        yield _KERNEL_EMULATED


def network(run: Path, outside: str, cards: Macs) -> list[str]:
    """Return the options for a card with QEMU's user-mode network `outside`, and a card at the run's switch."""
    return [
        "-netdev", outside,
        "-device", f"virtio-net-pci,netdev=ext,mac={cards.external},romfile=",
        "-netdev", f"vde,id=clu,sock={switch_socket(run)}",
        "-device", f"virtio-net-pci,netdev=clu,mac={cards.private},romfile=",
    ]  # fmt: skip


def drive(name: str, path: Path, serial: str, *, read_only: bool = False) -> list[str]:
    """Return the options for a virtio disk: a raw file if it is read-only, otherwise a qcow2 file."""
    kind = "format=raw,readonly=on" if read_only else "format=qcow2,cache=unsafe,discard=unmap"
    device = f"virtio-blk-pci,drive={name}" + (f",serial={serial}" if serial else "")
    return ["-drive", f"if=none,id={name},file={path},{kind}", "-device", device]


def _data_disk(path: Path | None) -> list[str]:
    return [] if path is None else drive("data", path, DATA_SERIAL)


def _processor(hardware: Hardware) -> list[str]:
    size = ["-smp", str(hardware.vcpus)]
    if hardware.accelerator == "kvm":
        return ["-accel", "kvm", "-machine", _MACHINE, "-cpu", "host", *size]
    return ["-accel", f"tcg,thread=multi,tb-size={_CODE_MIB}", "-machine", _MACHINE, "-cpu", _EMULATED_CPU, *size]


_SECONDS = 5.0
_CTRL_ALT_DELETE = [{"type": "qcode", "data": key} for key in ("ctrl", "alt", "delete")]
_SHUTDOWN: tuple[Mapping[str, Any], ...] = (
    # systemd reboots on Ctrl-Alt-Delete, and QEMU then exits. A press of the power button would have no effect, because
    # the image does not run systemd-logind.
    {"execute": "set-action", "arguments": {"reboot": "shutdown"}},
    {"execute": "send-key", "arguments": {"keys": _CTRL_ALT_DELETE}},
)


def begin_shutdown(monitor: Path) -> bool:
    """Begin to shut down the guest. Returns False if the monitor does not respond or rejects a command."""
    return execute(monitor, *_SHUTDOWN) is not None


def execute(monitor: Path, *commands: Mapping[str, Any]) -> list[Any] | None:
    """Return the results of commands of QEMU's monitor, or None if it does not respond or rejects a command."""
    results = []
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(_SECONDS)
            link.connect(str(monitor))
            with link.makefile("rw", encoding="utf-8") as stream:
                stream.readline()  # the greeting
                for command in ({"execute": "qmp_capabilities"}, *commands):
                    stream.write(json.dumps(command) + "\n")
                    stream.flush()
                    results.append(_response(stream)["return"])
    except (OSError, ValueError, KeyError):
        return None
    return results[1:]


def _response(stream: Any) -> dict[str, Any]:
    """Return the next message that is not an event. Raises ValueError if the connection is closed."""
    while True:
        message: dict[str, Any] = json.loads(stream.readline())
        if "event" not in message:
            return message


_PIDFILE = "switch.pid"
_LOCK = "switch.lock"
_START_SECONDS = 5.0


def switch_pid(run: Path) -> int | None:
    """Return the process id of the switch, or None if it is not running."""
    return find(run / _PIDFILE)


def start_switch(run: Path) -> int:
    """Start a run's switch and return the switch's process id. Raises PlatformError if the switch does not start."""
    # Other users on this computer must not read the host keys in disks and seeds.
    make_private(run)
    make_private(socket_folder(run))
    pidfile, socket = run / _PIDFILE, switch_socket(run)
    pidfile.unlink(missing_ok=True)
    command = ["vde_switch", "-daemon", "-p", str(pidfile), "-s", str(socket), "-m", "600"]
    run_program("switch", "install the vde2 package", *command)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        pid = switch_pid(run)
        if pid is not None and socket.is_dir():
            return pid
        time.sleep(0.05)
    raise PlatformError(f"switch: vde_switch did not start in {run}")


@contextmanager
def connecting(run: Path) -> Iterator[None]:
    """Wait until no other machine is connecting to the switch, and keep others from connecting until the context ends.

    If two machines connect at the same time, vde_switch can assign one machine's frames to the other machine's port, so
    that the first machine receives only broadcasts. With three clients that connected within 50 ms, this fault occurred
    in 6 of 773 runs (version 2.3.2+r586, 2026-11-23). The cause is that add_fd does not update the position of the
    descriptor that it moves, although mainloop_set_private_data uses this position (virtualsquare/vde-2 at 6ad51c2,
    src/vde_switch/vde_switch.c, read 2026-11-23).
    """
    with (run / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


HOST_KEY_MARK = "trainyard-hostkey: "
_PANIC_MARK = "Kernel panic - not syncing"
_PANICS = 3
"""Number of kernel panics that count as a failed boot. One panic is harmless, because the kernel then restarts."""
HOST_KEY_SECONDS = 420.0
"""Maximum time from power-on until the host key is printed. A boot takes half a minute, or four minutes while three
other machines are booting."""
SHUT_DOWN_SECONDS = 40.0
"""Maximum time for a guest's shutdown."""
_POLL_SECONDS = 0.3
_GREETING_SECONDS = 2.0
"""How long a connection waits for sshd's greeting before the next connection is tried."""
_TAIL_LINES = 20


class Machine(MachineFiles):
    """A machine and its QEMU process."""

    @property
    def pid(self) -> int | None:
        """Return the process id, or None if the machine is off."""
        return process.find(self.pidfile)

    def make_disk(
        self, image: GoldenImage, machine_id: str, cards: Macs, private: IPv4Interface, user_data: str
    ) -> None:
        """Create the root disk and the seed disk. An existing machine with the same name is removed first."""
        self.make_root_disk(image)
        write_seed(self.seed, user_data, meta_data(machine_id, self.name), network_config(cards, private))

    def make_root_disk(self, image: GoldenImage) -> None:
        """Create the root disk. An existing machine with the same name is removed first."""
        self.remove()
        self.folder.mkdir(mode=0o700, parents=True)
        _create_qcow2(self.name, "-F", "qcow2", "-b", str(image.disk), str(self.disk))

    def start(self, image: GoldenImage, hardware: Hardware, cards: Macs) -> None:
        """Start the machine. Raises PlatformError if its SSH port is in use or QEMU fails."""
        port = hardware.ssh_port
        # The check of the stack file found the port free, but another program may have taken it since then.
        if port is not None and process.port_in_use(port):
            raise PlatformError(
                f"{self.name}: port {port} on 127.0.0.1 is in use by another program. Fix: run the command again. It "
                "names the stack file and a free value for cluster.platform.ssh_port_base"
            )
        self.store_command(image, hardware, cards)
        self.launch(qemu_command(self, hardware, cards, image.kernel), hardware.niceness)

    def store_command(self, image: GoldenImage, hardware: Hardware, cards: Macs) -> None:
        """Store the command that starts the machine, so that power.py can start it."""
        command = qemu_command(self, hardware, cards, image.kernel)
        stored = {"command": command, "niceness": hardware.niceness, "memory_mib": hardware.memory_mib}
        new = self.start_file.with_suffix(".new")
        new.write_text(json.dumps(stored))
        new.replace(self.start_file)

    def launch(self, command: Sequence[str], niceness: int) -> None:
        """Start QEMU with this command unless it is running. Raises PlatformError if QEMU fails."""
        # QEMU continues in the background after it has connected to the switch.
        with connecting(self.run):
            # The head can start an elastic node's machine while `pulumi up` starts it.
            if find(self.pidfile) is not None:
                return
            self.monitor.unlink(missing_ok=True)
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PlatformError(f"{self.name}: QEMU did not start: {done.stderr.strip() or 'no error message'}")
        if self.pid is not None:
            process.set_niceness(self.pid, niceness)

    def console_size(self) -> int:
        """Return the console log's size in bytes. The output of the next start begins at this position."""
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

    def wait_ssh(self, port: int, seconds: float = 30.0) -> None:
        """Wait until the machine's sshd sends its greeting, or until the timeout expires.

        Before the guest has configured its network, QEMU accepts a connection and repeats the first packet to the guest
        only after 6 s (QEMU 7.2.22, measured 2026-11-27). An early login would wait longer than a new connection.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.pid is not None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), _GREETING_SECONDS) as connection:
                if connection.recv(4) == b"SSH-":
                    return
            time.sleep(_POLL_SECONDS)

    def shut_down(self) -> None:
        """Shut the machine down if it is running. If the guest does not stop in time, terminate QEMU."""
        pid = self.pid
        if pid is None:
            return
        if not (begin_shutdown(self.monitor) and process.wait_gone(pid, SHUT_DOWN_SECONDS)):
            self.power_off()

    def power_off(self) -> None:
        """Terminate the QEMU process if it is running."""
        pid = self.pid
        if pid is not None:
            process.end(pid)

    def remove(self) -> None:
        """Terminate the process, and delete the machine's files and sockets."""
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
