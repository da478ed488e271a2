"""Runs programs without waiting for a program that cannot be killed."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_stuck: dict[str, subprocess.Popen[str]] = {}
"""Programs that did not end after SIGKILL, because they wait in the kernel. These programs are not started again until
they exit."""


@dataclass(frozen=True)
class Ran:
    """Exit code and output of a program. `code` is None if the program is missing or did not end in time."""

    code: int | None
    output: str = ""
    problem: str = ""


def run_tool(argv: list[str], timeout: float) -> Ran:
    """Run a program for at most `timeout` seconds."""
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


_NTP_EPOCH = 2208988800
"""Seconds from 1900 to 1970 (RFC 5905, section 6)."""
_ANSWER_BYTES = 48
_UNSYNCHRONIZED = 3


def ntp_offset(host: str, timeout: float) -> float | None:
    """Return the clock's offset from an NTP server in seconds, or None if the server sent no usable response.

    Sends one SNTP request (RFC 5905). The response is not used if the exchange took longer than one second.
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
    if len(answer) < _ANSWER_BYTES or answer[0] >> 6 == _UNSYNCHRONIZED or not answer[1] or elapsed > 1:
        return None
    server = (_ntp_time(answer, 32) + _ntp_time(answer, 40)) / 2
    return sent + elapsed / 2 - server


def _ntp_time(answer: bytes, at: int) -> float:
    """Return the timestamp at an offset in an NTP packet, in seconds since 1970."""
    seconds, fraction = struct.unpack("!II", answer[at : at + 8])
    return float(seconds - _NTP_EPOCH + fraction / 2**32)


def tcp(host: str, port: int, timeout: float) -> str:
    """Return "open", "refused" or "silent" for a TCP port."""
    try:
        socket.create_connection((host, port), timeout).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "silent"
    return "open"


METADATA = "169.254.169.254"
"""Address of the metadata service of Azure and Google Cloud (cloud-init/README.md, section "Metadata service")."""


def metadata(path: str, headers: Mapping[str, str], timeout: float, server: str = METADATA) -> str | None:
    """Return a text from the metadata service, or None if there is no response with status 200."""
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


PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"
SEVERITIES = ("fatal", "degraded", "note")
"""Classes of checks, most severe first. Nodes are drained for all classes except "note"."""

_DATA = Path(__file__).parent
_AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"


@dataclass(frozen=True)
class Outcome:
    """The result of a check. UNKNOWN means that the check could not be carried out, so it is not a verdict."""

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
    """A row of checks.json. `every` and `timeout` are in seconds.

    A verdict begins after `fails` consecutive failures, and ends after `passes` consecutive passes. With undrain
    "reboot", it ends only after a reboot.
    """

    id: str
    contexts: frozenset[str]
    nodes: str
    every: float
    timeout: float
    fails: int
    passes: int
    severity: str
    undrain: str
    limits: Mapping[str, Any]
    cause: str
    fix: str


@dataclass
class Node:
    """The machine that is checked. Tests replace `root` and the functions."""

    root: Path = Path("/")
    statvfs: Callable[[str], os.statvfs_result] = os.statvfs
    run: Callable[[list[str], float], Ran] = run_tool
    clock_offset: Callable[[str, float], float | None] = ntp_offset
    connects: Callable[[str, int, float], str] = tcp
    fetch: Callable[[str, Mapping[str, str], float], str | None] = metadata
    sleep: Callable[[float], None] = time.sleep
    events: dict[str, str] = field(default_factory=dict)
    """Texts of events by check, for example from the kernel log."""
    baseline: dict[str, Any] = field(default_factory=dict)
    """Values that a check compares with later values. Kept across restarts of the daemon."""
    memo: dict[str, Any] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str:
        """Return the text of a file without white space at both ends, or "" if the file cannot be read."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except OSError:
            return ""

    def glob(self, pattern: str) -> list[Path]:
        return sorted(self.root.glob(pattern.lstrip("/")))

    def variable(self, name: str, file: str = "/etc/trainyard/node.env") -> str:
        """Return a variable from a file with shell assignments, or "" if it is not set."""
        return self._variables(file).get(name, "")

    def _variables(self, file: str) -> dict[str, str]:
        """Return the variables in a file. The file is parsed again only after a change, to save CPU time."""
        try:
            facts = self.path(file).stat()
        except OSError:
            return {}
        version = facts.st_mtime_ns, facts.st_size
        if self.memo.get(file, (None,))[0] != version:
            pairs = (line.partition("=") for line in self.read(file).splitlines())
            self.memo[file] = version, {key: "".join(shlex.split(value)) for key, _, value in pairs}
        found: dict[str, str] = self.memo[file][1]
        return found

    def count(self, name: str) -> int:
        """Return the number in a variable of node.env, or 0."""
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
        """Return the values of `nodes` in checks.json that apply to this node."""
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
    """Return all checks by id, in the order of checks.json."""
    rows = json.loads((_DATA / "checks.json").read_text())["checks"]
    return {row["id"]: _check(row) for row in rows}


def _check(row: Mapping[str, Any]) -> Check:
    return Check(
        id=row["id"],
        contexts=frozenset(row["contexts"]),
        nodes=row["nodes"],
        every=row["every"],
        timeout=row["timeout"],
        fails=row["fails"],
        passes=row["passes"],
        severity=row["class"],
        undrain=row["undrain"],
        limits=row.get("limits", {}),
        cause=row["cause"],
        fix=row["fix"],
    )


def checks_for(node: Node, context: str) -> Iterator[Check]:
    """Yield the checks for this node and context."""
    labels = node.labels()
    for check in load_checks().values():
        if check.nodes in labels and context in check.contexts:
            yield check
