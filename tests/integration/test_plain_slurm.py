"""Jobs submitted without yard: Slurm scripts from tutorials, and connections to the cloud's metadata service."""

from __future__ import annotations

import shlex

import pytest

from tests.integration.project import AS_TRAINER, FIRST, HEAD, Project, wait_until

pytestmark = pytest.mark.integration

_SERVICES = """
ip address add 169.254.169.254/32 dev lo
for port in 80 53; do
  systemd-run --quiet --unit=metadata-$port python3 -m http.server $port --bind 169.254.169.254
done
for port in 80 53; do until : <>/dev/tcp/169.254.169.254/$port; do sleep 1; done; done 2>/dev/null
"""
"""Starts a metadata service and a name server on the node."""
_TRY = "for port in 80 53; do (: <>/dev/tcp/169.254.169.254/$port) 2>&1 && echo $port open; done"
REFUSED = ("169.254.169.254/80: Connection refused", "53 open")
_SCRIPT = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "sum", total.item(), flush=True)
dist.destroy_process_group()
"""
_BATCH = """#!/bin/bash
#SBATCH --job-name=multinode-example
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --output=/shared/tutorial/%x-%j.out
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node=${nodes[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
"""
"""The first lines of distributed/ddp-tutorial-series/slurm/sbatch_run.sh in pytorch/examples (read 2026-11-22)."""
_LAUNCH = {
    "python": 'export head_node_ip; srun bash -c "RANK=\\$SLURM_PROCID WORLD_SIZE=2 MASTER_ADDR=$head_node_ip '
    'MASTER_PORT=29500 python3 /shared/tutorial/script.py"',
    "c10d": "srun torchrun --nnodes 2 --nproc_per_node 1 --rdzv_id $RANDOM --rdzv_backend c10d "
    "--rdzv_endpoint $head_node_ip:29500 /shared/tutorial/script.py",
    "static": 'export head_node_ip; srun bash -c "torchrun --nnodes 2 --nproc_per_node 1 --node_rank \\$SLURM_NODEID '
    '--master_addr $head_node_ip --master_port 29500 /shared/tutorial/script.py"',
}


def check_services(cluster: Project) -> None:
    """Check that root can connect to both ports, and that connections to port 80 from other users are refused
    immediately."""
    as_root = cluster.as_root(FIRST, _TRY)
    assert "80 open" in as_root
    job = f"{AS_TRAINER} timeout 60 srun --nodelist={FIRST} bash -c {shlex.quote(_TRY)}"
    users = {
        "admin": cluster.on(FIRST, _TRY),
        "ssh": cluster.yard("ssh", FIRST, "--", _TRY).out,
        "root of a user namespace": cluster.on(
            FIRST, f"{AS_TRAINER} unshare --user --map-root-user timeout 9 bash -c {shlex.quote(_TRY)}"
        ),
        "job": cluster.on(HEAD, job),
    }
    wrong = {name: output for name, output in users.items() if not all(words in output for words in REFUSED)}
    assert wrong == {}


def test_jobs_cannot_reach_the_metadata_service(cluster: Project) -> None:
    cluster.as_root(FIRST, _SERVICES)
    check_services(cluster)


def test_rules_return_after_a_flush(cluster: Project) -> None:
    tables = "for table in metadata ports; do sudo nft list table inet trainyard_$table; done"
    cluster.on(FIRST, "sudo systemctl restart nftables.service")
    # systemctl waits only for the named unit. Confined units take seconds to start on an emulated machine.
    wait_until("the rules", 30, lambda: cluster.on(FIRST, tables, check=False).count("reject with tcp reset") > 1)
    # Stopping nftables.service also stops the units, which the next tests need.
    cluster.on(FIRST, "sudo systemctl stop nftables.service; sudo systemctl start trainyard-{metadata,ports}.service")
    assert cluster.on(FIRST, tables).count("reject with tcp reset") > 1


@pytest.mark.full
def test_metadata_rules_are_active_after_a_reboot(cluster: Project) -> None:
    cluster.reboot(FIRST)
    state = f"sinfo -h -n {FIRST} -o %T"
    wait_until("the node to be idle", 240, lambda: cluster.on(HEAD, state, check=False).strip() == "idle")
    order = cluster.on(FIRST, "systemctl show --value -p ActiveEnterTimestampMonotonic trainyard-metadata ssh").split()
    assert 0 < int(order[0]) < int(order[1])
    cluster.as_root(FIRST, _SERVICES)
    check_services(cluster)


def test_slurm_starts_ranks_with_pmix(cluster: Project) -> None:
    assert "pmix" in cluster.on(FIRST, "srun --mpi=list 2>&1")
    output = cluster.on(HEAD, f"{AS_TRAINER} srun --mpi=pmix --nodes=2 --ntasks=2 env")
    assert {"PMIX_RANK=0", "PMIX_RANK=1"} <= set(output.split())


def test_slurm_ignores_the_pmix_of_a_loaded_module(cluster: Project) -> None:
    """A module such as mpi/hpcx puts the folder of its own libpmix.so.2 on LD_LIBRARY_PATH."""
    cluster.on(HEAD, f"{AS_TRAINER} mkdir -p /shared/other-pmix")
    cluster.on(HEAD, f"echo unusable | {AS_TRAINER} tee /shared/other-pmix/libpmix.so.2")
    loaded = "LD_LIBRARY_PATH=/shared/other-pmix"
    output = cluster.on(HEAD, f"{AS_TRAINER} env {loaded} srun --mpi=pmix --nodes=2 --ntasks=2 env")
    assert {"PMIX_RANK=0", "PMIX_RANK=1", loaded} <= set(output.split())
    assert "/etc/" not in cluster.on(FIRST, "dpkg -L libpmix2t64")


@pytest.mark.full
@pytest.mark.parametrize("rendezvous", sorted(_LAUNCH))
def test_slurm_script_of_the_pytorch_tutorial_runs(cluster: Project, rendezvous: str) -> None:
    files = {"script.py": _SCRIPT, f"{rendezvous}.sbatch": _BATCH + _LAUNCH[rendezvous] + "\n"}
    writes = [f"printf %s {shlex.quote(text)} >/shared/tutorial/{name}" for name, text in files.items()]
    cluster.yard("ssh", HEAD, "--", "; ".join(["mkdir -p /shared/tutorial", *writes]))
    output = cluster.yard(
        "ssh", HEAD, "--",
        f"sbatch --wait /shared/tutorial/{rendezvous}.sbatch; cat $(ls -t /shared/tutorial/*.out | head -n 1)",
        timeout=600,
    ).out  # fmt: skip
    assert "rank 0 of 2 sum 3.0" in output
    assert "rank 1 of 2 sum 3.0" in output
