"""The nftables rules from the stages 12-metadata and 62-ports, applied in network namespaces created by the tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_init.firewall_probe import ANN, BOB, CALLERS, DAEMONS, DATAGRAMS
from tests.cloud_init.stage_sandbox import STAGES, Sandbox
from trainyard.project import ROOT

pytestmark = pytest.mark.engine

OPEN = dict.fromkeys(CALLERS, "open")
ON_HEAD = {"ROLE": "head", "SHARED_SOURCE": "", "SHARED_NFS": "4.2"}
SERVICES_OPEN = dict.fromkeys(("metadata", "wire", "metadata6", "elsewhere", "dns", "udp"), "open")
SERVICES_REFUSED = SERVICES_OPEN | dict.fromkeys(("metadata", "wire", "metadata6"), "refused")


def can_filter() -> bool:
    """Return whether these tests may create network namespaces and load rules in them."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("nft", "ip", "unshare"))):
        return False
    rule = "table inet t { chain c { type filter hook output priority 0; meta skuid 0 reject; }; }"
    probed = subprocess.run(["unshare", "--net", "nft", rule], capture_output=True, check=False)
    return probed.returncode == 0


namespaces = pytest.mark.skipif(not can_filter(), reason="needs root and nft")


def answers(kind: str, rules: Path | str) -> dict[str, Any]:
    """Apply the rules on each node twice, and connect to the services from several users and machines."""
    network = Path(__file__).with_name("cloud_network.sh" if kind == "metadata" else "cluster_network.sh")
    probe = (sys.executable, "-m", "tests.cloud_init.firewall_probe", kind, str(rules))
    command = ["unshare", "--net", "--mount", "bash", "-c", 'source "$0"; exec "$@"', str(network), *probe]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def node(root: Path, answers: dict[str, str] | None = None) -> Sandbox:
    usual = {"dpkg-query": "0 installed", "id -u slurm": "0 64030"}
    made = Sandbox(root, ("dpkg-query", "apt-get", "systemctl", "id", "nft"), usual | (answers or {}))
    fabric = "GLOO_SOCKET_IFNAME=private\nNCCL_SOCKET_IFNAME==private\n"
    made.write({"etc/trainyard/fabric.env": fabric, "handover/hosts": "10.1.1.1 yard-head\n10.1.1.2 yard-gpu-0\n"})
    made.write({"handover/people": ""})
    return made


def rules(root: Path, kind: str, existing: str = "", people: str = "", **env: str) -> Path:
    """Run a stage. Return the path of its rules."""
    stage, made = {"metadata": "12-metadata", "ports": "62-ports"}[kind], node(root)
    made.write({"handover/people": people})
    env = {**ON_HEAD, "TEST_LEDGER": existing, "TEST_HANDOVER": str(root / "handover"), **env}
    ran = made.run(stage, **env).passed()
    assert ran.commands[-1] == f"systemctl reload-or-restart trainyard-{kind}.service"
    return root / f"etc/trainyard/{kind}.nft"


@pytest.mark.parametrize("kind", ["metadata", "ports"])
def test_the_rules_are_applied_before_the_network_at_boot(tmp_path: Path, kind: str) -> None:
    rules(tmp_path, kind)
    link = tmp_path / f"etc/systemd/system/sysinit.target.wants/trainyard-{kind}.service"
    assert link.is_symlink()
    assert link.readlink().name == link.name


@namespaces
def test_every_user_reaches_the_services_without_rules() -> None:
    assert answers("metadata", "-")["job"] == SERVICES_OPEN


@namespaces
@pytest.mark.parametrize("existing", ["", "yes"])
def test_on_existing_hosts_only_the_job_user_is_refused(tmp_path: Path, existing: str) -> None:
    found = answers("metadata", rules(tmp_path, "metadata", existing))
    assert found["root"] == SERVICES_OPEN
    assert found["job"] == found["mptcp"] == SERVICES_REFUSED
    assert found["other"] == found["container"] == (SERVICES_OPEN if existing else SERVICES_REFUSED)
    assert "table inet owner" in found["tables"]


def test_nftables_is_installed_where_it_is_missing(tmp_path: Path) -> None:
    ran = node(tmp_path, {"dpkg-query": "1 "}).run("12-metadata").passed()
    assert "apt-get -q -y --no-install-recommends install nftables" in ran.commands


def only(*callers: str, others: str) -> dict[str, str]:
    """Return the expected results if only these callers can connect."""
    return {caller: "open" if caller in callers else others for caller in CALLERS}


_METRICS = """
import os, socket, sys, threading
def answer(listener, caller):
    os.seteuid(listener)
    server = socket.create_server(("127.0.0.1", 19100))
    os.seteuid(0)
    os.seteuid(caller)
    client = socket.socket()
    client.settimeout(2)
    try:
        client.connect(("127.0.0.1", 19100))
        return "open"
    except ConnectionRefusedError:
        return "refused"
    except TimeoutError:
        return "silent"
    finally:
        os.seteuid(0)
        client.close()
        server.close()
print(*(answer(*map(int, pair.split(":"))) for pair in sys.argv[1:]))
"""
"""Prints whether a caller reaches a program on the exporter's port. The arguments are LISTENER:CALLER (uids)."""


@namespaces
@pytest.mark.parametrize("existing", ["", "yes"])
def test_users_neither_reach_nor_replace_an_exporter(tmp_path: Path, existing: str) -> None:
    (tmp_path / "etc/trainyard").mkdir(parents=True)
    (tmp_path / "etc/trainyard/monitoring.env").write_text("node_port=19100\nprometheus_port=19090\n")
    file = rules(tmp_path, "ports", existing, people="user ann 10001 user -\n")
    script = f'ip link set lo up; nft -f {file}; exec {sys.executable} -c "$0" "$@"'
    # The last uid in a group is a subordinate uid of ann.
    callers = ("104:2000", "104:10001", "104:165537")
    listeners = ("2000:0", "10001:0", "165537:0")
    pairs = ("0:0", "104:0", "104:104", "104:1500", *callers, *listeners)
    command = ["unshare", "--net", "bash", "-euc", script, _METRICS, *pairs]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    expected = ["open"] * 4 + ["refused"] * 3 + ["silent"] * 3
    assert (done.stderr, done.stdout.split()) == ("", expected)
    text = file.read_text()
    assert ("tcp dport { 19100,19090 } reject with tcp reset" in text) is bool(existing)


@dataclass(frozen=True)
class Found:
    """The kind of a node, and the answers with its rules."""

    is_existing_host: bool
    answers: dict[str, Any]


@pytest.fixture(scope="module", params=["created", "existing"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Found:
    existing = request.param == "existing"
    file = rules(tmp_path_factory.mktemp("node"), "ports", "yes" if existing else "")
    return Found(existing, answers("ports", file))


@namespaces
def test_everybody_reaches_a_job_without_the_rules() -> None:
    found = answers("ports", "-")
    for place in ("loopback", "loopback6", "own address", "other node"):
        assert found[place]["job"] == found[place]["rank"] == OPEN
    assert found["neighbour"]["job"] == found["neighbour6"]["job"] == {"root": "open"}
    assert min(found["flooded"]) > 0


@namespaces
def test_a_full_queue_of_requests_admits_nobody(found: Found) -> None:
    assert found.answers["flooded"] == [0, 0]


@namespaces
def test_only_the_cluster_reaches_a_job(found: Found) -> None:
    trusted = ("root", "job", "slurm", *(["daemon"] if found.is_existing_host else []))
    got = found.answers
    for name in ("job", "rank"):
        for place in ("loopback", "loopback6", "own address"):
            assert got[place][name] == only(*trusted, others="silent"), place
        assert got["other node"][name] == only(*trusted, others="refused")
        outside = {"root": "silent" if found.is_existing_host else "refused"}
        assert got["neighbour"][name] == got["neighbour6"][name] == outside
    assert got["mptcp"] == got["mptcp server"] == "silent"
    assert got["mptcp other"] == "refused"
    assert got["resvport"] == "open"


@namespaces
def test_other_programs_keep_their_connections(found: Found) -> None:
    got = found.answers
    for place in ("loopback", "loopback6", "own address"):
        assert got[place]["person"] == got[place]["low"] == OPEN, place
    assert got["other node"]["low"] == OPEN
    outside = {"root": "open" if found.is_existing_host else "refused"}
    for place in ("neighbour", "neighbour6"):
        assert got[place]["person"] == got[place]["low"] == outside, place
    assert "table inet owner" in got["tables"]


@namespaces
def test_a_port_of_another_account_can_be_used_again(found: Found) -> None:
    got = found.answers
    assert (got["stranger's port"], got["its next user"]) == ("silent", "open")


PEOPLE = f"group vision 50001\nuser ann {ANN} user vision\nuser bob {BOB} admin -\n"


@namespaces
def test_people_reach_only_their_own_jobs(tmp_path: Path) -> None:
    got = answers("people", rules(tmp_path, "ports", people=PEOPLE))
    everybody = (*CALLERS, "ann", "bob")

    def only(*callers: str, refused: tuple[str, ...] = ()) -> dict[str, str]:
        others = {caller: "refused" if caller in refused else "silent" for caller in everybody}
        return others | dict.fromkeys(callers, "open")

    strangers = ("daemon", "person", "nobody")
    for place in ("loopback", "loopback6", "own address", "other node"):
        refused = strangers if place == "other node" else ()
        if place == "loopback6":
            assert got[place]["ann"] == only("root", "slurm", refused=("ann", "bob", "job"))
            continue
        for name, owner in (("job", "job"), ("rank", "job"), ("ann", "ann")):
            assert got[place][name] == only("root", "slurm", owner, refused=refused), (place, name)
        assert got[place]["ann's low port"] == only("root", "slurm", "ann"), place
        assert got[place]["low"] == dict.fromkeys(everybody, "open"), place
    assert (got["neighbour"]["job"], got["extra network"]["job"]) == ({"root": "refused"}, {"root": "silent"})
    assert got["extra network6"]["job"] == {"root": "refused"}
    assert (got["flooded"], got["flooded by root"]) == ([0, 0], True)
    assert got["same port"] == ["silent", "silent", "open", "open"]


@namespaces
def test_only_created_machines_trust_their_other_networks(found: Found) -> None:
    expected = {"root": "silent" if found.is_existing_host else "open"}
    assert found.answers["extra network"]["job"] == found.answers["extra network6"]["job"] == expected


@namespaces
def test_accounts_are_refused_while_the_record_is_full(tmp_path: Path) -> None:
    file = rules(tmp_path, "ports")
    file.write_text(file.read_text().replace("size 65536", "size 4"))
    found = answers("ports", file)["own address"]
    assert found["job"]["nobody"] in {"silent", "refused"}
    assert found["job"]["job"] == "open"


@namespaces
def test_a_full_record_closes_only_ports_of_people(tmp_path: Path) -> None:
    file = rules(tmp_path, "ports", people=PEOPLE)
    file.write_text(file.read_text().replace("size 65536", "size 4"))
    found = answers("people", file)
    for place in ("loopback", "own address", "other node"):
        assert set(found[place]["low"].values()) == {"open"}, place
        assert found[place]["ann"]["bob"] == found[place]["rank"]["ann"] == "silent", place


DAEMONS_OPEN = dict.fromkeys((*DAEMONS, *(f"{name}/udp" for name in DATAGRAMS), "dhcp from elsewhere"), "open")
FROM_OUTSIDE = {name: "silent" if "/udp" in name else "refused" for name in DAEMONS_OPEN} | {
    **dict.fromkeys(("ssh", "dhcp/udp", "dhcp6/udp"), "open"),
    "dhcp from elsewhere": "silent",
}


@namespaces
@pytest.mark.parametrize("people", ["", PEOPLE])
def test_other_machines_reach_only_ssh(tmp_path: Path, people: str) -> None:
    assert answers("daemons", "-")["neighbour"] == DAEMONS_OPEN
    got = answers("daemons", rules(tmp_path, "ports", people=people))
    for place in ("loopback", "own address", "other node"):
        assert got[place] == DAEMONS_OPEN, place
    assert got["neighbour"] == got["neighbour6"] == FROM_OUTSIDE


@namespaces
@pytest.mark.parametrize("existing", ["", "yes"])
def test_a_node_reaches_other_machines(tmp_path: Path, existing: str) -> None:
    got = answers("daemons", rules(tmp_path, "ports", existing))
    names = ("outwards", "outwards6", "resolver", "resolver6", "ping")
    assert [got[name] for name in names] == ["open"] * 5
    assert got["answer from elsewhere"] == ("open" if existing else "silent")


@namespaces
@pytest.mark.parametrize(
    ("env", "closed"),
    [
        ({}, {"nfs", "slurmctld", "slurmd"}),
        ({"ROLE": "worker"}, {"slurmctld", "slurmd"}),
        ({"SHARED_SOURCE": "10.0.0.9:/x"}, {"slurmctld", "slurmd"}),
        ({"SCHEDULER": "none"}, {"nfs"}),
        ({"SCHEDULER": "none", "ROLE": "worker"}, set()),
    ],
)
def test_on_existing_hosts_only_own_ports_are_closed(tmp_path: Path, env: dict[str, str], closed: set[str]) -> None:
    got = answers("daemons", rules(tmp_path, "ports", "yes", **env))
    assert got["other node"] == got["loopback"] == DAEMONS_OPEN
    for place in ("neighbour", "neighbour6", "extra network"):
        assert got[place] == DAEMONS_OPEN | dict.fromkeys(closed, "refused"), place


def test_an_owners_nfs_server_stays_open(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("unit:nfs-server.service active=yes\n")
    assert "dport { 6817-6819 }" in rules(tmp_path, "ports", str(tmp_path)).read_text()


@namespaces
@pytest.mark.parametrize("version", ["3", "4.1"])
def test_only_servers_of_nfs_version_3_connect_back(tmp_path: Path, version: str) -> None:
    got = answers("daemons", rules(tmp_path, "ports", SHARED_NFS=version, SHARED_SOURCE="10.1.1.3:/shared"))
    assert got["neighbour"] == (DAEMONS_OPEN if version == "3" else FROM_OUTSIDE)


@namespaces
def test_a_new_node_is_admitted_by_the_next_hand_over(tmp_path: Path) -> None:
    file = rules(tmp_path, "ports")
    file.write_text(file.read_text().replace("10.1.1.2 }", "10.1.1.2, 10.1.1.3 }"))
    assert answers("daemons", file)["neighbour"] == DAEMONS_OPEN


def test_new_nodes_are_admitted(tmp_path: Path) -> None:
    assert "elements = { 10.1.1.1, 10.1.1.2 }" in rules(tmp_path, "ports").read_text()
    assert "$handover/" in (STAGES / "62-ports").read_text(), "passes.sh runs the stage again for a new hand-over"


@pytest.mark.parametrize(("role", "expected"), [("head", True), ("worker", False)])
def test_only_root_on_the_head_reaches_the_channel_to_the_machines(tmp_path: Path, role: str, expected: bool) -> None:
    channel = {"platform": "local", "address": "10.0.2.100", "port": "80"}
    made = node(tmp_path)
    made.write({"handover/repair.json": json.dumps({"power": {"channel": channel}, "groups": {}}, indent=1)})
    made.run("62-ports", **{**ON_HEAD, "ROLE": role}, TEST_HANDOVER=str(tmp_path / "handover")).passed()
    rule = "    ip daddr 10.0.2.100 meta skuid != 0 reject with tcp reset\n"
    assert (rule in (tmp_path / "etc/trainyard/ports.nft").read_text()) is expected


@pytest.mark.parametrize(
    ("check", "message"), [("1 ", "fail nft rejects "), ("0 ", "fail trainyard-ports.service does not start")]
)
def test_rules_that_do_not_load_fail_the_stage(tmp_path: Path, check: str, message: str) -> None:
    made = node(tmp_path, {"systemctl reload-or-restart": "1 ", "nft --check": check})
    ran = made.run("62-ports", **ON_HEAD, TEST_HANDOVER=str(tmp_path / "handover"))
    assert ran.failure().startswith(message)
