"""Job containers: mounts, keys, host keys, images, and node checks before a container starts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.catalog import Fabric, fabrics
from components.cluster.cluster import outputs_of
from components.stackfile.read import read_stack
from tests.cloud_init.stage_sandbox import STAGES, function
from tests.conftest import ROOT
from tests.offline.loopback_sshd import free_port, make_key, sshd_binary
from tests.yard.conftest import HOST_KEY, MakeProgram, Program, job_of
from trainyard.outputs import Cluster, Transport, read_outputs
from yard.job.placement import place
from yard.job.spec import RUNTIMES, SSH_PORT, Container
from yard.run.containers import container_lines, pyxis_options
from yard.run.script import render_files

IMAGE = "nvcr.io/nvidia/pytorch:26.01-py3"
WITH_FILES = [fabric for fabric in fabrics().values() if fabric.mounts or fabric.library_path]


def files(tmp_path: Path, cluster: Cluster, more: str = "") -> Path:
    """Render a single-node job into a run folder. The node's settings and docker's socket are in a temporary folder."""
    job = job_of(tmp_path, f"name: fine\nnodes: 1\ngpus_per_node: 1\n{more}")
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


def run_part(run_dir: Path, part: str, path: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Run a part of the job's script in the same way as the runner's agent, with the fake programs on PATH."""
    path = path or f"{run_dir.parent}/programs:/usr/bin:/bin"
    place_of_rank = {"RANK": "0", "LOCAL_RANK": "0", "NODE_RANK": "0", "NODE_IPS": "10.0.0.1", "JOB_NAME": "fine"}
    home = run_dir.parent / "home"
    environment = {"PATH": path, "RUN_DIR": str(run_dir), "HOME": str(home), **place_of_rank, **more}
    command = ["/bin/bash", str(run_dir / "job.sh"), part]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("fabric", WITH_FILES, ids=lambda fabric: fabric.name)
def test_fabric_files_are_mounted_in_each_runtime(fabric: Fabric, runtime: str, wide: Cluster, tmp_path: Path) -> None:
    container = Container(image=IMAGE, runtime=runtime)
    transport = Transport(library_path=fabric.library_path, mounts=fabric.mounts)
    placement = place(job_of(tmp_path, "name: fine\nrun: echo\n"), replace(wide, transport={"gpu": transport}))
    if runtime == "pyxis":
        lines = pyxis_options(container, placement)
    else:
        lines = [f"{line} " for line in container_lines(container, placement, over_ssh=False)]
    roots = [path.removesuffix(":ro") for path in fabric.mounts]
    assert fabric.library_path is None or any(fabric.library_path.startswith(f"{root}/") for root in roots)
    # In a container, this variable would replace the image's value.
    assert "LD_LIBRARY_PATH" not in fabric.env
    for path in fabric.mounts:
        source, read_only = path.removesuffix(":ro"), path.endswith(":ro")
        expected = {
            "docker": f"--mount type=bind,source={source},target={source}{',readonly' if read_only else ''} ",
            "enroot": f"--mount {source}:{source}:none:x-create=auto,rbind{',ro' if read_only else ''} ",
            "pyxis": f",{source}:{path}",
        }[runtime]
        assert any(expected in line for line in lines), lines


@pytest.mark.parametrize("stack", ["gcp-a3-mega", "azure-h100", "local"])
def test_outputs_contain_the_fabric_files(stack: str) -> None:
    plan = read_stack(ROOT / "stacks" / f"Pulumi.{stack}.yaml").plan
    # outputs_of reads only these fields of a host.
    hosts: list[Any] = [
        SimpleNamespace(plan=host, user="ops", through_head=True, proxy_jump=None) for host in plan.hosts
    ]
    keys = {host.name: HOST_KEY for host in plan.hosts}
    made = outputs_of(plan, hosts, ["192.0.2.1", 22] * len(hosts), keys, {})
    cluster = read_outputs(made)
    fabric = fabrics()[cluster.nodes[0].fabric]
    wanted = Transport(library_path=fabric.library_path, mounts=fabric.mounts)
    assert cluster.transport == ({"gpu": wanted} if wanted.mounts else {})


@pytest.mark.parametrize(
    ("file", "image_path", "code", "printed"),
    [
        ("libnccl-net.so", "/image/lib", 0, "@:/image/lib Ring,Tree\n"),
        ("libnccl-net.so", "", 0, "@ Ring,Tree\n"),
        # Without the plugin, NCCL would use plain TCP and report no error.
        ("other", "", 1, "yard: rank 0 finds no NCCL plugin @/libnccl-net*.so; `yard doctor` checks"),
        # Stage 45-transport writes this file if it cannot install Fast Socket.
        ("not-installed", "", 0, "yard: node 0: Fast Socket is not installed\nRing,Tree\n"),
    ],
)
def test_job_uses_the_plugin_of_its_fabric(  # noqa: PLR0913, PLR0917  (four columns and two fixtures)
    file: str, image_path: str, code: int, printed: str, tmp_path: Path, wide: Cluster
) -> None:
    library = tmp_path / "lib64"
    library.mkdir()
    (library / file).write_text("Fast Socket is not installed\n")
    cluster = replace(wide, transport={"gpu": Transport(library_path=str(library), mounts=())})
    run_dir = files(tmp_path, cluster, "run: echo ${LD_LIBRARY_PATH-} $NCCL_ALGO\n")
    variables = {"LD_LIBRARY_PATH": image_path} if image_path else {}
    ran = run_part(run_dir, "task", "/usr/bin:/bin", **variables)
    assert (ran.returncode, ran.stderr) == (code, "")
    assert ran.stdout.startswith(printed.replace("@", str(library)))


[NODE_LIMIT] = re.findall(r"^\* hard nofile (\d+)$", (STAGES / "31-system").read_text(), re.MULTILINE)
DOCKER = f"container: {{image: '{IMAGE}', runtime: docker}}\n"


def words_after(calls: Sequence[str], beginning: str) -> list[str]:
    return next(shlex.split(line) for line in calls if line.startswith(beginning))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The job user's home folder, with the key pair for the nodes."""
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True)
    for name in ("id_ed25519", "id_ed25519.pub"):
        (ssh / name).write_text(f"{name}\n")
    return ssh.parent


@pytest.fixture
def docker(program: MakeProgram) -> Program:
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


def test_docker_job_copies_keys_only_while_it_runs(tmp_path: Path, wide: Cluster, docker: Program, home: Path) -> None:
    run_dir = files(tmp_path, wide, f"{DOCKER}launcher: deepspeed-pdsh\nworkload: train.py\n")
    ran = run_part(run_dir, "task")
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
    assert f"type=bind,source={keys},target={home}/.ssh,readonly" in run
    assert run_part(run_dir, "leave").returncode == 0
    assert not keys.exists()


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed-pdsh"])
def test_docker_job_has_a_writable_home(
    launcher: str, tmp_path: Path, wide: Cluster, docker: Program, home: Path
) -> None:
    """dockerd would create the parent of a mounted ~/.ssh as root, so programs could not write caches."""
    run_dir = files(tmp_path, wide, f"{DOCKER}launcher: {launcher}\nworkload: train.py\n")
    assert run_part(run_dir, "task").returncode == 0
    run = words_after(docker.calls, "run ")
    local = Path(f"/var/tmp/yard-{os.getuid()}/home")  # noqa: S108  (the job uses this path)
    assert f"HOME={home}" in run
    assert f"type=bind,source={local},target={home}" in run
    # Otherwise, dockerd would create this folder as root when it mounts the keys.
    assert local.owner() == (local / ".ssh").owner() == run_dir.owner()
    run_part(run_dir, "leave")


@pytest.mark.parametrize("target", ["home", "."])
def test_mount_of_the_job_replaces_the_local_home(tmp_path: Path, wide: Cluster, docker: Program, target: str) -> None:
    """docker rejects two mounts with the same target, and a mount in a mounted /home would hide the job's files."""
    mount = (tmp_path / target).resolve()
    container = DOCKER.replace("}", f", mounts: ['/data:{mount}']}}")
    run_dir = files(tmp_path, wide, f"{container}launcher: torchrun\nworkload: train.py\n")
    assert run_part(run_dir, "task").returncode == 0
    run = words_after(docker.calls, "run ")
    assert [word for word in run if word.endswith((f"target={tmp_path}", f"target={tmp_path}/home"))] == [
        f"type=bind,source=/data,target={mount}"
    ]


@pytest.mark.parametrize(
    ("present", "printed"),
    [
        ("nvidia-container-runtime-hook", "docker is not installed on node 0; set `containers: docker`"),
        ("docker", "docker without the NVIDIA container toolkit; install nvidia-container-toolkit"),
    ],
)
def test_missing_docker_parts_fail_the_job(
    present: str, printed: str, tmp_path: Path, wide: Cluster, program: MakeProgram
) -> None:
    folder = program(present, "exit 0").folder
    for name in ("bash", "env", "id", "cat"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    ran = run_part(files(tmp_path, wide, DOCKER + "run: echo worked\n"), "task", str(folder))
    assert ran.returncode == 1
    assert printed in ran.stdout
    assert "worked" not in ran.stdout


def test_job_user_without_access_to_docker_is_an_error(tmp_path: Path, wide: Cluster, docker: Program) -> None:
    run_dir = files(tmp_path, wide, DOCKER + "run: echo worked\n")
    (tmp_path / "facts" / "docker.sock").unlink()
    ran = run_part(run_dir, "task")
    assert ran.returncode == 1
    assert f"cannot use docker on node 0: no permission to write to {tmp_path}/facts/docker.sock\n" in ran.stdout
    assert docker.calls == []


def test_enroot_image_is_in_a_private_folder(tmp_path: Path, wide: Cluster, program: MakeProgram) -> None:
    """In /var/tmp, another user could create a file with the name of the image."""
    enroot = program("enroot", 'env | grep ^ENROOT_ >"$RUN_DIR/settings"; [[ $1 != import ]] || echo image >"$3"')
    run_dir = files(tmp_path, wide, f"container: {{image: '{IMAGE}', runtime: enroot}}\nrun: echo worked\n")
    script, shared = run_dir / "job.sh", run_dir / "yard.sh"
    shared.write_text(shared.read_text().replace("/var/tmp/", f"{tmp_path}/var-tmp/"))  # noqa: S108
    (tmp_path / "var-tmp").mkdir()
    folder = tmp_path / "var-tmp" / f"yard-{os.getuid()}"
    assert run_part(run_dir, "task").returncode == 0
    assert folder.stat().st_mode & 0o777 == 0o700
    (image,) = folder.glob("*.sqsh")
    assert words_after(enroot.calls, "start")[-4:] == [str(image), "bash", str(script), "begin"]
    settings = dict(line.split("=") for line in (run_dir / "settings").read_text().splitlines())
    assert set(settings) == {f"ENROOT_{name}_PATH" for name in ("RUNTIME", "DATA", "CACHE", "TEMP")}
    assert all(value.startswith(str(folder)) for value in settings.values())
    rule = "cannot be created or belongs to another user"
    theirs = folder.rename(tmp_path / "theirs")
    folder.symlink_to(theirs)
    ran = run_part(run_dir, "task")
    assert (ran.returncode, ran.stdout) == (1, f"yard: {folder} on node 0 {rule}; remove it\n")
    ran = run_part(run_dir, "task", "/usr/bin:/bin")
    assert (ran.returncode, ran.stdout) == (1, "yard: node 0 has no enroot; use an image that contains it\n")


OTHER = "127.0.0.2"
SSH = """
while read -r host _; do
  ssh -n -F "$TEST_HOME/.ssh/config" -i "$TEST_HOME/.ssh/id" -o BatchMode=yes "$host" echo "hello from $host"
done <"$HOSTFILE"
echo end of work
"""
"""Body of a fake `deepspeed`. With the option -F, ssh does not read ~/.ssh/config of the user who runs the tests."""


class InnerJob:
    """A job whose parts run as processes on this machine instead of in containers."""

    def __init__(self, run_dir: Path, path: str) -> None:
        self.run_dir, self.path, self.port, self.home = run_dir, path, free_port(), run_dir.parent / "home"
        ssh = self.home / ".ssh"
        _, public = make_key(ssh / "id")
        (ssh / "authorized_keys").write_text(f"{public}\n")
        script = run_dir / "job.sh"
        script.write_text(script.read_text().replace(str(SSH_PORT), str(self.port)))
        (run_dir / "hostfile").write_text(f"127.0.0.1 slots=1\n{OTHER} slots=1\n")
        # copy_keys from yard.sh creates the container's SSH configuration.
        copy = (
            f"container_ssh_port={self.port}\n{function(run_dir / 'yard.sh', 'copy_keys')}\ncopy_keys {self.home}/copy"
        )
        subprocess.run(["bash", "-euc", copy], env=self.environment("127.0.0.1", "0"), check=True)
        shutil.copy(self.home / "copy" / "config", ssh / "config")

    def environment(self, address: str, rank: str) -> dict[str, str]:
        place = {"RANK": rank, "LOCAL_RANK": "0", "NODE_RANK": rank, "NODE_IPS": f"127.0.0.1,{OTHER}"}
        job = {"RUN_DIR": str(self.run_dir), "JOB_NAME": "fine", "RESTART_COUNT": "0", "NODE_IP": address}
        homes = {"TEST_HOME": str(self.home), "HOME": str(self.home), "HOSTFILE": str(self.run_dir / "hostfile")}
        return {"PATH": self.path, **place, **job, **homes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}

    @contextmanager
    def part(self, name: str, address: str, rank: str) -> Iterator[subprocess.Popen[str]]:
        """Run the part `listen` or `lead` of the job's script, and kill all processes of this part at the end."""
        command = ["/bin/bash", str(self.run_dir / "job.sh"), name]
        process = subprocess.Popen(
            command, env=self.environment(address, rank), text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        with process:
            try:
                yield process
            finally:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def inner(tmp_path: Path, wide: Cluster, program: MakeProgram, home: Path) -> InnerJob:
    if not sshd_binary():
        pytest.skip("needs sshd: apt install openssh-server")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    fake = program("deepspeed", SSH)
    run_dir = files(tmp_path, wide, f"{DOCKER}launcher: deepspeed-pdsh\nworkload: train.py\n")
    return InnerJob(run_dir, f"{fake.folder}:/usr/bin:/bin:/usr/sbin")


def output(process: subprocess.Popen[str]) -> str:
    """Return the job's output before the line `end of work`."""
    assert process.stdout is not None
    return "".join(iter(process.stdout.readline, "end of work\n"))


@pytest.mark.engine
def test_first_node_has_the_host_keys_of_all_nodes(inner: InnerJob) -> None:
    with inner.part("listen", OTHER, "1"), inner.part("lead", "127.0.0.1", "0") as lead:
        text = output(lead)
    assert "hello from 127.0.0.1\n" in text
    assert f"hello from {OTHER}\n" in text
    known = (inner.run_dir / "known_hosts").read_text().splitlines()
    names = [f"[{host}]:{inner.port}" for host in ("127.0.0.1", OTHER)]
    assert [line.partition(" ")[0] for line in known] == [f"{name},{name}" for name in names]


@pytest.mark.engine
def test_foreign_sshd_on_the_port_is_refused(inner: InnerJob) -> None:
    """Another user on the node could listen on the port before the container's sshd."""
    _, foreign = make_key(inner.home / "foreign")
    with inner.part("listen", OTHER, "1") as listen, inner.part("lead", "127.0.0.1", "0") as lead:
        key = inner.run_dir / f".ssh-host-0-{OTHER}"
        while not key.exists():
            assert listen.poll() is None
        key.write_text(f"{foreign}\n")
        text = output(lead)
    assert "hello from 127.0.0.1" in text
    assert f"hello from {OTHER}" not in text
    assert "Host key verification failed" in text
