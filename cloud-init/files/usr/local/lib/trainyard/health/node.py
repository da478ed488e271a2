"""The checked node: access to its files, programs and network, and the list of its checks (checks.json)."""

from __future__ import annotations

import json
import os
import shlex
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"
SEVERITIES = ("fatal", "degraded", "note")
"""The severities of checks, most severe first. Every fault except a "note" drains the node."""
METADATA = "169.254.169.254"
"""The address of the metadata service on Azure and Google Cloud (cloud-init/README.md, section "Metadata service")."""
_AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
_NTP_EPOCH = 2208988800
"""Seconds from 1900 to 1970 (RFC 5905, section 6)."""
_NTP_BYTES, _NTP_UNSYNCHRONIZED = 48, 3

_stuck: dict[str, subprocess.Popen[str]] = {}
"""Programs that are still running after SIGKILL because they are waiting in the kernel. Each program is started again
only after its previous process has exited."""


@dataclass(frozen=True)
class Ran:
    """A program's exit code and output. `code` is None if the program is missing or did not end in time."""

    code: int | None
    output: str = ""
    problem: str = ""


def run_tool(argv: list[str], timeout: float) -> Ran:
    """Run a program for at most `timeout` seconds. Do not wait for a program that cannot be killed."""
    name = argv[0]
    if name in _stuck:
        if _stuck[name].poll() is None:
            return Ran(None, problem="an earlier call is still running")
        del _stuck[name]
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return Ran(None, problem=f"{error.strerror}")
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
        _stuck[name] = process
        return Ran(None, problem=f"no result after {timeout:.0f} s")
    return Ran(process.returncode, output)


def ntp_offset(host: str, timeout: float) -> float | None:
    """Return by how many seconds the clock is ahead of an NTP server, or None if it sent no usable response.

    The function sends one SNTP request (RFC 5905), and ignores a response that took longer than one second.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout)
        try:
            client.connect((host, 123))
            sent, started = time.time(), time.monotonic()
            client.send(b"\x23" + bytes(47))
            answer = client.recv(512)
        except OSError:
            return None
        elapsed = time.monotonic() - started
    if len(answer) < _NTP_BYTES or answer[0] >> 6 == _NTP_UNSYNCHRONIZED or not answer[1] or elapsed > 1:
        return None
    server = (_ntp_time(answer, 32) + _ntp_time(answer, 40)) / 2
    return sent + elapsed / 2 - server


def _ntp_time(answer: bytes, at: int) -> float:
    """Return the timestamp at byte `at` of an NTP packet, converted to seconds since 1970."""
    seconds, fraction = struct.unpack("!II", answer[at : at + 8])
    return float(seconds - _NTP_EPOCH + fraction / 2**32)


def tcp(host: str, port: int, timeout: float) -> str:
    """Connect to a TCP port, and return whether it is "open", "refused" or "silent"."""
    try:
        socket.create_connection((host, port), timeout).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "silent"
    return "open"


def metadata(path: str, headers: Mapping[str, str], timeout: float, server: str = METADATA) -> str | None:
    """Return the text at this path of the metadata service, or None if the service does not respond with status 200."""
    # On machines without a metadata service, this import would delay each start of a program by 0.2 s.
    import http.client  # noqa: PLC0415

    connection = http.client.HTTPConnection(server, timeout=timeout)
    try:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return body.decode(errors="replace") if answer.status == http.HTTPStatus.OK else None


@dataclass(frozen=True)
class Outcome:
    """A check's result. UNKNOWN means that the check could not be carried out, so it says nothing about the node."""

    state: str
    text: str = ""


def passed(text: str = "") -> Outcome:
    return Outcome(PASS, text)


def failed(text: str) -> Outcome:
    return Outcome(FAIL, text)


def unknown(text: str) -> Outcome:
    return Outcome(UNKNOWN, text)


@dataclass(frozen=True)
class Check:
    """A row of checks.json, which explains the fields. `every` and `timeout` are in seconds."""

    id: str
    contexts: Sequence[str]
    nodes: str
    every: float
    timeout: float
    fails: int
    passes: int
    severity: str
    undrain: str
    cause: str
    fix: str
    limits: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Node:
    """The machine that is checked. Tests replace `root` and the functions.

    A file is given as a string (its path on the node) or as a Path (which begins with `root`).
    """

    root: Path = Path("/")
    statvfs: Callable[[str], os.statvfs_result] = os.statvfs
    run: Callable[[list[str], float], Ran] = run_tool
    clock_offset: Callable[[str, float], float | None] = ntp_offset
    connects: Callable[[str, int, float], str] = tcp
    fetch: Callable[[str, Mapping[str, str], float], str | None] = metadata
    sleep: Callable[[float], None] = time.sleep
    events: dict[str, str] = field(default_factory=dict)
    """Mapping from check to the text of its last event, for example from the kernel log."""
    baseline: dict[str, Any] = field(default_factory=dict)
    """Values that checks compare with later values. They survive a restart of the daemon."""
    memo: dict[str, Any] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def read(self, name: str | Path) -> str:
        """Return a file's text without surrounding white space, or "" if it cannot be read."""
        try:
            return (self.path(name) if isinstance(name, str) else name).read_text(errors="replace").strip()
        except OSError:
            return ""

    def glob(self, pattern: str) -> list[Path]:
        return sorted(self.root.glob(pattern.lstrip("/")))

    def variable(self, name: str, file: str = "/etc/trainyard/node.env") -> str:
        """Return a variable from a file of shell assignments, or "" if it is not set.

        The file is parsed again only after it has changed, which saves CPU time.
        """
        try:
            facts = self.path(file).stat()
        except OSError:
            return ""
        version = facts.st_mtime_ns, facts.st_size
        if self.memo.get(file, (None,))[0] != version:
            pairs = (line.partition("=") for line in self.read(file).splitlines())
            self.memo[file] = version, {key: "".join(shlex.split(value)) for key, _, value in pairs}
        found: str = self.memo[file][1].get(name, "")
        return found

    def count(self, name: str) -> int:
        """Return a variable of node.env as a number, or 0 if it is not a number."""
        value = self.variable(name)
        return int(value) if value.isdigit() else 0

    @property
    def boot_id(self) -> str:
        return self.read("/proc/sys/kernel/random/boot_id")

    @property
    def has_slurm(self) -> bool:
        return self.variable("TRAINYARD_SCHEDULER") == "slurm"

    @property
    def announcer(self) -> str:
        """The cloud whose metadata service announces events to this machine: "azure", "google" or "".

        Source: canonical/cloud-init, cloudinit/sources/azure/identity.py (ChassisAssetTag) and DataSourceGCE.py
        (platform_reports_gce), read 2026-11-22.
        """
        if self.read("/sys/class/dmi/id/chassis_asset_tag") == _AZURE_ASSET_TAG:
            return "azure"
        return "google" if self.read("/sys/class/dmi/id/product_name") == "Google Compute Engine" else ""

    def labels(self) -> frozenset[str]:
        """Return this node's labels. A check applies to the node if its `nodes` in checks.json is a label."""
        role, fabric = self.variable("TRAINYARD_ROLE"), self.variable("TRAINYARD_FABRIC")
        facts = {
            "all": True,
            role or "worker": True,
            "slurm": self.has_slurm,
            "gpus": self.count("TRAINYARD_GPUS") > 0,
            "nvidia": self.count("TRAINYARD_GPUS") > 0 and self.variable("TRAINYARD_GPU_TYPE") != "fake",
            # The folder also exists without NVSwitch (driver 580.159.04, one H100 in a VM, 2026-11-22).
            "nvswitch": bool(self.glob("/proc/driver/nvidia-nvswitch/devices/*")),
            "docker": self.variable("TRAINYARD_CONTAINERS") == "docker",
            "announced": bool(self.announcer),
            "rdma": self.count("TRAINYARD_RDMA") > 0,
            "infiniband": self.count("TRAINYARD_RDMA") > 0 and fabric.startswith("infiniband"),
            "gpudirect": fabric.startswith("gpudirect"),
        }
        return frozenset(name for name, holds in facts.items() if holds)


def load_checks() -> dict[str, Check]:
    """Return a mapping from ID to check, in the order of checks.json."""
    rows = json.loads((Path(__file__).parent / "checks.json").read_text())["checks"]
    names = {field.name for field in fields(Check)}
    return {row["id"]: Check(**{name: row[name] for name in names & row.keys()}) for row in rows}


def checks_for(node: Node, context: str) -> Iterator[Check]:
    """Yield the checks that apply to this node in this context."""
    labels = node.labels()
    for check in load_checks().values():
        if check.nodes in labels and context in check.contexts:
            yield check
