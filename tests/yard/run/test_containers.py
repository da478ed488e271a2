"""Job containers: mounts, keys, images, and node checks before a container starts."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.catalog import Fabric, fabrics
from components.cluster.cluster import outputs_of
from components.stackfile.read import read_stack
from tests.cloud_init.stage_sandbox import STAGES
from tests.conftest import ROOT
from tests.yard.conftest import HOST_KEY, MakeProgram, Program
from trainyard.outputs import Cluster, Transport, read_outputs
from yard.job.loader import load_job
from yard.job.placement import Placement, place
from yard.job.spec import RUNTIMES, Container
from yard.run.containers import container_lines, mounts, pyxis_options
from yard.run.script import render_files

IMAGE = "nvcr.io/nvidia/pytorch:26.01-py3"
WITH_FILES = [fabric for fabric in fabrics().values() if fabric.mounts or fabric.library_path]


def files(tmp_path: Path, cluster: Cluster, more: str = "") -> Path:
    """Render a single-node job into a run folder. The node's settings and docker's socket are in a temporary folder."""
    job_file = tmp_path / "job.yaml"
    job_file.write_text(f"name: fine\nnodes: 1\ngpus_per_node: 1\n{more}")
    job = load_job(str(job_file), {}, {}, [])
    run_dir = tmp_path / "run"
    facts = tmp_path / "facts"
    facts.mkdir(exist_ok=True)
    (facts / "fabric.env").write_text("NCCL_ALGO='Ring,Tree'\n")
    (facts / "docker.sock").touch()
    for name, text in render_files(job, place(job, replace(cluster, scheduler="none"))).items():
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        moved = text.replace("/etc/trainyard/fabric.env", str(facts / "fabric.env"))
        (run_dir / name).write_text(moved.replace("/var/run/docker.sock", str(facts / "docker.sock")))
    return run_dir


def run_part(run_dir: Path, part: str, path: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a part of the job's script in the same way as the runner's agent."""
    place_of_rank = {"RANK": "0", "LOCAL_RANK": "0", "NODE_RANK": "0", "NODE_IPS": "10.0.0.1", "JOB_NAME": "fine"}
    home = run_dir.parent / "home"
    environment = {"PATH": path, "RUN_DIR": str(run_dir), "HOME": str(home), **place_of_rank, **more}
    command = ["/bin/bash", str(run_dir / "job.sh"), part]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def placement_on(fabric: Fabric, cluster: Cluster, tmp_path: Path) -> Placement:
    job_file = tmp_path / "job.yaml"
    job_file.write_text("name: fine\nrun: echo\n")
    transport = Transport(library_path=fabric.library_path, mounts=fabric.mounts)
    return place(load_job(str(job_file), {}, {}, []), replace(cluster, transport={"gpu": transport}))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("fabric", WITH_FILES, ids=lambda fabric: fabric.name)
def test_fabric_files_are_mounted_in_each_runtime(fabric: Fabric, runtime: str, wide: Cluster, tmp_path: Path) -> None:
    container = Container(image=IMAGE, runtime=runtime)
    placement = placement_on(fabric, wide, tmp_path)
    if runtime == "pyxis":
        lines = pyxis_options(container, placement)
    else:
        lines = [f"{line} " for line in container_lines(container, placement, over_ssh=False)]
    assert set(mounts(container, placement)) > {f"{path.removesuffix(':ro')}:{path}" for path in fabric.mounts}
    for path in fabric.mounts:
        source, read_only = path.removesuffix(":ro"), path.endswith(":ro")
        expected = {
            "docker": f"--mount type=bind,source={source},target={source}{',readonly' if read_only else ''} ",
            "enroot": f"--mount {source}:{source}:none:x-create=auto,rbind{',ro' if read_only else ''} ",
            "pyxis": f",{source}:{path}",
        }[runtime]
        assert any(expected in line for line in lines), lines


def test_library_path_is_mounted() -> None:
    for fabric in WITH_FILES:
        roots = [path.removesuffix(":ro") for path in fabric.mounts]
        assert fabric.library_path is None or any(fabric.library_path.startswith(f"{root}/") for root in roots)


def test_fabrics_do_not_set_ld_library_path() -> None:
    """In a container, the variable would replace the value set in the image."""
    assert all("LD_LIBRARY_PATH" not in fabric.env for fabric in fabrics().values())


@pytest.mark.parametrize("stack", ["gcp-a3-mega", "azure-h100", "local"])
def test_outputs_contain_the_fabric_files(stack: str) -> None:
    plan = read_stack(ROOT / "stacks" / f"Pulumi.{stack}.yaml").plan
    # outputs_of reads only these fields of a host.
    hosts: list[Any] = [
        SimpleNamespace(plan=host, user="ops", through_head=True, proxy_jump=None) for host in plan.hosts
    ]
    keys = {host.name: HOST_KEY for host in plan.hosts}
    made = outputs_of(plan, hosts, ["192.0.2.1", 22] * len(hosts), keys, None)
    cluster = read_outputs(made)
    fabric = fabrics()[cluster.nodes[0].fabric]
    wanted = Transport(library_path=fabric.library_path, mounts=fabric.mounts)
    assert cluster.transport == ({"gpu": wanted} if wanted.mounts else {})


def test_outputs_without_transport_are_accepted(wide: Cluster, tmp_path: Path) -> None:
    assert placement_on(fabrics()["ethernet"], replace(wide, transport={}), tmp_path).transport.mounts == ()


def test_plugin_folder_precedes_image_libraries(tmp_path: Path, wide: Cluster) -> None:
    library = tmp_path / "lib64"
    library.mkdir()
    (library / "libnccl-net.so").touch()
    cluster = replace(wide, transport={"gpu": Transport(library_path=str(library), mounts=())})
    run_dir = files(tmp_path, cluster, "run: echo $LD_LIBRARY_PATH $NCCL_ALGO\n")
    ran = run_part(run_dir, "task", "/usr/bin:/bin", LD_LIBRARY_PATH="/image/lib")
    assert (ran.stdout, ran.stderr) == (f"{library}:/image/lib Ring,Tree\n", "")
    ran = run_part(run_dir, "task", "/usr/bin:/bin")
    assert ran.stdout == f"{library} Ring,Tree\n"


def test_missing_fabric_plugin_fails_the_job(tmp_path: Path, wide: Cluster) -> None:
    """Without the plugin, NCCL would use plain TCP and report no error."""
    cluster = replace(wide, transport={"gpu": Transport(library_path="/nowhere/lib64", mounts=())})
    ran = run_part(files(tmp_path, cluster, "run: echo worked\n"), "task", "/usr/bin:/bin")
    assert ran.returncode == 1
    assert "finds no NCCL plugin /nowhere/lib64/libnccl-net*.so; `yard doctor`" in ran.stdout
    assert "worked" not in ran.stdout


def test_job_runs_without_an_optional_plugin(tmp_path: Path, wide: Cluster) -> None:
    """Stage 45-transport writes this file if it cannot install Fast Socket."""
    (tmp_path / "not-installed").write_text("Fast Socket is not installed; NCCL uses plain TCP streams\n")
    cluster = replace(wide, transport={"gpu": Transport(library_path=str(tmp_path), mounts=())})
    ran = run_part(files(tmp_path, cluster, "run: echo ${LD_LIBRARY_PATH-unset}\n"), "task", "/usr/bin:/bin")
    note = "yard: node 0: Fast Socket is not installed; NCCL uses plain TCP streams\n"
    assert (ran.returncode, ran.stdout) == (0, f"{note}unset\n"), ran.stderr


[NODE_LIMIT] = re.findall(r"^\* hard nofile (\d+)$", (STAGES / "31-system").read_text(), re.MULTILINE)
DOCKER = f"container: {{image: '{IMAGE}', runtime: docker}}\n"


def words_after(calls: Sequence[str], beginning: str) -> list[str]:
    return next(shlex.split(line) for line in calls if line.startswith(beginning))


@pytest.fixture
def docker(program: MakeProgram) -> Program:
    """A fake docker that lists the files in the key folder."""
    program("nvidia-container-runtime-hook", "exit 0")
    look = """
for word; do
  case $word in type=bind,source=/tmp/*.ssh,*)
    keys=${word#*source=}; keys=${keys%%,*}
    stat -c '%a %U %n' "$keys" "$keys"/*
  esac
done
"""
    return program("docker", look)


def test_docker_job_copies_keys_only_while_it_runs(tmp_path: Path, wide: Cluster, docker: Program) -> None:
    home = tmp_path / "home" / ".ssh"
    home.mkdir(parents=True)
    for name in ("id_ed25519", "id_ed25519.pub", "authorized_keys", "config"):
        (home / name).write_text(f"{name}\n")
    run_dir = files(tmp_path, wide, f"{DOCKER}launcher: deepspeed-pdsh\nworkload: train.py\n")
    path = f"{docker.folder}:/usr/bin:/bin"
    ran = run_part(run_dir, "task", path)
    keys = Path("/tmp/yard-run-0-0.ssh")  # noqa: S108  (the job uses this path)
    user = keys.owner()
    assert ran.stdout.splitlines() == [
        f"700 {user} {keys}",
        *(f"600 {user} {keys}/{name}" for name in ("authorized_keys", "config", "id_ed25519", "id_ed25519.pub")),
    ], ran.stderr
    assert (keys / "authorized_keys").read_text() == "id_ed25519.pub\n"
    assert (keys / "config").read_text().splitlines() == [
        "Port 2222",
        "StrictHostKeyChecking yes",
        f'UserKnownHostsFile "{run_dir}/known_hosts"',
        "GlobalKnownHostsFile /dev/null",
    ]
    run = words_after(docker.calls, "run ")
    assert "no-new-privileges" in run
    assert f"nofile={NODE_LIMIT}" in run, "pdsh closes this number of files before it starts ssh"
    assert f"type=bind,source={keys},target={home},readonly" in run
    assert run_part(run_dir, "leave", path).returncode == 0
    assert not keys.exists()


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed-pdsh"])
def test_docker_job_has_a_writable_home(tmp_path: Path, wide: Cluster, docker: Program, launcher: str) -> None:
    """dockerd would create the parent of a mounted ~/.ssh as root, so programs could not write caches."""
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True)
    for name in ("id_ed25519", "id_ed25519.pub"):
        (ssh / name).write_text(f"{name}\n")
    run_dir = files(tmp_path, wide, f"{DOCKER}launcher: {launcher}\nworkload: train.py\n")
    path = f"{docker.folder}:/usr/bin:/bin"
    assert run_part(run_dir, "task", path).returncode == 0
    run = words_after(docker.calls, "run ")
    home, local = ssh.parent, Path(f"/var/tmp/yard-{os.getuid()}/home")  # noqa: S108  (the job uses this path)
    assert f"HOME={home}" in run
    assert f"type=bind,source={local},target={home}" in run
    # Otherwise, dockerd would create this folder as root when it mounts the keys.
    assert local.owner() == (local / ".ssh").owner() == run_dir.owner()
    run_part(run_dir, "leave", path)


@pytest.mark.parametrize("target", ["home", "."])
def test_mount_of_the_job_replaces_the_local_home(tmp_path: Path, wide: Cluster, docker: Program, target: str) -> None:
    """docker rejects two mounts with the same target, and a mount in a mounted /home would hide the job's files."""
    mount = (tmp_path / target).resolve()
    container = DOCKER.replace("}", f", mounts: ['/data:{mount}']}}")
    run_dir = files(tmp_path, wide, f"{container}launcher: torchrun\nworkload: train.py\n")
    assert run_part(run_dir, "task", f"{docker.folder}:/usr/bin:/bin").returncode == 0
    run = words_after(docker.calls, "run ")
    assert [word for word in run if word.endswith((f"target={tmp_path}", f"target={tmp_path}/home"))] == [
        f"type=bind,source=/data,target={mount}"
    ]


@pytest.mark.parametrize(
    ("programs", "printed"),
    [
        (
            {"nvidia-container-runtime-hook": "exit 0"},
            "docker is not installed on node 0; set `containers: docker` in the stack file",
        ),
        ({"docker": "exit 0"}, "docker without the NVIDIA container toolkit; install nvidia-container-toolkit"),
    ],
)
def test_missing_docker_parts_fail_the_job(
    tmp_path: Path, wide: Cluster, program: MakeProgram, programs: dict[str, str], printed: str
) -> None:
    folder = program("unused", "").folder
    for name, body in programs.items():
        program(name, body)
    for name in ("bash", "env", "id", "cat"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    ran = run_part(files(tmp_path, wide, DOCKER + "run: echo worked\n"), "task", str(folder))
    assert ran.returncode == 1
    assert printed in ran.stdout
    assert "worked" not in ran.stdout


def test_job_user_without_access_to_docker_is_an_error(tmp_path: Path, wide: Cluster, docker: Program) -> None:
    run_dir = files(tmp_path, wide, DOCKER + "run: echo worked\n")
    (tmp_path / "facts" / "docker.sock").unlink()
    ran = run_part(run_dir, "task", f"{docker.folder}:/usr/bin:/bin")
    assert ran.returncode == 1
    assert f"cannot use docker on node 0: no permission to write to {tmp_path}/facts/docker.sock\n" in ran.stdout
    assert docker.calls == []


ENROOT = f"container: {{image: '{IMAGE}', runtime: enroot}}\nrun: echo worked\n"


def test_enroot_image_is_in_a_private_folder(tmp_path: Path, wide: Cluster, program: MakeProgram) -> None:
    """In /var/tmp, another user could create a file with the name of the image."""
    enroot = program("enroot", 'env | grep ^ENROOT_ >"$RUN_DIR/settings"; [[ $1 != import ]] || echo image >"$3"')
    run_dir = files(tmp_path, wide, ENROOT)
    script, shared = run_dir / "job.sh", run_dir / "yard.sh"
    shared.write_text(shared.read_text().replace("/var/tmp/", f"{tmp_path}/var-tmp/"))  # noqa: S108
    (tmp_path / "var-tmp").mkdir()
    folder = tmp_path / "var-tmp" / f"yard-{os.getuid()}"
    path = f"{enroot.folder}:/usr/bin:/bin"
    assert run_part(run_dir, "task", path).returncode == 0
    assert folder.stat().st_mode & 0o777 == 0o700
    (image,) = folder.glob("*.sqsh")
    assert words_after(enroot.calls, "start")[-4:] == [str(image), "bash", str(script), "begin"]
    settings = dict(line.split("=") for line in (run_dir / "settings").read_text().splitlines())
    assert set(settings) == {f"ENROOT_{name}_PATH" for name in ("RUNTIME", "DATA", "CACHE", "TEMP")}
    assert all(value.startswith(str(folder)) for value in settings.values())
    rule = "cannot be created or belongs to another user"
    theirs = folder.rename(tmp_path / "theirs")
    folder.symlink_to(theirs)
    ran = run_part(run_dir, "task", path)
    assert (ran.returncode, ran.stdout) == (1, f"yard: {folder} on node 0 {rule}; remove it\n")
    ran = run_part(run_dir, "task", "/usr/bin:/bin")
    assert (ran.returncode, ran.stdout) == (1, "yard: node 0 has no enroot; use an image that contains it\n")
