"""A job's first node verifies the sshd host keys of the containers on the other nodes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.offline.loopback_sshd import free_port, make_key, sshd_binary
from tests.yard.conftest import MakeProgram
from tests.yard.run.test_containers import DOCKER, files
from trainyard.outputs import Cluster
from yard.job.spec import SSH_PORT

pytestmark = pytest.mark.skipif(
    not Path("/usr/sbin/sshd").exists() or not sshd_binary(), reason="needs sshd: apt install openssh-server"
)
OTHER = "127.0.0.2"
NODES = f"127.0.0.1,{OTHER}"
SSH = """
while read -r host _; do
  ssh -n -F "$TEST_HOME/.ssh/config" -i "$TEST_HOME/.ssh/id" -o BatchMode=yes "$host" echo "hello from $host"
done <"$HOSTFILE"
echo end of work
"""
"""Body of a fake `deepspeed`. With the option -F, ssh does not read ~/.ssh/config of the user who runs the tests."""


class Job:
    """A job whose parts run as processes on this machine instead of in containers."""

    def __init__(self, run_dir: Path, path: str) -> None:
        self.run_dir, self.path, self.port = run_dir, path, free_port()
        home = run_dir.parent / "home"
        (home / ".ssh").mkdir(parents=True)
        _, public = make_key(home / ".ssh" / "id")
        (home / ".ssh" / "authorized_keys").write_text(f"{public}\n")
        self.home = home
        lines = (run_dir / "job.sh").read_text().replace(str(SSH_PORT), str(self.port))
        (run_dir / "job.sh").write_text(lines)
        (run_dir / "hostfile").write_text(f"127.0.0.1 slots=1\n{OTHER} slots=1\n")
        for name in ("id_ed25519", "id_ed25519.pub"):
            (home / ".ssh" / name).write_text("unused\n")
        self._copy_keys()

    def _copy_keys(self) -> None:
        """Create the container's SSH configuration with the function `copy_keys` from yard.sh."""
        lines = (self.run_dir / "yard.sh").read_text()
        function = lines[lines.index("copy_keys() {") :].partition("\n}\n")[0] + "\n}\n"
        lent = self.home / "lent"
        command = f'say() {{ echo "$@"; }}\ncontainer_ssh_port={self.port}\n{function}copy_keys {lent}'
        subprocess.run(["bash", "-euc", command], env=self.environment("127.0.0.1", "0"), check=True)
        shutil.copy(lent / "config", self.home / ".ssh" / "config")

    def environment(self, address: str, rank: str) -> dict[str, str]:
        place = {"RANK": rank, "LOCAL_RANK": "0", "NODE_RANK": rank, "NODE_IPS": NODES, "NODE_IP": address}
        job = {"RUN_DIR": str(self.run_dir), "JOB_NAME": "fine", "RESTART_COUNT": "0"}
        more = {"HOSTFILE": str(self.run_dir / "hostfile"), "TEST_HOME": str(self.home), "HOME": str(self.home)}
        return {"PATH": self.path, **place, **job, **more, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}

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
def job(tmp_path: Path, wide: Cluster, program: MakeProgram) -> Job:
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    fake = program("deepspeed", SSH)
    run_dir = files(tmp_path, wide, f"{DOCKER}launcher: deepspeed-pdsh\nworkload: train.py\n")
    return Job(run_dir, f"{fake.folder}:/usr/bin:/bin:/usr/sbin")


def output(process: subprocess.Popen[str]) -> str:
    """Return the job's output before the line `end of work`."""
    assert process.stdout is not None
    return "".join(iter(process.stdout.readline, "end of work\n"))


@pytest.mark.engine
def test_first_node_has_the_host_keys_of_all_nodes(job: Job) -> None:
    with job.part("listen", OTHER, "1"), job.part("lead", "127.0.0.1", "0") as lead:
        text = output(lead)
    assert "hello from 127.0.0.1\n" in text
    assert f"hello from {OTHER}\n" in text
    known = (job.run_dir / "known_hosts").read_text().splitlines()
    assert [line.partition(" ")[0] for line in known] == [
        f"[127.0.0.1]:{job.port},[127.0.0.1]:{job.port}",
        f"[{OTHER}]:{job.port},[{OTHER}]:{job.port}",
    ]


@pytest.mark.engine
def test_foreign_sshd_on_the_port_is_refused(job: Job) -> None:
    """Another user on the node could listen on the port before the container's sshd."""
    _, foreign = make_key(job.home / "foreign")
    with job.part("listen", OTHER, "1") as listen, job.part("lead", "127.0.0.1", "0") as lead:
        key = job.run_dir / f".ssh-host-0-{OTHER}"
        while not key.exists():
            assert listen.poll() is None
        key.write_text(f"{foreign}\n")
        text = output(lead)
    assert "hello from 127.0.0.1" in text
    assert f"hello from {OTHER}" not in text
    assert "Host key verification failed" in text
