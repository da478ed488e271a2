"""The nftables rules from the stage 62-ports, applied in network namespaces created by the test."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_init.stage_sandbox import STAGES, Sandbox
from tests.cloud_init.test_stage_metadata import namespaces
from trainyard.checkout import ROOT

_NETWORK = """
set -e
mount -t tmpfs none /run
mkdir /run/netns
ip link set lo up
for bridge in private extra; do
  ip link add $bridge type bridge
  ip link set $bridge up
done
ip addr add 10.1.1.1/24 dev private
ip addr add fd00::1/64 dev private nodad
ip addr add 10.1.2.1/24 dev extra
# join NAMESPACE BRIDGE ADDRESS...
join() {
  local name=$1 bridge=$2 address
  shift 2
  ip link add ${name:0:5}-$bridge type veth peer name $bridge netns $name
  ip link set ${name:0:5}-$bridge master $bridge up
  ip -n $name link set $bridge up
  ip -n $name link set lo up
  for address; do ip -n $name addr add $address dev $bridge; done
}
ip netns add other
ip netns add neighbour
join other private 10.1.1.2/24
join neighbour private 10.1.1.3/24
join neighbour extra 10.1.2.3/24
ip -n neighbour addr add fd00::3/64 dev private nodad
"""
"""A node, a second node (other), and a machine in the same network that is not in the cluster (neighbour)."""
CALLERS = ("root", "job", "slurm", "daemon", "person", "nobody")
OPEN = dict.fromkeys(CALLERS, "open")


def only(*callers: str, others: str) -> dict[str, str]:
    """Return the expected results if only these callers can connect."""
    return {caller: "open" if caller in callers else others for caller in CALLERS}


def run_stage(root: Path, ledger: str = "", **answers: str) -> tuple[Path, Any]:
    """Run the stage. Return the path of the rules and the result."""
    (root / "etc/trainyard").mkdir(parents=True, exist_ok=True)
    (root / "etc/trainyard/fabric.env").write_text("GLOO_SOCKET_IFNAME=private\nNCCL_SOCKET_IFNAME==private\n")
    (root / "handover").mkdir(exist_ok=True)
    (root / "handover/hosts").write_text("10.1.1.1 yard-head\n10.1.1.2 yard-gpu-0\n")
    given = {"dpkg-query": "0 installed", "id -u slurm": "0 64030"} | answers
    node = Sandbox(root, ("dpkg-query", "apt-get", "systemctl", "id", "nft"), given)
    ran = node.run("62-ports", TEST_LEDGER=ledger, TEST_HANDOVER=str(root / "handover"))
    return root / "etc/trainyard/ports.nft", ran


def answers(file: Path | str) -> dict[str, Any]:
    """Apply the rules on both nodes twice, and connect to a job and to other programs."""
    done = subprocess.run(
        ["unshare", "--net", "--mount", "bash", "-c", f'{_NETWORK}\nexec "$@"', "-",
         sys.executable, "-m", "tests.cloud_init.ports_probe", str(file)],
        capture_output=True, text=True, check=False, timeout=120, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@dataclass(frozen=True)
class Found:
    """The kind of a node, and the answers with its rules."""

    is_existing_host: bool
    answers: dict[str, Any]


@pytest.fixture(scope="module", params=["created", "existing"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    existing = request.param == "existing"
    file, _ = run_stage(tmp_path_factory.mktemp("node"), "yes" if existing else "")
    return Found(existing, answers(file))


@namespaces
def test_everybody_reaches_a_job_without_the_rules() -> None:
    found = answers("-")
    for place in ("loopback", "loopback6", "own address", "other node"):
        assert found[place]["job"] == found[place]["rank"] == OPEN
    assert found["neighbour"]["job"] == found["neighbour6"]["job"] == {"root": "open"}


@namespaces
def test_only_the_cluster_reaches_a_job(found: Found) -> None:
    trusted = ("root", "job", "slurm", *(["daemon"] if found.is_existing_host else []))
    got = found.answers
    for name in ("job", "rank"):
        for place in ("loopback", "loopback6", "own address"):
            assert got[place][name] == only(*trusted, others="silent"), place
        assert got["other node"][name] == only(*trusted, others="refused")
        assert got["neighbour"][name] == got["neighbour6"][name] == {"root": "silent"}
    assert got["mptcp"] == got["mptcp server"] == "silent"
    assert got["mptcp other"] == "refused"
    assert got["resvport"] == "open"


@namespaces
def test_other_programs_keep_their_connections(found: Found) -> None:
    got = found.answers
    for place in ("loopback", "loopback6", "own address"):
        assert got[place]["person"] == got[place]["low"] == OPEN, place
    assert got["other node"]["low"] == OPEN
    for place in ("neighbour", "neighbour6"):
        assert got[place]["person"] == got[place]["low"] == {"root": "open"}, place
    assert "table inet owner" in got["tables"]


@namespaces
def test_a_port_of_another_account_can_be_used_again(found: Found) -> None:
    got = found.answers
    assert (got["stranger's port"], got["its next user"]) == ("silent", "open")


@namespaces
def test_only_created_machines_trust_their_other_networks(found: Found) -> None:
    assert found.answers["extra network"]["job"] == {"root": "silent" if found.is_existing_host else "open"}


@namespaces
def test_accounts_are_refused_while_the_record_is_full(tmp_path: Path) -> None:
    file, _ = run_stage(tmp_path)
    file.write_text(file.read_text().replace("size 65536", "size 4"))
    found = answers(file)["own address"]
    assert found["job"]["nobody"] in {"silent", "refused"}
    assert found["job"]["job"] == "open"


def test_new_nodes_are_admitted(tmp_path: Path) -> None:
    file, ran = run_stage(tmp_path)
    assert ran.code == 0, ran.errors
    assert "elements = { 10.1.1.1, 10.1.1.2 }" in file.read_text()
    assert ran.commands[-1] == "systemctl reload-or-restart trainyard-ports.service"
    assert "$handover/" in (STAGES / "62-ports").read_text(), "passes.sh runs the stage again for a new hand-over"


def test_the_rules_are_applied_at_boot(tmp_path: Path) -> None:
    run_stage(tmp_path)
    link = tmp_path / "etc/systemd/system/sysinit.target.wants/trainyard-ports.service"
    assert link.is_symlink()
    assert link.readlink().name == link.name


def test_a_kernel_without_nftables_fails_the_stage(tmp_path: Path) -> None:
    _, ran = run_stage(tmp_path, **{"nft --check": "1 "})
    assert ran.code == 1
    assert ran.output[-1].startswith("fail nft rejects ")
    assert not any(command.startswith("systemctl") for command in ran.commands)
