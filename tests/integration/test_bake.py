"""`yard bake` on virtual machines: an interrupted bake, an image with docker, and a cluster that boots it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from components.platforms.local.image import find_image
from components.platforms.local.paths import cache_folder
from components.platforms.local.process import started_under
from tests.integration.mirror import GUEST_VIEW, Mirror
from tests.integration.project import Project, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.full]

HEAD, WORKER = "baked-head", "baked-gpu-0"
_ABSENT = (
    "/etc/trainyard",
    "/var/lib/trainyard",
    "/usr/local/lib/trainyard",
    "/usr/local/sbin/trainyard-receive",
    "/etc/systemd/system/trainyard-bootstrap.service",
    "/etc/ssh/ssh_host_ed25519_key",
    "/root/.ssh",
    "/var/lib/cloud",
    "/var/lib/systemd/random-seed",
    "/var/log/cloud-init.log",
    "/usr/sbin/policy-rc.d",
    "/etc/munge/munge.key",
)
_EMPTY = ("/etc/machine-id", "/var/log/dpkg.log")


@dataclass
class Baked:
    """A project whose cluster needs docker. `name` is the name of its image, and `mirror` provides docker."""

    project: Project
    name: str
    mirror: Mirror

    @property
    def run_folder(self) -> Path:
        return self.project.folder / ".trainyard" / "run" / self.name


@pytest.fixture(scope="module")
def baked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Baked]:
    """A project without an image, and a running mirror."""
    project = Project(tmp_path_factory.mktemp("bake") / "project", cluster="baked", port_base=29100)
    mirror = Mirror(tmp_path_factory.mktemp("mirror"), 28600)
    project.edit(lambda spec: spec.update(scheduler="none", containers="docker", mirrors=mirror.urls(GUEST_VIEW)))
    project.edit(lambda spec: spec["nodes"]["gpu"].update(count=1))
    project.setup()
    name = str(project.yard_json("bake", "--dry-run")["name"])
    mirror.start()
    try:
        yield Baked(project, name, mirror)
    finally:
        mirror.stop()
        project.down(check=False)
        shutil.rmtree(cache_folder() / "images" / name, ignore_errors=True)


def incomplete_images() -> list[str]:
    return [path.name for path in (cache_folder() / "images").glob("baking-*")]


def test_interrupted_bake_leaves_nothing(baked: Baked) -> None:
    process = baked.project.start("python", "-m", "yard", "bake")
    console = baked.run_folder / "builder" / "console.log"
    wait_until(
        "the first stage", 300, lambda: console.exists() and "bake: stage" in console.read_text(errors="replace"), 0.5
    )
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert not baked.run_folder.exists()
    assert started_under(baked.run_folder) == []
    assert incomplete_images() == []
    assert find_image(baked.name) is None


def test_image_is_built_once_and_without_machine_state(baked: Baked, tmp_path: Path) -> None:
    first = baked.project.yard("bake", timeout=1800)
    assert first.out.splitlines()[-1] == f"baked_image: {baked.name}"
    requests = len(baked.mirror.requests)
    assert any("docker.io" in path for path in baked.mirror.requests)
    second = baked.project.yard("bake")
    assert second.out.splitlines()[-1] == f"baked_image: {baked.name}"
    assert len(baked.mirror.requests) == requests
    assert second.seconds < 20
    assert not baked.run_folder.exists()

    image = find_image(baked.name)
    assert image
    disk = tmp_path / "disk.raw"
    subprocess.run(["qemu-img", "convert", "-O", "raw", str(image.disk), str(disk)], check=True)
    for path in _ABSENT:
        assert "not found" in debugfs(disk, f"stat {path}"), path
    for path in _EMPTY:
        assert debugfs(disk, f"cat {path}").splitlines()[1:] == [], path
    assert baked.name not in debugfs(disk, "cat /etc/hosts")
    assert HEAD not in debugfs(disk, "cat /etc/hosts")
    assert debugfs(disk, "cat /etc/hostname").splitlines()[1:] == ["localhost"]
    assert GUEST_VIEW not in debugfs(disk, "cat /etc/apt/sources.list")
    lists = [line for line in debugfs(disk, "ls -p /var/lib/apt/lists").splitlines()[1:] if "Packages" in line]
    assert lists == []


def debugfs(disk: Path, command: str) -> str:
    """Return the output of a debugfs command. The first line is the version."""
    done = subprocess.run(["debugfs", "-R", command, str(disk)], check=True, capture_output=True, text=True)
    return done.stderr + done.stdout


def test_nodes_from_the_image_install_nothing(baked: Baked) -> None:
    baked.mirror.stop()
    baked.project.edit(lambda spec: spec.pop("mirrors"))
    baked.project.edit(lambda spec: spec["platform"].update(baked_image=baked.name))
    up = baked.project.stack("up", timeout=900)
    assert "local-image-stale" not in up.out
    for node in (HEAD, WORKER):
        # The timer for security updates has not run, so the node has not read any package lists.
        assert baked.project.on(node, "cat /var/log/dpkg.log").strip() == ""
    assert baked.project.on(WORKER, "systemctl is-active docker").strip() == "active"
    files = "cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub"
    identities = [baked.project.on(node, files).split()[:3] for node in (HEAD, WORKER)]
    assert all(len(machine) == 32 and kind == "ssh-ed25519" for machine, kind, _ in identities)
    assert not set(identities[0]) & set(identities[1]) - {"ssh-ed25519"}


def test_machines_keep_a_baked_image_that_changes(baked: Baked) -> None:
    before = [baked.project.pid(node) for node in (HEAD, WORKER)]
    baked.project.edit(lambda spec: spec["platform"].pop("baked_image"))
    baked.project.stack("up", timeout=600)
    assert [baked.project.pid(node) for node in (HEAD, WORKER)] == before
