"""Plans with existing hosts, and the resources that HostsPlatform declares."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime import rpc

from components.node.handover import hostfile
from components.node.slurm import render_gres_conf, render_slurm_conf
from components.plan.plan import ClusterPlan, Role
from components.platforms.hosts import scripts
from components.stackfile.read import parse_stack, read_stack
from tests.components.platforms.recording import KEYS, ROOT, Build, Built, stack_text
from trainyard.errors import StackFileError

# Importing the SDK causes a warning about one of the SDK's resources.
pytestmark = pytest.mark.filterwarnings("ignore:This resource is deprecated:DeprecationWarning")

COMMAND = "remote:Command"
SHARED = scripts.SharedFolder(path="/raid/trainyard", gib=1200)


def command(built: Built, host: str, what: str) -> dict[str, Any]:
    return built.one(COMMAND, f"c-{host}-{what}")


def connection(built: Built, host: str, what: str = "lease") -> dict[str, Any]:
    """Return the connection of a command. The connection is a Pulumi secret, because it can contain a key."""
    secret = command(built, host, what)["connection"]
    assert secret[rpc._special_sig_key] == rpc._special_secret_sig
    found: dict[str, Any] = secret["value"]
    return found


COMMANDS = ("survey", "reach", "lease", "files")


def test_each_host_has_four_commands(build: Build) -> None:
    built = build("lambda-a6000")
    names = {f"c-{host}-{what}" for host in ("lambda-1", "lambda-2") for what in COMMANDS}
    assert set(built.all(COMMAND)) == names
    assert {typ for typ, _, _ in built.resources} == {"trainyard:index:HostsPlatform", "command:remote:Command"}


def test_only_the_lease_has_a_delete_command(build: Build) -> None:
    built = build("lambda-a6000")
    assert "give-back" in command(built, "lambda-2", "lease")["delete"]
    assert "triggers" not in command(built, "lambda-2", "lease")
    for what in ("survey", "reach", "files"):
        assert "delete" not in command(built, "lambda-2", what)
    lease, identity = command(built, "lambda-2", "files")["triggers"]
    assert lease == "output of c-lambda-2-lease\n"
    assert "TRAINYARD_NODE=lambda-2\n" in identity


def test_every_connection_has_a_host_key_and_a_short_timeout(build: Build) -> None:
    built = build("baremetal-h100")
    for made in (connection(built, host, what) for host in ("login", "h100-1") for what in COMMANDS):
        assert made["hostKey"].startswith("ssh-ed25519 ")
        assert made["dialErrorLimit"] * made["perDialTimeout"] <= 60
    inside, login = connection(built, "h100-1"), connection(built, "login")
    assert inside["host"] == "10.40.0.11"
    assert (inside["proxy"]["host"], inside["proxy"]["hostKey"]) == (login["host"], login["hostKey"])


def test_workers_behind_a_jump_host_use_the_head(build: Build) -> None:
    hosts = {host["name"]: host for host in build("baremetal-h100").hosts}
    assert {name: host["through_head"] for name, host in hosts.items()} == {
        "login": False,
        "h100-1": True,
        "h100-2": True,
    }
    assert hosts["h100-1"]["machine_id"] == "output of c-h100-1-files\n"


def test_the_key_file_is_read_and_optional(build: Build, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("the private key\n")
    key.chmod(0o600)
    assert connection(build("lambda-a6000", platform__key=str(key)), "lambda-1")["privateKey"] == "the private key\n"
    assert "privateKey" not in connection(build("lambda-a6000"), "lambda-1")


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    plan = read_stack(ROOT / "stacks" / "Pulumi.baremetal-h100.yaml").plan
    return {
        f"{what} of {host.name}": script
        for host in plan.hosts[:2]
        for what, script in (
            ("survey", scripts.survey_script(plan, host, "eth0", SHARED)),
            ("reach", scripts.reach_script(plan, host)),
            ("lease", scripts.lease_script(plan, host, KEYS, keep_files=True, shared=SHARED)),
            ("files", scripts.bring_up_script(plan, host)),
        )
    }


def test_all_scripts_have_valid_syntax(rendered: dict[str, str]) -> None:
    for name, script in rendered.items():
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr}"


def test_an_incomplete_script_runs_no_command(rendered: dict[str, str], tmp_path: Path) -> None:
    for name, script in rendered.items():
        half = script[: len(script) // 2].replace("{\n", f"{{\ntouch {tmp_path}/ran\n", 1)
        assert subprocess.run(["bash", "-s"], input=half, capture_output=True, text=True, check=False).returncode, name
    assert list(tmp_path.iterdir()) == []


def test_the_lease_permits_only_the_provisioner_and_the_head(rendered: dict[str, str]) -> None:
    for host in ("login", "h100-1"):
        lease = rendered[f"lease of {host}"]
        # sshd reads these lines also after a rotation, so they permit no certificate of the admin.
        [keys] = re.findall(r"PLAN_ADMIN_KEYS='(.*?)'", lease, re.S)
        assert keys.splitlines() == [
            f"restrict {KEYS.authority}",
            f'restrict,from="10.40.0.4",cert-authority,principals="head" {KEYS.authority}',
        ]


def test_peers_are_the_head_and_the_next_four_hosts() -> None:
    plan = read_stack(ROOT / "stacks" / "Pulumi.baremetal-h100.yaml").plan
    head, *_ = plan.hosts
    workers = tuple(replace(plan.workers[0], name=f"n{index}") for index in range(1, 9))
    made = replace(plan, head=replace(head, name="n0"), workers=workers)
    tested = {host.name: [peer.name for peer in scripts.peers(made, host)] for host in made.hosts}
    assert tested["n0"] == ["n1", "n2", "n3", "n4"]
    assert tested["n3"] == ["n0", "n4", "n5", "n6", "n7"]
    assert tested["n7"] == ["n8", "n0", "n1", "n2"]


def test_only_the_head_has_the_shared_folder(build: Build) -> None:
    built = build("lambda-a6000", storage__shared={"kind": "head_nfs", "path": "/raid/t", "size_gib": 1200})
    assert "TRAINYARD_SHARED_FOLDER=/raid/t\n" in built.storage("lambda-1")
    assert "TRAINYARD_SHARED_FOLDER=\n" in built.storage("lambda-2")
    survey = str(command(built, "lambda-1", "survey")["stdin"])
    assert "PLAN_SHARED_FOLDER=/raid/t\nPLAN_SHARED_GIB=1200\n" in survey
    # Free space is required only if size_gib is set.
    survey = str(command(build("lambda-a6000"), "lambda-1", "survey")["stdin"])
    assert "PLAN_SHARED_FOLDER=''\nPLAN_SHARED_GIB=0\n" in survey


def test_rdma_devices_are_in_the_survey_and_on_the_node(build: Build) -> None:
    devices = [f"mlx5_{index}" for index in (0, 3, 4, 5, 6, 9, 10, 11)]
    built = build("baremetal-h100", platform__rdma_devices=devices)
    assert f"PLAN_RDMA_DEVICES={','.join(devices)}\n" in str(command(built, "h100-1", "survey")["stdin"])
    assert f"TRAINYARD_RDMA_DEVICES={','.join(devices)}\n" in str(command(built, "h100-1", "files")["stdin"])
    assert "PLAN_RDMA_DEVICES=''\n" in str(command(built, "login", "survey")["stdin"])


KEY = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5{'A' * 48}"


def listed(*ips: str) -> list[dict[str, Any]]:
    """Return hosts a, b, c... with the given private addresses."""
    return [
        {"name": chr(ord("a") + index), "address": f"203.0.113.{index}", "private_ip": ip, "host_key": KEY}
        for index, ip in enumerate(ips)
    ]


def plan(hosts: list[dict[str, Any]], group: list[str], head: str | None = None) -> ClusterPlan:
    text = stack_text(
        "baremetal-h100",
        platform__hosts=hosts,
        platform__image="debian-13",
        silence=[],
        head={"machine": "small-server", "host": head},
        nodes={"gpu": {"machine": "dgx-h100", "hosts": group}},
    )
    return parse_stack(text, "test").plan


def test_hosts_keep_their_names_and_addresses() -> None:
    hosts = listed("10.40.0.4", "10.40.0.7", "10.40.0.9")
    before, after = plan(hosts, ["b", "c"]), plan([hosts[0], hosts[2]], ["c"])
    assert before.head.name == "a"
    kept, same = before.workers[1], after.workers[0]
    assert (kept.name, kept.private_ip) == (same.name, same.private_ip)
    named = plan(hosts, ["a", "c"], head="b")
    assert (named.head.name, named.head.role, named.head.runs_jobs) == ("b", Role.HEAD, False)
    assert [host.name for host in named.workers] == ["a", "c"]
    del hosts[1]["name"]
    assert plan(hosts, ["host-203-0-113-1", "c"]).workers[0].name == "host-203-0-113-1"


def test_two_hosts_with_the_same_name_are_refused() -> None:
    hosts = listed("10.40.0.4", "10.40.0.7")
    hosts[1]["name"] = "a"
    with pytest.raises(StackFileError, match=r"platform\.hosts: a is the name of two hosts"):
        plan(hosts, ["a"])


def test_slurm_has_explicit_names_and_addresses() -> None:
    made = plan(listed("10.40.0.4", "10.40.0.7", "10.40.0.9", "10.40.0.10"), ["b", "c", "d"])
    nodes = [line for line in render_slurm_conf(made).splitlines() if line.startswith("NodeName")]
    assert [line.split()[:2] for line in nodes] == [
        ["NodeName=b", "NodeAddr=10.40.0.7"],
        ["NodeName=c,d", "NodeAddr=10.40.0.[9-10]"],
    ]
    assert "Nodes=b,c,d " in render_slurm_conf(made)
    assert "NodeName=b,c,d Name=gpu Type=h100" in render_gres_conf(made)


def test_a_head_that_runs_jobs_is_a_node_of_the_outputs() -> None:
    made = parse_stack(stack_text("lambda-a6000"), "test").plan
    assert hostfile(made) == "lambda-1 slots=4\nlambda-2 slots=4\n"
    assert [host.name for host in made.nodes] == ["lambda-1", "lambda-2"]
    assert [host.name for host in made.workers] == ["lambda-2"]
