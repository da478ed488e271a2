"""The restrictions of the services (cloud-init/confined.conf), for every unit in cloud-init/files.

With these units, the daemons of Debian 12 and 13 and of Ubuntu 22.04 and 24.04 (systemd 252, 257, 249 and 255) stored
accounting, saved their state, restarted and reconfigured. No program could run in a folder that they may write, and
they could write no other folder (tested in containers on 2026-11-25).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from tests.cloud_init.stage_sandbox import STAGES

UNITS = STAGES.parents[4] / "etc/systemd/system"
SHARED = UNITS.parents[3] / "confined.conf"
UNCONFINED = {
    "trainyard-collector": "runs nvidia-smi, as an unprivileged user",
    "trainyard-monitoring": "installs packages",
    "slurmd": "starts jobs as other users",
    "trainyard-bootstrap": "installs packages and changes the system",
    "trainyard-power@": "runs the site's program",
    "trainyard-health": "runs the drivers' tools, restarts services and drains the node",
    "trainyard-updates": "installs packages",
}
CONFINED = sorted(path.parent.name.removesuffix(".service.d") for path in UNITS.glob("*/confined.conf"))
EXPOSURE = 3.0
_FOLDERS = {"ReadWritePaths": "", "RuntimeDirectory": "/run/", "StateDirectory": "/var/lib/"}
"""Settings that make folders writable, and the prefix of their values."""


def settings(unit: str) -> dict[str, list[str]]:
    """Return the values of each setting of a unit, in systemd's order. The packages' own units are not included."""
    files = [UNITS / f"{unit}.service", *sorted((UNITS / f"{unit}.service.d").glob("*.conf"))]
    found: dict[str, list[str]] = {}
    for file in files:
        for key, value in re.findall(r"^(\w+)=(.*)$", file.read_text(), re.M) if file.exists() else ():
            found.setdefault(key, []).append(value)
    return found


def paths(unit: str, *keys: str) -> set[str]:
    found = settings(unit)
    return {path.removeprefix("-") for key in keys for value in found.get(key, ()) for path in value.split()}


def writable(unit: str) -> set[str]:
    return {f"{prefix}{path}" for key, prefix in _FOLDERS.items() for path in paths(unit, key)}


def test_every_service_is_confined_or_listed_with_a_reason() -> None:
    services = {re.sub(r"\.service(\.d)?$", "", path.name) for path in UNITS.glob("*.service*")}
    assert services == {*CONFINED, *UNCONFINED}
    assert all((UNITS / f"{unit}.service.d/confined.conf").samefile(SHARED) for unit in CONFINED)


def test_the_shared_settings_deny_what_no_service_needs() -> None:
    shared = settings(CONFINED[0])
    expected = {"ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes", "NoNewPrivileges": "yes"}
    assert {key: shared[key] for key in expected} == {key: [value] for key, value in expected.items()}
    assert {"/", "/tmp", "/var/tmp"} <= paths(CONFINED[0], "NoExecPaths")  # noqa: S108
    assert {"/run", "/dev/shm"} <= paths(CONFINED[0], "ReadOnlyPaths")  # noqa: S108
    assert "@system-service" in shared["SystemCallFilter"]


@pytest.mark.parametrize("unit", CONFINED)
def test_nothing_in_a_writable_folder_can_run(unit: str) -> None:
    assert writable(unit) <= paths(unit, "NoExecPaths")
    # With ExecPaths=, root could change the programs.
    assert "ExecPaths" not in settings(unit)
    assert not any(
        PurePosixPath(program).is_relative_to(folder)
        for program in paths(unit, "BindReadOnlyPaths")
        for folder in writable(unit)
    )


@pytest.mark.parametrize("unit", CONFINED)
def test_a_service_can_run_its_own_commands(unit: str) -> None:
    commands = [
        value.split()[0]
        for key, values in settings(unit).items()
        if key.startswith("Exec")
        for value in values
        if value and not value.startswith("+")
    ]
    assert commands or unit.startswith("slurm")
    assert {*commands} <= paths(unit, "BindReadOnlyPaths")


@pytest.mark.parametrize("unit", CONFINED)
def test_a_service_writes_only_in_its_own_folders(unit: str) -> None:
    found = settings(unit)
    if "User" in found:
        assert found["User"] == ["slurm" if unit.startswith("slurm") else "prometheus"]
        assert writable(unit) <= {f"/run/{unit}", f"/var/lib/slurm/{unit}", f"/var/lib/{unit}"}
    else:
        # All other folders are read-only, so root creates nothing in a folder of another user.
        assert all(re.fullmatch(r"/var/lib/trainyard/\w+", folder) for folder in writable(unit))
    assert {"CapabilityBoundingSet", "RestrictAddressFamilies"} <= found.keys()
    assert paths(unit, "CapabilityBoundingSet") <= {"CAP_NET_ADMIN"}


@pytest.mark.parametrize("unit", CONFINED)
def test_a_service_cannot_start_other_units(unit: str) -> None:
    assert {"/run/dbus", "/run/systemd/private"} <= paths(unit, "InaccessiblePaths")
    is_hidden = "/run/systemd:ro" in settings(unit).get("TemporaryFileSystem", [])
    # systemd creates its private socket again when it is re-executed, which removes the mount that hides the socket.
    assert "User" in settings(unit) or "AF_UNIX" not in paths(unit, "RestrictAddressFamilies") or is_hidden


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_exposure_of_the_confined_services(tmp_path: Path) -> None:
    copy = tmp_path / "etc/systemd/system"
    shutil.copytree(UNITS, copy)
    for unit in CONFINED:
        if not (copy / f"{unit}.service").exists():
            (copy / f"{unit}.service").write_text(f"[Service]\nExecStart=/usr/sbin/{unit}\n")
    command = ["systemd-analyze", "security", "--offline=true", f"--root={tmp_path}", "--no-pager"]
    ran = subprocess.run(
        [*command, *(f"{unit}.service" for unit in CONFINED)], capture_output=True, text=True, check=True
    )
    found = {unit: float(level) for unit, level in re.findall(r"level for (\S+)\.service: ([\d.]+)", ran.stdout)}
    assert sorted(found) == CONFINED
    assert {unit: level for unit, level in found.items() if level > EXPOSURE} == {}
