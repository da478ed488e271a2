"""Jobs in containers, with docker on machines without Slurm, and with pyxis and enroot under Slurm.

The containers mount the /usr of the machine.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests.integration.mirror import GUEST_VIEW, Mirror, Server
from tests.integration.project import Project, wait_until
from tests.integration.survivors import SLEEPING, finish, job_file, starts, wait_saved

pytestmark = [pytest.mark.integration, pytest.mark.full]

JOB_UID = 2000
HEAD, WORKERS = "box-head", ("box-gpu-0", "box-gpu-1")
IMAGE = "machine:1"
# The image contains only links, empty folders and parts of /etc. The containers use the programs and PyTorch in the
# machine's /usr, because an emulated machine needs ten minutes to import them into an image.
_ROOT = """
cd "$(mktemp -d)"
ln -s usr/bin usr/lib usr/lib64 usr/sbin .
mkdir -p usr tmp var/tmp etc
chmod 1777 tmp var/tmp
cp -a /etc/alternatives /etc/ld.so.cache /etc/python3 /etc/python3.13 etc/
"""
_BUILD = f"{_ROOT}\ntar -c . | docker import - {IMAGE} >/dev/null"
RELEASES = os.environ.get("TRAINYARD_CONTAINER_RELEASES")
"""Folder with v0.24.0.tar.gz of NVIDIA/pyxis and enroot.tar.gz, an installed enroot whose paths are relative to /."""
_SQUASHED = f"""{_ROOT}
mkdir proc sys dev run root
echo made >etc/from-the-image
mksquashfs . /shared/machine.sqsh -quiet -no-progress
"""
_ENROOT_NEEDS = "curl jq parallel squashfs-tools zstd"
"""What enroot needs and the machines lack (NVIDIA/enroot 3.5.0, pkg/deb/control, read 2026-11-28)."""
DOCKER: dict[str, Any] = {"container": {"image": IMAGE, "runtime": "docker", "mounts": ["/usr:/usr:ro"]}}
# DeepSpeed is not in Debian. This program starts a command on all hosts in the host file, as DeepSpeed does with pdsh.
_FAKE_DEEPSPEED = r"""
mkdir /tmp/bin
cat >/tmp/bin/deepspeed <<'PROGRAM'
#!/bin/bash
exec pdsh -R ssh -w "$(cut -d' ' -f1 "$2" | paste -sd,)" 'test -e /.dockerenv && echo "uid $(id -u) in a container"'
PROGRAM
chmod +x /tmp/bin/deepspeed
PATH=/tmp/bin:$PATH
"""
_INSIDE = 'test -e /.dockerenv && echo "rank $RANK is in a container"'


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A running cluster without Slurm, with docker from a mirror of Debian's archive and the image on both workers."""
    project = Project(tmp_path_factory.mktemp("box") / "project", cluster="box", port_base=29300)
    mirror = Mirror(tmp_path_factory.mktemp("mirror"), 28800)
    project.edit(lambda spec: spec.update(scheduler="none", containers="docker", mirrors=mirror.urls(GUEST_VIEW)))
    project.setup()
    mirror.start()
    try:
        project.stack("up", timeout=1500)
        for node in WORKERS:
            project.on(node, f"sudo bash -eo pipefail -c '{_BUILD}'", timeout=120)
        yield project
    finally:
        mirror.stop()
        project.down(check=False)


def test_two_containers_run_an_all_reduce(box: Project, tmp_path: Path) -> None:
    sizes = ["-b", "8", "-e", "1M", "-f", "8", "--warmup", "1", "--iters", "3"]
    file = job_file(tmp_path, "contained", nodes=2, workload="allreduce.py", args=sizes, setup=_INSIDE, **DOCKER)
    output = finish(box, box.submit(file), 900)
    assert "rank 0 is in a container" in output
    assert "# Avg bus bandwidth" in output
    for node in WORKERS:
        assert box.on(node, "sudo docker ps -aq").strip() == "", "containers are removed at the end of a job"


def test_launcher_reaches_the_other_container_over_ssh(box: Project, tmp_path: Path) -> None:
    keys = {"workload": "allreduce.py", "launcher": "deepspeed-pdsh", "setup": _FAKE_DEEPSPEED}
    output = finish(box, box.submit(job_file(tmp_path, "ssh", nodes=2, **keys, **DOCKER)), 600)
    for node in WORKERS:
        assert f"{node}: uid {JOB_UID} in a container" in output
    for node in WORKERS:
        assert box.on(node, "ls /tmp").find(".ssh") == -1, "the copies of the keys are removed at the end of a job"


def test_missing_image_ends_the_job_with_its_name(box: Project, tmp_path: Path) -> None:
    container = {"image": "localhost:5999/absent:1", "runtime": "docker"}
    job = box.submit(job_file(tmp_path, "absent", nodes=2, run="echo never", container=container))
    output = box.yard("logs", str(job["id"]), "-f", timeout=300, check=False).out
    assert "localhost:5999/absent:1" in output
    assert "never" not in output.splitlines()


def test_job_continues_after_a_killed_container(box: Project, tmp_path: Path) -> None:
    file = job_file(tmp_path, "killed", nodes=2, retries=1, run=SLEEPING, **DOCKER)
    job = box.submit(file)
    wait_saved(box, HEAD, job, ranks=2)
    assert box.on(WORKERS[1], "sudo docker ps -q | wc -l").strip() == "1"
    box.on(WORKERS[1], "sudo docker kill $(sudo docker ps -q)")
    output = finish(box, job, 600)
    assert "rank 0 continues from step 3" in output
    assert len(starts(box, HEAD, job)) == 2
    wait_until("no container", 60, lambda: all(not box.on(node, "sudo docker ps -aq").strip() for node in WORKERS))


class Releases(Server):
    """Serves the files in a folder."""

    def handler(self) -> Callable[..., BaseHTTPRequestHandler]:
        return partial(SimpleHTTPRequestHandler, directory=RELEASES)


@pytest.fixture(scope="module")
def slurm_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A running cluster with Slurm. Its nodes have received enroot, and the second `up` has compiled pyxis on them."""
    if not RELEASES:
        pytest.skip("set TRAINYARD_CONTAINER_RELEASES to a folder with pyxis and enroot")
    project = Project(tmp_path_factory.mktemp("pyx") / "project", cluster="pyx", port_base=29400)
    server = Releases()
    enroot = base64.b64encode(Path(RELEASES, "enroot.tar.gz").read_bytes()).decode()
    project.setup()
    server.start()
    try:
        project.stack("up", timeout=1500)
        for node in ("pyx-gpu-0", "pyx-gpu-1"):
            install = f"apt-get -q update && apt-get -q -y --no-install-recommends install {_ENROOT_NEEDS}"
            project.as_root(node, f"set -e; ({install}) >/dev/null; base64 -d <<<{enroot} | tar -xz -C /", timeout=400)
        mirror = {"nvidia_pyxis": f"http://{GUEST_VIEW}:{server.port}"}
        project.edit(lambda spec: spec.update(containers="enroot", mirrors=mirror))
        project.stack("up", timeout=1500)
        project.as_root("pyx-gpu-0", _SQUASHED)
        yield project
    finally:
        server.stop()
        project.down(check=False)


def test_pyxis_runs_an_all_reduce_in_containers(slurm_box: Project, tmp_path: Path) -> None:
    container = {"image": "/shared/machine.sqsh", "runtime": "pyxis", "mounts": ["/usr:/usr:ro"]}
    sizes = ["-b", "8", "-e", "1M", "-f", "8", "--warmup", "1", "--iters", "3"]
    inside = 'cat /etc/from-the-image && echo "rank $RANK runs as $(id -u)"'
    keys = {"workload": "allreduce.py", "args": sizes, "setup": inside, "container": container}
    output = finish(slurm_box, slurm_box.submit(job_file(tmp_path, "pyxis", nodes=2, **keys)), 900)
    assert "made" in output.splitlines()
    assert f"rank 0 runs as {JOB_UID}" in output
    assert "# Avg bus bandwidth" in output


def test_srun_starts_containers_on_both_nodes(slurm_box: Project) -> None:
    options = "--container-image=/shared/machine.sqsh --container-mounts=/usr:/usr:ro"
    command = "sh -c 'cat /etc/from-the-image; id -u'"
    script = f"cd /shared && srun --nodes=2 --time=5 {options} {command}"
    output = slurm_box.yard("ssh", "pyx-head", "--", script, timeout=300).out.split()
    assert output.count("made") == output.count(str(JOB_UID)) == 2
