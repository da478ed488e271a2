"""The installation of NVIDIA's driver on Debian 13, with real packages.

The modules are compiled in a root file system of the golden image, natively, because compiling on an emulated machine
would take over an hour. On the virtual machine, DKMS copies these modules instead of calling the compiler.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from components.catalog import driver_locks
from components.plan.plan import ClusterPlan
from components.platforms.local.image import ensure_image
from tests.integration.bare import BareHost, install_all, prepared, run_stage
from tests.integration.mirror import GUEST_VIEW, Mirror

pytestmark = [pytest.mark.integration, pytest.mark.full]

LOCK = driver_locks()["debian-13"]
MODULES = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm", "nvidia-peermem")
_UNAME = '#!/bin/sh\n[ "$*" != -r ] || {{ echo {kernel}; exit; }}\nexec /usr/bin/uname "$@"\n'
_PREBUILT = 'MAKE[0]="cp /var/tmp/modules/*.ko ."\n'
_FILL_DISK = """
nohup bash -c 'until compgen -G "/usr/src/nvidia-current-open-*/dkms.conf"; do sleep 0.1; done
  fallocate -l $(df --output=avail -B1 / | sed 1d) /var/tmp/full; cat /dev/zero >>/var/tmp/full' >/dev/null 2>&1 &
"""
"""Script that fills the disk, including the blocks reserved for root, when the driver's source is unpacked."""


@dataclass(frozen=True)
class Tree:
    """A mounted root file system of the golden image."""

    root: Path

    def shell(self, script: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME": "/root"}
        # If the test is interrupted, unshare ends, and the kernel then kills the processes in its namespace.
        isolated = ("unshare", "--pid", "--fork", "--kill-child", "chroot", str(self.root), "bash", "-s")
        return subprocess.run(
            isolated, input=script, capture_output=True, text=True, check=False,
            timeout=3600, env=environment,
        )  # fmt: skip

    @property
    def kernel(self) -> str:
        [folder] = (self.root / "usr" / "lib" / "modules").iterdir()
        return folder.name


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def with_driver(plan: ClusterPlan, mirrors: dict[str, str]) -> ClusterPlan:
    workers = tuple(replace(host, driver="install") for host in plan.workers)
    return replace(plan, workers=workers, mirrors=mirrors)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirror]:
    made = Mirror(tmp_path_factory.mktemp("mirror"), 28500)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    if os.geteuid() != 0:
        pytest.skip("needs root: the golden image is mounted")
    root, disk = (tmp_path_factory.mktemp("tree") / name for name in ("root", "disk.raw"))
    try:
        root.mkdir()
        run("qemu-img", "convert", "-O", "raw", str(ensure_image().disk), str(disk))
        run("mount", "-o", "loop", str(disk), str(root))
        for name in ("proc", "dev"):
            run("mount", "--bind", f"/{name}", str(root / name))
        yield Tree(root)
    finally:
        for folder in (root / "dev", root / "proc", root):
            subprocess.run(["umount", str(folder)], check=False, capture_output=True)
        disk.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def node(mirror: Mirror, local_plan: ClusterPlan, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareHost]:
    """A virtual machine with the files of a node with `driver: install`. Its mirror is not running yet."""
    plan = with_driver(local_plan, mirror.urls(GUEST_VIEW))
    with prepared(plan, tmp_path_factory.mktemp("driver"), 28100) as host:
        assert host.stage("20-apt").returncode == 0
        yield host


def test_modules_are_built_for_the_images_kernel(tree: Tree, mirror: Mirror, local_plan: ClusterPlan) -> None:
    mirror.start()
    uname = tree.root / "usr/local/sbin/uname"
    uname.write_text(_UNAME.format(kernel=tree.kernel))
    uname.chmod(0o755)
    plan = with_driver(local_plan, mirror.urls("127.0.0.1"))
    assert tree.shell(install_all(plan, plan.workers[0])).returncode == 0
    assert tree.shell(run_stage("20-apt")).returncode == 0
    begin = time.monotonic()
    done = tree.shell(run_stage("30-driver"))
    sys.stdout.write(f"{time.monotonic() - begin:.0f} s\n{done.stdout[-6000:]}{done.stderr}\n")
    assert done.returncode == 1
    message = f"error: driver {LOCK.driver} is installed for kernel {tree.kernel}, but this machine has no NVIDIA GPU."
    assert last_line(done).startswith(message)
    found = tree.shell(f"modinfo -k {tree.kernel} -F version {LOCK.module}")
    assert found.stdout == f"{LOCK.driver}\n"
    # A second run downloads and builds nothing.
    requests = len(mirror.requests)
    again = tree.shell(run_stage("30-driver"))
    assert f"driver {LOCK.driver} is installed for kernel {tree.kernel}\n" in again.stdout
    assert len(mirror.requests) == requests
    mirror.stop()


def test_full_disk_is_reported(node: BareHost, tree: Tree, mirror: Mirror, tmp_path: Path) -> None:
    mirror.start()
    # The modules of the native build, for DKMS on this machine.
    folder = tree.root / "usr/lib/modules" / tree.kernel / "updates/dkms"
    for name in MODULES:
        packed = folder / f"{name.replace('nvidia', LOCK.module, 1)}.ko.xz"
        unpacked = subprocess.run(["xz", "-dc", str(packed)], check=True, capture_output=True).stdout
        (tmp_path / f"{name}.ko").write_bytes(unpacked)
    run("tar", "-czf", str(tmp_path / "modules.tgz"), "-C", str(tmp_path), *(f"{name}.ko" for name in MODULES))
    copy(node, tmp_path / "modules.tgz", "mkdir -p /var/tmp/modules && tar -xzf - -C /var/tmp/modules")
    override = f"/etc/dkms/{LOCK.module}-{LOCK.driver}.conf"
    assert node.ssh(f"mkdir -p /etc/dkms; cat >{override} <<'END'\n{_PREBUILT}END\n").returncode == 0

    assert node.ssh(_FILL_DISK).returncode == 0
    done = node.stage("30-driver")
    assert done.returncode == 1
    assert last_line(done).startswith(f"error: driver {LOCK.driver}: the disk became full during the installation.")
    assert node.ssh("rm /var/tmp/full").returncode == 0


def test_next_run_continues_and_reports_the_missing_gpu(node: BareHost, tree: Tree, mirror: Mirror) -> None:
    done = node.stage("30-driver")
    assert done.returncode == 1
    message = f"error: driver {LOCK.driver} is installed for kernel {tree.kernel}, but this machine has no NVIDIA GPU."
    assert last_line(done).startswith(message)
    assert node.ssh(f"modinfo -F version {LOCK.module}").stdout == f"{LOCK.driver}\n"
    versions = node.ssh("dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\\n'").stdout.splitlines()
    for name, package in LOCK.packages.items():
        assert f"{name} {package.version} installed" in versions
    loaded = node.ssh("modprobe nvidia")
    assert "No such device" in loaded.stderr
    # Nothing is downloaded again.
    requests = len(mirror.requests)
    assert last_line(node.stage("30-driver")).startswith(message)
    assert len(mirror.requests) == requests


def copy(host: BareHost, file: Path, command: str) -> None:
    encoded = subprocess.run(["base64", str(file)], check=True, capture_output=True, text=True).stdout
    done = host.ssh(f"base64 -d <<'END' | ({command})\n{encoded}END\n", timeout=600)
    assert done.returncode == 0, done.stderr
