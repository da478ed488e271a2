"""Rotation of each key while a job runs on two nodes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.project import FIRST, HEAD, SECOND, Project
from tests.integration.survivors import finish, job_file, wait_saved

pytestmark = pytest.mark.integration

USER, ADMIN = "id_ed25519", "id_ed25519_admin"
MUNGE_KEY = "sudo cat /etc/munge/munge.key | sha256sum"
WAITING = """\
echo 1 >"$CHECKPOINT_DIR/rank-$RANK"
until [[ -e $CHECKPOINT_DIR/stop ]]; do sleep 1; done
echo "rank $RANK ends"
"""


def files(cluster: Project) -> Path:
    return cluster.folder / ".trainyard" / "ssh" / "local"


def opens(cluster: Project, key: Path, user: str, node: str = HEAD) -> bool:
    """Return whether a login as `user` with this private key succeeds. Connections to workers go through the head
    node."""
    folder = files(cluster)
    nodes = json.loads((folder / "outputs.json").read_text())["cluster"]["nodes"]
    address = {row["name"]: row["private_ip"] for row in nodes}.get(node)
    way = ("-p", "23100") if node == HEAD else ("-o", f"ProxyCommand=ssh -F {folder / 'config'} -W {address}:22 {HEAD}")
    done = subprocess.run(
        ["ssh", "-F", "/dev/null", "-i", str(key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
         "-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={folder / 'known_hosts'}",
         "-o", f"HostKeyAlias={node}", "-o", "ConnectTimeout=60", *way, f"{user}@127.0.0.1", "true"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 or "Permission denied" in done.stderr, done.stderr
    return done.returncode == 0


def rotate(cluster: Project, key: str) -> None:
    """Rotate a key with `yard rotate`. Check that no machine is restarted."""
    before = {node: cluster.pid(node) for node in (HEAD, FIRST, SECOND)}
    cluster.yard("rotate", key, "--yes", timeout=900)
    assert {node: cluster.pid(node) for node in before} == before
    cluster.stack("preview", "--expect-no-changes")


def keep(key: Path, folder: Path) -> Path:
    """Copy a private key with its certificate, if it has one, and return the path of the copy."""
    for file in key.parent.glob(f"{key.name}*"):
        if file.name in {key.name, f"{key.name}-cert.pub"}:
            shutil.copy(file, folder / file.name)
    return folder / key.name


@pytest.fixture(scope="module")
def job(cluster: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A job that runs on both nodes until the file `stop` exists. The job is cancelled after the tests."""
    found = cluster.submit(job_file(tmp_path_factory.mktemp("job"), "waiting", nodes=2, run=WAITING))
    wait_saved(cluster, HEAD, found, ranks=2)
    yield found
    cluster.yard("cancel", str(found["id"]), check=False)
    cluster.wait_idle()


def test_each_key_is_valid_for_one_user_only(cluster: Project) -> None:
    cluster.yard("refresh")
    user, admin = files(cluster) / USER, files(cluster) / ADMIN
    for node in (HEAD, FIRST):
        assert opens(cluster, user, "trainer", node)
        assert not opens(cluster, user, "ops", node)
        assert opens(cluster, admin, "ops", node)
        assert not opens(cluster, admin, "trainer", node)


@pytest.mark.full
def test_old_user_key_is_refused_and_the_job_continues(cluster: Project, job: dict[str, Any], tmp_path: Path) -> None:
    user, admin = files(cluster) / USER, files(cluster) / ADMIN
    old = keep(user, tmp_path)
    rotate(cluster, "user")
    assert cluster.job_state(job) == "RUNNING"
    assert user.read_text() != old.read_text()
    for node in (HEAD, FIRST):
        assert opens(cluster, user, "trainer", node)
        assert not opens(cluster, old, "trainer", node)
        assert not opens(cluster, user, "ops", node)
        assert not opens(cluster, admin, "trainer", node)


@pytest.mark.full
def test_old_admin_key_is_refused_and_the_job_continues(cluster: Project, job: dict[str, Any], tmp_path: Path) -> None:
    admin = files(cluster) / ADMIN
    old = keep(admin, tmp_path)
    for node in (HEAD, FIRST):
        keys = cluster.as_root(node, r"grep -oE 'ssh-(ed25519|rsa) AAAA\S+ \S+' /var/lib/cloud/instance/user-data.txt")
        assert {key.split()[2] for key in keys.splitlines()} == {"authority@it"}
    rotate(cluster, "admin")
    assert cluster.job_state(job) == "RUNNING"
    assert admin.read_text() != old.read_text()
    for node in (HEAD, FIRST):
        assert opens(cluster, admin, "ops", node)
        assert not opens(cluster, old, "ops", node)


@pytest.mark.full
def test_workers_refuse_the_old_cluster_key(cluster: Project, job: dict[str, Any]) -> None:
    handover = "/var/lib/trainyard/handover"
    cluster.as_root(HEAD, f"mkdir -m 0700 /run/old && cp {handover}/cluster_key* /run/old")
    rotate(cluster, "cluster")
    options = f"-o BatchMode=yes -o IdentitiesOnly=yes -o UserKnownHostsFile={handover}/known_hosts"
    new, old = (
        cluster.as_root(HEAD, f"ssh -i {folder}/cluster_key {options} ops@{FIRST} echo in 2>&1 || true")
        for folder in (handover, "/run/old")
    )
    assert "in" in new.split()
    assert "Permission denied" in old
    # The current certificate is useless at another address.
    assert not opens(cluster, stolen(cluster), "ops", HEAD)
    assert cluster.job_state(job) == "RUNNING"


def stolen(cluster: Project) -> Path:
    """Copy the head's key and certificate to this computer, and return the path of the key."""
    folder = cluster.folder / "stolen"
    folder.mkdir(mode=0o700)
    for name in ("cluster_key", "cluster_key-cert.pub"):
        (folder / name).write_text(cluster.as_root(HEAD, f"cat /var/lib/trainyard/handover/{name}"))
        (folder / name).chmod(0o600)
    return folder / "cluster_key"


@pytest.mark.full
def test_job_continues_after_rotation_of_the_database_password(cluster: Project, job: dict[str, Any]) -> None:
    shown = "sudo sed -n s/^StoragePass=//p /etc/slurm/slurmdbd.conf"
    before = cluster.on(HEAD, shown)
    rotate(cluster, "database")
    after = cluster.on(HEAD, shown).strip()
    assert after not in {"", before.strip()}
    assert "slurmdbd is active" in cluster.on(HEAD, "echo slurmdbd is $(systemctl is-active slurmdbd)")
    # The password is in a file, because arguments are public.
    login = cluster.on(
        HEAD,
        "(echo [client]; sudo sed -n s/^StoragePass=/password=/p /etc/slurm/slurmdbd.conf) >~/new.cnf; "
        "mariadb --defaults-extra-file=$HOME/new.cnf --skip-ssl -u slurm -Ne 'SELECT 4711' slurm_acct_db; rm ~/new.cnf",
    )
    assert "4711" in login.split()
    assert cluster.on(HEAD, f"sacct -n -X -j {job['id']} -o state").split() == ["RUNNING"]
    assert cluster.job_state(job) == "RUNNING"


@pytest.mark.full
def test_job_continues_after_rotation_of_the_munge_key(cluster: Project, job: dict[str, Any]) -> None:
    before = cluster.on(HEAD, MUNGE_KEY)
    rotate(cluster, "munge")
    keys = {cluster.on(node, MUNGE_KEY) for node in (HEAD, FIRST, SECOND)}
    assert len(keys) == 1
    assert before not in keys
    assert cluster.job_state(job) == "RUNNING"
    cluster.yard("ssh", HEAD, "--", f"touch {job['run_dir']}/checkpoints/stop")
    output = finish(cluster, job, 300)
    assert "rank 0 ends" in output
    assert "rank 1 ends" in output
    assert cluster.on(HEAD, f"sudo grep -c ' start ' {job['run_dir']}/events").strip() == "1"
    cluster.wait_idle()
    after = cluster.submit("hello")
    assert cluster.yard("logs", str(after["id"]), "-f", timeout=300).code == 0
