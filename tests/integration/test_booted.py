"""Stacks of both clouds whose machines boot as local virtual machines with their own user-data and agents."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.node.parameters import SharedFiles
from components.node.user_data import JOB_USER
from components.stackfile.read import read_stack
from offline.cloud.faults import FILE
from offline.cloud.world import Record, World
from tests.integration.project import ROOT, Project, wait_until
from tests.integration.received import (
    COLLECT,
    USER_DATA,
    Stack,
    authority_in,
    configured,
    differences,
    explain,
    host_key_in,
    rendered,
    unpack,
)
from tests.integration.survivors import WARNED, finish, job_file, wait_saved

pytestmark = pytest.mark.integration

COMMON = {
    "scheduler": "slurm",
    "containers": "none",  # enroot and pyxis are downloaded from github.com
    "network": {"cidr": "10.77.0.0/20"},
    "access": {"allow_ssh_from": ["198.51.100.0/24"], "via": "public"},
}


def committed(name: str) -> dict[str, Any]:
    """Return a stack of this repository, which `destroy` can delete and which downloads no containers."""
    cluster: dict[str, Any] = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{name}.yaml").read_text())["config"][
        "trainyard:cluster"
    ]
    return cluster | {"containers": "none", "platform": cluster["platform"] | {"protect_storage": False}}


ON_AZURE = COMMON | {
    "platform": {
        "provider": "azure",
        "region": "southcentralus",
        "subscription": "11111111-2222-3333-4444-555555555555",
        "protect_storage": False,
    },
    "head": {"machine": "Standard_D8s_v5"},
}
ON_GOOGLE = COMMON | {
    "platform": {"provider": "gcp", "project": "my-project", "zone": "us-central1-f", "protect_storage": False},
    "head": {"machine": "n2-standard-8"},
}
SPOT = {"kind": "spot"}
STACKS: dict[str, dict[str, Any]] = {
    "gcp": ON_GOOGLE
    | {
        "nodes": {"gpu": {"machine": "a2-highgpu-8g", "count": 2, "placement": "none", "capacity": SPOT}},
        "storage": {"shared": {"kind": "filestore", "size_gib": 10240}},
    },
    "azure": ON_AZURE
    | {
        "nodes": {"gpu": {"machine": "Standard_ND96amsr_A100_v4", "count": 2, "placement": "none", "capacity": SPOT}},
        "storage": {"shared": {"kind": "head_nfs", "size_gib": 1024}},
    },
    "mega": committed("gcp-a3-mega"),
    "hopper": committed("azure-h100"),
    "azfiles": ON_AZURE
    | {
        "nodes": {"gpu": {"machine": "Standard_ND96amsr_A100_v4", "count": 1, "placement": "none"}},
        "storage": {"shared": {"kind": "azure_files", "size_gib": 1024}},
    },
    "small": ON_GOOGLE
    | {
        "nodes": {"gpu": {"machine": "a2-highgpu-1g", "count": 1}},
        "storage": {"shared": {"kind": "filestore", "size_gib": 1024}},
    },
}
"""Cluster names and stacks."""
SHARED = {
    "gcp": SharedFiles(source="ADDRESS:/shared", nfs="3"),
    "azure": SharedFiles(disk="/dev/disk/azure/scsi1/lun0"),
    "mega": SharedFiles(disk="/dev/disk/by-id/google-trainyard-shared"),
    "hopper": SharedFiles(source="ADDRESS:/hopper-shared", nfs="4.1", id_domain="defaultv4iddomain.com"),
    "azfiles": SharedFiles(source="ACCOUNT.file.core.windows.net:/ACCOUNT/shared", nfs="4.1"),
    "small": SharedFiles(source="ADDRESS:/shared", nfs="3"),
}
"""Where the shared files are. ADDRESS and ACCOUNT are the address or the account of the simulated storage service."""
AGENTS = {"gcp": "google-guest-agent", "azure": "walinuxagent"}
IDLE = r"idle\b(?!\*)"
"""Regular expression for the state of an idle node that responds."""
MACHINE_TYPE = {"hardwareProfile", "machineType"}
"""Inputs that only machines have."""


class BootedProject(Project):
    """A copy of the project with a stack of a simulated cloud that boots its machines."""

    def __init__(self, folder: Path, cluster: str) -> None:
        self.cluster, self.name = cluster, f"booted-{cluster}"
        self.provider: str = STACKS[cluster]["platform"]["provider"]
        count = STACKS[cluster]["nodes"]["gpu"]["count"]
        self.head, self.nodes = f"{cluster}-head", [f"{cluster}-gpu-{index}" for index in range(count)]
        self.copy(folder)
        spec = {**STACKS[cluster], "name": cluster}
        self.stack_file.write_text(yaml.safe_dump({"config": {"trainyard:cluster": spec}}))
        self.setup()

    @property
    def home(self) -> Path:
        return self.folder / ".trainyard" / "offline" / "booted"

    def records(self) -> Iterator[Record]:
        """Yield the resources in the simulated cloud."""
        return World(self.name, self.home / "clouds").records()

    def shared(self) -> SharedFiles:
        found = SHARED[self.cluster]
        for record in self.records():
            outputs: Any = record.outputs
            for target in [*(outputs.get("mountTargets") or ()), *(outputs.get("networks") or ())]:
                address = target.get("ipAddress") or target["ipAddresses"][0]
                found = replace(found, source=found.source.replace("ADDRESS", address))
            if record.token.endswith(":StorageAccount"):
                found = replace(found, source=found.source.replace("ACCOUNT", record.id.rpartition("/")[2]))
        return found

    def cloud(self, verb: str, *more: str, check: bool = True) -> str:
        return self.stack(verb, "--offline", "--boot", *more, timeout=1200, check=check).out

    def faults(self, *entries: Mapping[str, Any]) -> None:
        """Set the faults of the simulated cloud."""
        file = World(self.name, self.home / "clouds").folder / FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump([dict(entry) for entry in entries]))

    def yard(self, *arguments: str, timeout: float = 300, check: bool = True) -> Any:
        return self.command("python", "-m", "yard", *arguments, timeout=timeout, check=check)

    def nodes_are(self, state: str) -> bool:
        """Return whether Slurm's short name of each node's state begins with a match of a regular expression."""
        states = self.on(self.head, "sinfo -h -N -o '%N=%t'")
        return all(re.search(rf"{node}={state}", states) for node in self.nodes)

    def command(self, *words: str, timeout: float = 300, check: bool = True) -> Any:
        """Run a command in the environment of the booted stacks."""
        line = f'. {self.home / "environment"} && exec "$@"'
        return self.run("bash", "-c", line, "bash", *words, timeout=timeout, check=check)


@pytest.fixture(
    scope="module",
    params=["small", *(pytest.param(name, marks=pytest.mark.full) for name in STACKS if name != "small")],
)
def booted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedProject]:
    project = BootedProject(tmp_path_factory.mktemp("booted") / "project", request.param)
    try:
        project.cloud("up")
        yield project
    finally:
        project.cloud("destroy")


def test_up_and_refresh_change_nothing(booted: BootedProject) -> None:
    booted.cloud("refresh")
    again = booted.cloud("up")
    assert not re.search(r"\b(created|updated|replaced|deleted)\b", again.partition("Resources:")[2]), again


def test_an_all_reduce_runs_on_both_nodes(booted: BootedProject) -> None:
    require_pair(booted)
    words = ["yard/workloads/allreduce.py", "--nodes", "2", "--gpus-per-node", "0", "--follow"]
    table = booted.yard("submit", *words, "--", "-b", "8", "-e", "4K", "-f", "8", "--iters", "2", timeout=900).out
    assert "# ranks 2, backend gloo" in table
    assert "# Out of bounds values : 0" in table


def test_nodes_received_exactly_the_rendered_files(booted: BootedProject) -> None:
    """Compare every received file with the files that the program renders for the cloud's own machine types.

    Only slurm.conf and gres.conf are rendered for the size of booted machines. The random keys and the address of the
    storage service are those of the stack.
    """
    plan = read_stack(booted.stack_file).plan
    printed = {host.name: booted.as_root(host.name, COLLECT).split()[-1] for host in plan.hosts}
    received = {name: unpack(text) for name, text in printed.items()}
    stack = Stack(
        plan=plan,
        shared=booted.shared(),
        authority=authority_in(received[plan.head.name][USER_DATA].decode()),
        host_keys={name: host_key_in(files) for name, files in received.items()},
    )
    for host in plan.hosts:
        files = received[host.name]
        expected = rendered(stack, host, files)
        assert not (found := differences(expected, files)), f"{host.name}: {explain(found, expected, files)}"
        for path, lines in configured(stack, host).items():
            assert set(lines) <= set(files[path].decode().splitlines()), f"{host.name}: {path}"
        assert files[USER_DATA].decode() == sent(booted, host.name)
        assert booted.on(host.name, f"systemctl is-active {AGENTS[booted.provider]}").split()[-1] == "active"


def machine(booted: BootedProject, name: str) -> Record:
    """Return the simulated cloud's record of a machine."""
    for record in booted.records():
        inputs = record.inputs
        if name in {inputs.get("vmName"), inputs.get("name")} and not inputs.keys().isdisjoint(MACHINE_TYPE):
            return record
    raise AssertionError(f"{name} is not in the simulated cloud")


def sent(booted: BootedProject, name: str) -> str:
    """Return the user-data in the machine's resource."""
    inputs: Any = machine(booted, name).inputs
    if booted.provider == "gcp":
        return str(inputs["metadata"]["user-data"])
    return base64.b64decode(inputs["osProfile"]["customData"]).decode()


def require_pair(booted: BootedProject) -> None:
    if len(booted.nodes) < 2:
        pytest.skip("the stack has one node")


def require_spot(booted: BootedProject) -> None:
    if STACKS[booted.cluster]["nodes"]["gpu"].get("capacity") != SPOT:
        pytest.skip("the slow tests run on the stacks with Spot machines")


def test_gpudirect_is_ready(booted: BootedProject) -> None:
    """The receive daemon is running with NCCL's plugin, and the nodes reach each other in each network of the GPUs."""
    if booted.cluster != "mega":
        pytest.skip("the stack has no GPUDirect")
    first, second = booted.nodes
    assert "receive-datapath-manager" in booted.on(first, "sudo docker ps --format '{{.Names}}'")
    settings = booted.on(first, "cat /etc/nccl.conf; ls -d /dev/aperture_devices/*/resource0")
    assert "NCCL_FASTRAK_CTRL_DEV=enp0s12" in settings
    assert "NCCL_TUNER_CONFIG_PATH=/var/lib/tcpxo/lib64/tuner.textproto" in settings
    assert settings.count("/resource0") == 8
    cards = [
        line.split() for line in booted.on(second, "ip -o -4 addr show | grep ' enp'").splitlines() if "inet" in line
    ]
    assert len(cards) == 9
    for _, card, _, address, *_ in cards:
        assert " 0% packet loss" in booted.on(first, f"sudo ping -c 1 -W 5 -I {card} {address.partition('/')[0]}")


def test_infiniband_is_ready(booted: BootedProject) -> None:
    """All nodes are in one partition, and their ports and their fabric manager pass the health checks."""
    if booted.provider != "azure":
        pytest.skip("the stack has no InfiniBand")
    found = {
        json.loads(booted.on(node, "cat /var/lib/trainyard/status.json").splitlines()[-1])["partition"]
        for node in booted.nodes
    }
    in_one_set = STACKS[booted.cluster]["nodes"]["gpu"]["placement"] == "same_fabric"
    assert (len(found) == 1) is (in_one_set or len(booted.nodes) == 1)
    assert all(partition.startswith("0x8") for partition in found)
    for node in booted.nodes:
        assert not booted.verdicts(node)
        assert "8 RDMA ports are up" in booted.on(node, "sudo cat /var/log/trainyard/35-fabric.log")
        assert "active" in booted.on(node, "systemctl is-active nvidia-fabricmanager")


def test_failing_hardware_drains_its_node(booted: BootedProject) -> None:
    """GPUs and InfiniBand ports fail on both nodes. After a reboot, the fixtures work and the nodes are in service."""
    require_pair(booted)
    if booted.provider != "azure":
        pytest.skip("the stack has no InfiniBand")
    require_spot(booted)
    ports, faults = "/sys/class/infiniband/mlx5_ib{}/ports/1", "/run/offline-gpu-faults.json"
    memory = json.dumps({"5": {"ecc.errors.uncorrected.volatile.total": "2"}})
    broken = {
        f"echo 79 >/sys/module/nvidia/parameters/xid; echo '{memory}' >{faults}": {"gpu-xid", "gpu-memory"},
        f"echo '{{\"3\": null}}' >{faults}; echo '1: DOWN' >{ports.format(2)}/state; "
        f"echo 0x8001 >{ports.format(4)}/pkeys/0": {"nvidia-smi", "rdma-port", "rdma-partition"},
    }
    for node, command in zip(booted.nodes, broken, strict=True):
        booted.as_root(node, command)
    expected = dict(zip(booted.nodes, broken.values(), strict=True))
    wait_until(
        "the verdicts", 240, lambda: all(names <= set(booted.verdicts(node)) for node, names in expected.items())
    )
    assert booted.nodes_are("dr(ain|ng)")
    for node in booted.nodes:
        booted.reboot(node)
    wait_until("the repair", 300, lambda: not any(booted.verdicts(node) for node in booted.nodes))
    wait_until("idle nodes", 120, lambda: booted.nodes_are(IDLE))


def test_nodes_are_not_ready_without_a_firewall_rule(booted: BootedProject) -> None:
    """Delete the rule that permits connections between the nodes. The next `up` creates it again."""
    require_pair(booted)
    net, on_google = f"{booted.cluster}-net", booted.provider == "gcp"
    rule = {"name": f"{net}-inside"} if on_google else {"name": f"{net}-rules", "part": "securityRules/inside"}
    booted.faults({"fault": "deleted", **rule})
    booted.cloud("refresh")
    look = f"timeout 5 bash -c '</dev/tcp/{booted.nodes[0]}/22' && echo reached || echo dropped"
    wait_until("the change", 30, lambda: booted.on(booted.head, look).split()[-1] == "dropped")
    wait_until("the nodes to be lost", 300, lambda: booted.nodes_are(r"(down|drain|drng|.*\*)"))
    booted.cloud("up")
    wait_until("the rule", 30, lambda: booted.on(booted.head, look).split()[-1] == "reached")
    wait_until("the nodes to return", 300, lambda: booted.nodes_are(IDLE))


def test_users_cannot_reach_the_metadata_service(booted: BootedProject) -> None:
    node = booted.nodes[0]
    look = "timeout 5 bash -c '</dev/tcp/169.254.169.254/80' && echo reached || echo refused"
    assert booted.on(node, look).split()[-1] == "refused"
    assert booted.on(node, f"sudo -u {JOB_USER} {look}").split()[-1] == "refused"
    assert booted.on(node, f"sudo {look}").split()[-1] == "reached"


def test_a_job_continues_after_a_preemption(booted: BootedProject, tmp_path: Path) -> None:
    """The cloud announces the eviction of one machine and stops it. The user starts it again as docs/cost.md says."""
    require_spot(booted)
    head, name = booted.head, booted.nodes[1]
    job = booted.submit(job_file(tmp_path, "spot", nodes=2, gpus_per_node=0, run=WARNED))
    log, queue = f"sudo cat {job['run_dir']}/job.log", f"squeue -h -j {job['id']} -o %T"
    wait_until("the job", 180, lambda: "waits for the warning" in booted.on(head, log, check=False))
    booted.faults({"fault": "evicted", "name": name})
    booted.cloud("refresh")
    assert "TY:event: " in booted.on(head, "sinfo -R")
    wait_until("the job to wait", 60, lambda: "PENDING" in booted.on(head, queue))
    if booted.provider == "azure":
        booted.command("az", "vm", "start", "--ids", machine(booted, name).id)
    booted.cloud("up")
    output = finish(booted, job, 600)
    assert "a node leaves, checkpoint written: restarting the job" in output
    assert "continues after the warning" in output


def test_a_deallocated_head_keeps_the_shared_files(booted: BootedProject, tmp_path: Path) -> None:
    """After a start by the user, the nodes use the head again, and `up` changes nothing."""
    if booted.cluster != "azure":
        pytest.skip("only this stack is on Azure and has its shared files on the head")
    head = booted.head
    booted.on(head, "echo kept | sudo tee /shared/kept /home/kept")
    old = booted.boot_id(head)
    booted.faults({"fault": "deallocated", "name": head})
    booted.cloud("refresh")
    booted.faults()
    booted.command("az", "vm", "start", "--ids", machine(booted, head).id)
    wait_until("the head", 300, lambda: booted.boot_id(head) not in {"", old})
    assert booted.on(head, "cat /shared/kept /home/kept").split()[-2:] == ["kept", "kept"]
    booted.cloud("refresh")
    booted.cloud("up", "--expect-no-changes")
    job = booted.submit(job_file(tmp_path, "after", nodes=2, gpus_per_node=0, run="cat /shared/kept"))
    assert "kept" in finish(booted, job, 300)


def test_jobs_wait_for_a_detached_disk(booted: BootedProject, tmp_path: Path) -> None:
    """After `up` has attached the disk again and the head was rebooted, the job continues without an error."""
    if not SHARED[booted.cluster].disk:
        pytest.skip("the shared files are not on the head's data disk")
    head, check = booted.head, "sudo trainyard-health report"
    run = 'file=$CHECKPOINT_DIR/rank-$RANK; echo 1 >$file; sleep 60; echo 2 >>$file && echo "$(wc -l <$file) lines"'
    job = booted.submit(job_file(tmp_path, "waits", nodes=2, gpus_per_node=0, run=run))
    wait_saved(booted, head, job, ranks=2)
    old = booted.boot_id(head)
    booted.faults({"fault": "detached", "name": head})
    booted.cloud("refresh")
    booted.faults()
    assert "the disk /dev/" in booted.on(head, check)
    touch = f"sudo -u {JOB_USER} touch /shared/lost 2>&1 && echo wrote || echo refused"
    assert booted.on(head, touch).split()[-1] == "refused"
    assert "inactive" in booted.on(head, "systemctl is-active nfs-server", check=False)
    booted.cloud("up")
    assert "is not on the disk" in booted.on(head, check)
    booted.on(head, "sudo reboot", check=False)
    wait_until("the head", 300, lambda: booted.boot_id(head) not in {"", old})
    assert finish(booted, job, 400).count("2 lines") == 2
    assert "shared-disk" not in booted.on(head, check)


def test_no_job_starts_after_the_months_limit_is_spent(booted: BootedProject, tmp_path: Path) -> None:
    require_spot(booted)
    if booted.provider == "azure":
        pytest.skip("without a recorded price of its Spot machines, the stack spends a dollar only after an hour")
    head = booted.head
    booted.edit(lambda spec: spec.update(limits={"max_usd_per_month": 1}))
    booted.cloud("up")
    wait_until("the limit", 300, lambda: "down" in booted.on(head, "sinfo -h -o %a"))
    job = booted.submit(job_file(tmp_path, "later", nodes=1, gpus_per_node=0, run="echo ran"))
    out = booted.yard("ps").out
    assert "of the $1 of limits.max_usd_per_month are spent" in out
    assert booted.on(head, f"squeue -h -j {job['id']} -o %T").strip() == "PENDING"
    # slurmctld forgets the state of partitions when it is restarted.
    booted.on(head, "sudo systemctl restart slurmctld")
    wait_until("the limit again", 60, lambda: "down" in booted.on(head, "sinfo -h -o %a", check=False))
    booted.edit(lambda spec: spec.update(limits={"max_usd_per_month": 1000}))
    booted.cloud("up")
    assert "ran" in booted.yard("logs", str(job["id"]), "-f").out
