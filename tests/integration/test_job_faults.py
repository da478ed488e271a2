"""Node faults during jobs: wrong host names, additional network interfaces, an NFS restart and a full disk.

The tests share the cluster with test_cluster.py and leave it ready.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.integration.project import Project, wait_until
from tests.integration.test_cluster import FIRST, HEAD, SECOND, follow, job_field, slurm_states, submit

pytestmark = [pytest.mark.integration, pytest.mark.full]

READ = """\
name: mapped
nodes: 2
time: 10m
run: |
  if [[ $RANK == 0 ]]; then
    head -c 24M /dev/urandom >"$RUN_DIR/data.bin"
    sha256sum "$RUN_DIR/data.bin" >"$RUN_DIR/sum"
    mv "$RUN_DIR/sum" "$RUN_DIR/ready"
  fi
  until [[ -s $RUN_DIR/ready ]]; do sleep 1; done
  python3 - <<'PROGRAM'
  import hashlib, mmap, os, time
  run = os.environ["RUN_DIR"]
  with open(f"{run}/data.bin", "rb") as file:
      mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
      digest = hashlib.sha256()
      for at in range(0, len(mapped), 1 << 20):
          digest.update(mapped[at:at + (1 << 20)])
          open(f"{run}/reading", "w").close()
          time.sleep(0.5)
  assert digest.hexdigest() == open(f"{run}/ready").read().split()[0]
  PROGRAM
"""


def _is_ready(cluster: Project, node: str) -> bool:
    return '"state":"ready"' in cluster.on(node, "cat /var/lib/trainyard/status.json")


def test_wrong_names_and_interfaces_are_reported_and_tolerated(cluster: Project) -> None:
    spoil = (
        'sudo sed -i "1i 127.0.1.1 $(hostname).lan $(hostname)" /etc/hosts;'
        "sudo ip link add docker0 type bridge; sudo ip addr add 172.17.0.1/16 dev docker0; sudo ip link set docker0 up;"
        "sudo ip link add vetha type veth peer name vethb; sudo ip addr add 10.0.2.15/24 dev vetha;"
        "sudo ip link set vetha up; sudo ip link set vethb up"
    )
    for node in (FIRST, SECOND):
        cluster.on(node, spoil)
    done = cluster.yard("doctor", timeout=300, check=False)
    assert done.code == 1
    assert f"{FIRST} resolves to 127.0.1.1" in done.out
    job = submit(cluster, "allreduce")
    assert "# Avg bus bandwidth" in follow(cluster, str(job["id"]))
    for node in (FIRST, SECOND):
        cluster.on(node, "sudo ip link del docker0; sudo ip link del vetha; sudo systemctl restart trainyard-bootstrap")
        wait_until(f"{node} to be ready", 120, partial(_is_ready, cluster, node))
    assert "resolves to" not in cluster.yard("doctor", timeout=300, check=False).out
    wait_until("both nodes idle", 120, lambda: set(slurm_states(cluster).values()) == {"idle"})


def test_mapped_read_survives_an_nfs_restart(cluster: Project, tmp_path: Path) -> None:
    file = tmp_path / "mapped.yaml"
    file.write_text(READ)
    job = submit(cluster, str(file))
    reading = f"sudo test -e {job['run_dir']}/reading && echo yes || true"
    wait_until("the read to begin", 120, lambda: "yes" in cluster.on(HEAD, reading), 1)
    cluster.on(HEAD, "sudo systemctl restart nfs-server")
    follow(cluster, str(job["id"]))


def test_full_disk_destroys_no_checkpoint(cluster: Project) -> None:
    job = submit(cluster, "train-tiny", "--name", "full", "--", "--batch", "2", "--steps", "8", "--save-every", "2")
    number, run_dir = str(job["id"]), job["run_dir"]
    wait_until(
        "a first checkpoint", 300, lambda: "latest" in cluster.on(HEAD, f"sudo ls {run_dir}/checkpoints || true")
    )
    # The job user fills all space that is not reserved for root. fallocate may fail, but the space allocated so far
    # stays allocated.
    cluster.yard("ssh", "--", "fallocate -l $(df -k --output=avail /shared | tail -1)K /shared/ballast", check=False)
    try:
        wait_until("a failure", 120, lambda: "failed" in cluster.on(HEAD, f"sudo cat {run_dir}/events"))
    finally:
        cluster.yard("ssh", "--", "rm -f /shared/ballast")
    output = cluster.yard("logs", number).out + cluster.yard("logs", number, "--rank", "1").out
    assert "could not be written; 0 MiB are free there" in output
    follow(cluster, number, 600)
    assert int(job_field(cluster, number, "Restarts") or 1) >= 1
    assert "resumed at step" in cluster.yard("logs", number).out
    wait_until("both nodes idle", 120, lambda: set(slurm_states(cluster).values()) == {"idle"})
