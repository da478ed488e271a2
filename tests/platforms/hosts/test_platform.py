"""What HostsPlatform asks for, seen by a recorder in the engine's place."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime import rpc

from components.cloud_init import AccessKeys
from components.platforms.hosts.scripts import (
    SharedFolder,
    bring_up_script,
    lease_script,
    peers,
    reach_script,
    survey_script,
)
from components.stackfile import read_stack
from tests.platforms.recording import ROOT, Build, Built

# The SDK warns of a resource of its own as soon as it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:This resource is deprecated:DeprecationWarning")

COMMAND = "remote:Command"
SHARED = SharedFolder(path="/raid/trainyard", gib=1200)
KEYS = AccessKeys("ssh-ed25519 AAAAadmin admin@cluster", "ssh-ed25519 AAAAcluster cluster@cluster")


def command(built: Built, host: str, what: str) -> dict[str, Any]:
    return built.one(COMMAND, f"c-{host}-{what}")


def way(built: Built, host: str, what: str = "lease") -> dict[str, Any]:
    """How a command reaches its host; a secret of the stack, since it may hold a key."""
    connection = command(built, host, what)["connection"]
    assert connection[rpc._special_sig_key] == rpc._special_secret_sig
    found: dict[str, Any] = connection["value"]
    return found


COMMANDS = ("survey", "reach", "lease", "files")


def test_four_commands_for_each_host_and_nothing_else(build: Build) -> None:
    built = build("lambda-a6000")
    names = {f"c-{host}-{what}" for host in ("lambda-1", "lambda-2") for what in COMMANDS}
    assert set(built.all(COMMAND)) == names
    assert {typ for typ, _, _ in built.resources} == {"trainyard:index:HostsPlatform", "command:remote:Command"}


def test_only_the_lease_undoes_anything_and_nothing_replaces_it(build: Build) -> None:
    built = build("lambda-a6000")
    assert "give-back" in command(built, "lambda-2", "lease")["delete"]
    assert "triggers" not in command(built, "lambda-2", "lease")
    for what in ("survey", "reach", "files"):
        assert "delete" not in command(built, "lambda-2", what)
    assert command(built, "lambda-2", "files")["triggers"] == ["said by c-lambda-2-lease\n"]


def test_every_way_is_known_by_its_host_key_and_ends_soon_when_nobody_answers(build: Build) -> None:
    built = build("baremetal-h100")
    for connection in (way(built, host, what) for host in ("login", "h100-1") for what in COMMANDS):
        assert connection["hostKey"].startswith("ssh-ed25519 ")
        assert connection["dialErrorLimit"] * connection["perDialTimeout"] <= 60
    inside, login = way(built, "h100-1"), way(built, "login")
    assert inside["host"] == "10.40.0.11"
    assert (inside["proxy"]["host"], inside["proxy"]["hostKey"]) == (login["host"], login["hostKey"])


def test_what_stands_behind_a_proxy_is_reached_through_the_head(build: Build) -> None:
    told = {host["name"]: host for host in build("baremetal-h100").hosts}
    assert {name: host["through_head"] for name, host in told.items()} == {
        "login": False,
        "h100-1": True,
        "h100-2": True,
    }
    assert told["h100-1"]["machine_id"] == "said by c-h100-1-files\n"


def test_a_key_is_read_and_none_is_asked_for_where_the_agent_logs_in(build: Build, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("the private key\n")
    key.chmod(0o600)
    assert way(build("lambda-a6000", platform__key=str(key)), "lambda-1")["privateKey"] == "the private key\n"
    assert "privateKey" not in way(build("lambda-a6000"), "lambda-1")


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    """Every script of a head and of a worker."""
    plan = read_stack(ROOT / "stacks" / "Pulumi.baremetal-h100.yaml").plan
    return {
        f"{what} of {host.name}": script
        for host in plan.hosts[:2]
        for what, script in (
            ("survey", survey_script(plan, host, "eth0", SHARED)),
            ("reach", reach_script(plan, host)),
            ("lease", lease_script(plan, host, KEYS, keep_files=True, shared=SHARED)),
            ("files", bring_up_script(plan, host, SHARED)),
        )
    }


def test_a_shell_understands_every_script(scripts: dict[str, str]) -> None:
    for name, script in scripts.items():
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr}"


def test_a_script_that_comes_in_half_runs_nothing(scripts: dict[str, str], tmp_path: Path) -> None:
    for name, script in scripts.items():
        half = script[: len(script) // 2].replace("{\n", f"{{\ntouch {tmp_path}/ran\n", 1)
        assert subprocess.run(["bash", "-s"], input=half, capture_output=True, text=True, check=False).returncode, name
    assert list(tmp_path.iterdir()) == []


def test_only_the_head_may_command_a_worker_and_only_the_stack_the_head(scripts: dict[str, str]) -> None:
    assert 'restrict,from="10.40.0.4" ssh-ed25519 AAAAcluster' in scripts["lease of h100-1"]
    assert "AAAAcluster" not in scripts["lease of login"]
    assert "BORROW_JOB_KEYS=''" in scripts["lease of h100-1"]


def test_a_host_is_tried_with_the_head_and_its_neighbours() -> None:
    plan = read_stack(ROOT / "stacks" / "Pulumi.baremetal-h100.yaml").plan
    head, *_ = plan.hosts
    workers = tuple(replace(plan.workers[0], name=f"n{index}") for index in range(1, 9))
    made = replace(plan, head=replace(head, name="n0"), workers=workers)
    tried = {host.name: [peer.name for peer in peers(made, host)] for host in made.hosts}
    assert tried["n0"] == ["n1", "n2", "n3", "n4"]
    assert tried["n3"] == ["n0", "n4", "n5", "n6", "n7"]
    assert tried["n7"] == ["n8", "n0", "n1", "n2"]


def test_a_folder_of_the_head_is_named_to_the_head_alone(scripts: dict[str, str], build: Build) -> None:
    assert "TRAINYARD_SHARED_FOLDER=/raid/trainyard\n" in scripts["files of login"]
    assert "TRAINYARD_SHARED_FOLDER=\n" in scripts["files of h100-1"]
    built = build("lambda-a6000", storage__shared={"kind": "head_nfs", "path": "/raid/t", "size_gib": 1200})
    asked = str(command(built, "lambda-1", "survey")["stdin"])
    assert "BORROW_SHARED_FOLDER=/raid/t\nBORROW_SHARED_GIB=1200\n" in asked


def test_space_is_asked_for_only_where_the_stack_file_does(build: Build) -> None:
    asked = str(command(build("lambda-a6000"), "lambda-1", "survey")["stdin"])
    assert "BORROW_SHARED_FOLDER=''\nBORROW_SHARED_GIB=0\n" in asked


def test_devices_for_collectives_reach_the_survey_and_the_node(build: Build) -> None:
    devices = [f"mlx5_{index}" for index in (0, 3, 4, 5, 6, 9, 10, 11)]
    built = build("baremetal-h100", platform__rdma_devices=devices)
    assert f"BORROW_RDMA_DEVICES={','.join(devices)}\n" in str(command(built, "h100-1", "survey")["stdin"])
    assert f"TRAINYARD_RDMA_DEVICES={','.join(devices)}\n" in str(command(built, "h100-1", "files")["stdin"])
    assert "BORROW_RDMA_DEVICES=''\n" in str(command(built, "login", "survey")["stdin"])
