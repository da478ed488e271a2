"""What a job's container gets of the node, and what a node must have before a container starts."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.catalog import Fabric, fabrics
from components.cluster import outputs_of
from components.outputs import read_outputs
from components.stackfile import read_stack
from jobs.container import RUNTIMES, Container
from jobs.facts import Cluster, Transport, cluster_of
from jobs.loader import load_job
from jobs.placement import Placement, place
from jobs.render import render_files
from jobs.wrap import enter_lines, mounts, pyxis_options
from tests.conftest import ROOT
from tests.jobs.conftest import HOST_KEY, MakeProgram, Program

IMAGE = "nvcr.io/nvidia/pytorch:26.01-py3"
WITH_FILES = [fabric for fabric in fabrics().values() if fabric.mounts or fabric.library_path]


def files(tmp_path: Path, cluster: Cluster, more: str = "") -> Path:
    """Render a job of one node into a run folder, with the node's facts from a folder of the test."""
    job_file = tmp_path / "job.yaml"
    job_file.write_text(f"name: fine\nnodes: 1\ngpus_per_node: 1\n{more}")
    job = load_job(str(job_file), {}, {}, [])
    run_dir = tmp_path / "run"
    facts = tmp_path / "facts"
    facts.mkdir(exist_ok=True)
    (facts / "fabric.env").write_text("NCCL_ALGO='Ring,Tree'\n")
    for name, text in render_files(job, place(job, replace(cluster, scheduler="none"))).items():
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).write_text(text.replace("/etc/trainyard/fabric.env", str(facts / "fabric.env")))
    return run_dir


def run_part(run_dir: Path, part: str, path: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a part of the job's script as the runner's agent does."""
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
def test_a_fabrics_files_reach_every_runtime(fabric: Fabric, runtime: str, wide: Cluster, tmp_path: Path) -> None:
    container = Container(image=IMAGE, runtime=runtime)
    placement = placement_on(fabric, wide, tmp_path)
    if runtime == "pyxis":
        lines = pyxis_options(container, placement)
    else:
        lines = enter_lines(container, placement, "job.sh", inner_ssh=False)
    assert set(mounts(container, placement)) > {f"{path.removesuffix(':ro')}:{path}" for path in fabric.mounts}
    for path in fabric.mounts:
        source, read_only = path.removesuffix(":ro"), path.endswith(":ro")
        expected = {
            "docker": f"--mount type=bind,source={source},target={source}{',readonly' if read_only else ''} ",
            "enroot": f"--mount {source}:{source}:none:x-create=auto,rbind{',ro' if read_only else ''} ",
            "pyxis": f",{source}:{path}",
        }[runtime]
        assert any(expected in line for line in lines), lines


def test_a_library_path_is_among_the_mounts_of_its_fabric() -> None:
    for fabric in WITH_FILES:
        roots = [path.removesuffix(":ro") for path in fabric.mounts]
        assert fabric.library_path is None or any(fabric.library_path.startswith(f"{root}/") for root in roots)


def test_no_fabric_sets_library_path_as_a_variable() -> None:
    """It would replace the image's own inside a container."""
    assert all("LD_LIBRARY_PATH" not in fabric.env for fabric in fabrics().values())


@pytest.mark.parametrize("stack", ["gcp-a3-mega", "azure-h100", "local"])
def test_the_outputs_have_the_fabrics_files(stack: str) -> None:
    plan = read_stack(ROOT / "stacks" / f"Pulumi.{stack}.yaml").plan
    # What is read of a host here; its other fields are Pulumi outputs.
    hosts: list[Any] = [
        SimpleNamespace(plan=host, user="ops", through_head=True, proxy_jump=None) for host in plan.hosts
    ]
    keys = {host.name: HOST_KEY for host in plan.hosts}
    made = outputs_of(plan, hosts, ["192.0.2.1", 22] * len(hosts), keys, None)
    cluster = cluster_of(read_outputs(made).model_dump(mode="json"))
    fabric = fabrics()[cluster.nodes[0].fabric]
    wanted = Transport(library_path=fabric.library_path, mounts=fabric.mounts)
    assert cluster.transport == ({"gpu": wanted} if wanted.mounts else {})


def test_outputs_that_an_older_yard_kept_are_read(wide: Cluster, tmp_path: Path) -> None:
    assert placement_on(fabrics()["ethernet"], replace(wide, transport={}), tmp_path).transport.mounts == ()


def test_the_plugins_folder_comes_before_the_images_libraries(tmp_path: Path, wide: Cluster) -> None:
    library = tmp_path / "lib64"
    library.mkdir()
    (library / "libnccl-net.so").touch()
    cluster = replace(wide, transport={"gpu": Transport(library_path=str(library), mounts=())})
    run_dir = files(tmp_path, cluster, "run: echo $LD_LIBRARY_PATH $NCCL_ALGO\n")
    ran = run_part(run_dir, "task", "/usr/bin:/bin", LD_LIBRARY_PATH="/image/lib")
    assert (ran.stdout, ran.stderr) == (f"{library}:/image/lib Ring,Tree\n", "")
    ran = run_part(run_dir, "task", "/usr/bin:/bin")
    assert ran.stdout == f"{library} Ring,Tree\n"


def test_a_job_without_its_fabrics_plugin_fails(tmp_path: Path, wide: Cluster) -> None:
    """NCCL would use plain TCP and report no error."""
    cluster = replace(wide, transport={"gpu": Transport(library_path="/nowhere/lib64", mounts=())})
    ran = run_part(files(tmp_path, cluster, "run: echo worked\n"), "task", "/usr/bin:/bin")
    assert ran.returncode == 1
    assert "finds no NCCL plugin /nowhere/lib64/libnccl-net*.so; `yard doctor`" in ran.stdout
    assert "worked" not in ran.stdout


DOCKER = f"container: {{image: '{IMAGE}', runtime: docker}}\n"


def words_after(calls: Sequence[str], beginning: str) -> list[str]:
    return next(shlex.split(line) for line in calls if line.startswith(beginning))


@pytest.fixture
def docker(program: MakeProgram) -> Program:
    """A docker that shows the key folder as it is while the container runs."""
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


def test_the_keys_of_a_docker_job_lie_on_the_node_while_it_runs(tmp_path: Path, wide: Cluster, docker: Program) -> None:
    home = tmp_path / "home" / ".ssh"
    home.mkdir(parents=True)
    for name in ("id_ed25519", "id_ed25519.pub", "authorized_keys", "config"):
        (home / name).write_text(f"{name}\n")
    run_dir = files(tmp_path, wide, f"{DOCKER}launcher: deepspeed-pdsh\nworkload: train.py\n")
    path = f"{docker.folder}:/usr/bin:/bin"
    ran = run_part(run_dir, "task", path)
    keys = Path("/tmp/yard-run-0-0.ssh")  # noqa: S108  (the job's own name for it)
    user = keys.owner()
    assert ran.stdout.splitlines() == [
        f"700 {user} {keys}",
        *(f"600 {user} {keys}/{name}" for name in ("authorized_keys", "id_ed25519", "id_ed25519.pub")),
    ], ran.stderr
    assert (keys / "authorized_keys").read_text() == "id_ed25519.pub\n"
    run = words_after(docker.calls, "run ")
    assert "no-new-privileges" in run
    assert f"type=bind,source={keys},target={home},readonly" in run
    assert run_part(run_dir, "leave", path).returncode == 0
    assert not keys.exists()


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        (
            {"nvidia-container-runtime-hook": "exit 0"},
            "docker is not installed on node 0; set `containers: docker` in the stack file",
        ),
        ({"docker": "echo 'permission denied' >&2; exit 1"}, "cannot use docker on node 0: permission denied\n"),
        ({"docker": "exit 0"}, "docker without the NVIDIA container toolkit; install nvidia-container-toolkit"),
    ],
)
def test_a_node_that_cannot_start_a_container_fails_the_job(
    tmp_path: Path, wide: Cluster, program: MakeProgram, programs: dict[str, str], said: str
) -> None:
    folder = program("unused", "").folder
    for name, body in programs.items():
        program(name, body)
    for name in ("bash", "env", "id", "cat"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    ran = run_part(files(tmp_path, wide, DOCKER + "run: echo worked\n"), "task", str(folder))
    assert ran.returncode == 1
    assert said in ran.stdout
    assert "worked" not in ran.stdout
