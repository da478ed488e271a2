"""The firewall rules of booted machines: from the simulated clouds' resources, and as nftables."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest

from offline.boot.description import SERVICES
from offline.boot.firewall import ANYWHERE, Firewall, Rule, outside, render
from offline.cloud.azure import SUBSCRIPTION, Azure
from offline.cloud.gcp import Gcp
from offline.cloud.world import Record, World
from tests.offline.boot.firewall_probe import MAC

NET = "projects/offline/global/networks/net"
SUBNET = "projects/offline/regions/r/subnetworks/net-0"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/g/providers"
Inputs = dict[str, Any]
INSIDE = Rule(peers=["10.77.0.0/20"])
ALL, NONE = Rule(), Rule(accept=False)


def put(world: World, identity: str, token: str, inputs: Inputs, outputs: Inputs | None = None) -> Record:
    record = Record(identity, token, "urn", inputs, outputs or {})
    world.put(record)
    return record


def google_rules(world: World, tags: list[str]) -> Firewall:
    """Return the rules of a machine with these network tags."""
    put(world, SUBNET, "gcp:compute/subnetwork:Subnetwork", {"network": NET, "ipCidrRange": "10.77.0.0/20"})
    facts = {
        "name": "node",
        "machineType": "n2-standard-8",
        "tags": tags,
        "currentStatus": "RUNNING",
        "networkInterfaces": [{"subnetwork": SUBNET, "networkIp": "10.77.2.1"}],
    }
    made = put(world, "projects/offline/zones/z/instances/node", "gcp:compute/instance:Instance", facts, facts)
    machine = Gcp().machine(made, world)
    assert machine
    assert machine.cards[0].firewall
    return machine.cards[0].firewall


def put_google(world: World, **rules: Inputs) -> None:
    for name, inputs in rules.items():
        put(world, f"projects/offline/global/firewalls/{name}", "gcp:compute/firewall:Firewall", inputs)


EVERYTHING = [{"protocol": "all"}]


def test_google_rules_apply_to_tagged_machines_of_their_network(tmp_path: Path) -> None:
    world = World("test", tmp_path)
    ssh: Inputs = {
        "sourceRanges": ["203.0.113.0/24"],
        "targetTags": ["head"],
        "allows": [{"protocol": "tcp", "ports": ["22"]}],
    }
    put_google(
        world,
        inside={"network": NET, "sourceRanges": INSIDE.peers, "allows": EVERYTHING},
        ssh={"network": NET, **ssh},
        other={"network": f"{NET}-2", "sourceRanges": ["192.0.2.0/24"], "allows": EVERYTHING},
    )
    assert google_rules(world, []) == Firewall(inbound=[INSIDE], outbound=[ALL])
    both = google_rules(world, ["head"]).inbound
    assert sorted(both, key=lambda rule: rule.protocol) == [
        INSIDE,
        Rule(peers=["203.0.113.0/24"], protocol="tcp", ports=["22"]),
    ]
    world.remove("projects/offline/global/firewalls/inside")
    assert google_rules(world, []) == Firewall(inbound=[], outbound=[ALL])


def test_google_rules_apply_by_priority_and_denials_first(tmp_path: Path) -> None:
    world = World("test", tmp_path)
    web, ping = {"protocol": "tcp", "ports": ["80"]}, {"protocol": "icmp"}
    put_google(
        world,
        last={"network": NET, "sourceRanges": [ANYWHERE], "denies": [ping], "priority": 2000.0},
        usual={"network": NET, "sourceRanges": [ANYWHERE], "allows": [web]},
        equal={"network": NET, "sourceRanges": [ANYWHERE], "denies": [web]},
        first={"network": NET, "sourceRanges": [ANYWHERE], "allows": [ping], "priority": 0.0},
        off={"network": NET, "sourceRanges": [ANYWHERE], "denies": EVERYTHING, "priority": 1.0, "disabled": True},
    )
    assert google_rules(world, []).inbound == [
        Rule(protocol="icmp"),
        Rule(protocol="tcp", ports=["80"], accept=False),
        Rule(protocol="tcp", ports=["80"]),
        Rule(protocol="icmp", accept=False),
    ]


def test_google_allows_outbound_connections_that_no_rule_denies(tmp_path: Path) -> None:
    world = World("test", tmp_path)
    put_google(
        world,
        mail={"network": NET, "direction": "EGRESS", "denies": [{"protocol": "tcp", "ports": ["25"]}]},
        relay={
            "network": NET,
            "direction": "EGRESS",
            "destinationRanges": ["203.0.113.0/24"],
            "allows": EVERYTHING,
            "priority": 10.0,
        },
    )
    denied = Rule(protocol="tcp", ports=["25"], accept=False)
    assert google_rules(world, []) == Firewall(inbound=[], outbound=[Rule(peers=["203.0.113.0/24"]), denied, ALL])


def azure_rules(world: World, address: str, rules: Iterable[dict[str, Any]]) -> Firewall:
    """Return the rules of a machine with this address in a subnet with a security group."""
    network = f"{GROUP}/Microsoft.Network/virtualNetworks/net"
    card, group = f"{GROUP}/Microsoft.Network/networkInterfaces/nic", f"{GROUP}/Microsoft.Network/groups/rules"
    space = {"addressSpace": {"addressPrefixes": ["10.77.0.0/20", "10.78.0.0/26"]}}
    put(world, network, "azure-native:network:VirtualNetwork", space)
    subnet = {"addressPrefix": "10.77.0.0/20", "networkSecurityGroup": {"id": group}}
    put(world, f"{network}/subnets/nodes", "azure-native:network:Subnet", subnet)
    put(world, group, "azure-native:network:NetworkSecurityGroup", {"securityRules": list(rules)})
    where = [{"privateIPAddress": address, "subnet": {"id": f"{network}/subnets/nodes"}}]
    put(world, card, "azure-native:network:NetworkInterface", {}, {"ipConfigurations": where})
    profile = {"networkProfile": {"networkInterfaces": [{"id": card}]}}
    vm = put(world, f"{GROUP}/Microsoft.Compute/vm", "azure-native:compute:VirtualMachine", profile, profile)
    machine = Azure().machine(vm, world)
    assert machine
    assert machine.cards[0].firewall
    return machine.cards[0].firewall


def rule(priority: int, access: str, direction: str = "Inbound", **properties: Any) -> dict[str, Any]:
    everything: dict[str, Any] = {f"{side}AddressPrefix": "*" for side in ("source", "destination")}
    everything |= {"protocol": "*", "destinationPortRange": "*"}
    everything |= {"priority": priority, "access": access, "direction": direction}
    for name, value in properties.items():
        everything.pop(name.removesuffix("es"), None)
        everything[name] = value
    return everything


VIRTUAL_NETWORK = Rule(peers=["10.77.0.0/20", "10.78.0.0/26", SERVICES])
BALANCER = Rule(peers=["168.63.129.16/32"])


def test_azure_rules_apply_by_priority_to_their_destinations(tmp_path: Path) -> None:
    given = [
        rule(4096, "Deny"),
        rule(200, "Allow", sourceAddressPrefix="10.77.0.0/20"),
        rule(
            100,
            "Allow",
            sourceAddressPrefixes=["10.78.0.0/26"],
            protocol="Tcp",
            destinationPortRange="22",
            destinationAddressPrefix="10.77.0.4/32",
        ),
    ]
    rest = [INSIDE, NONE, VIRTUAL_NETWORK, BALANCER, NONE]
    ssh = Rule(peers=["10.78.0.0/26"], protocol="tcp", ports=["22"])
    assert azure_rules(World("head", tmp_path), "10.77.0.4", given).inbound == [ssh, *rest]
    assert azure_rules(World("worker", tmp_path), "10.77.2.1", given).inbound == rest


def is_in(address: str, rule: Rule) -> bool:
    return any(IPv4Address(address) in IPv4Network(peer) for peer in rule.peers)


def test_azures_default_rules_allow_the_virtual_network_and_the_internet(tmp_path: Path) -> None:
    found = azure_rules(World("test", tmp_path), "10.77.0.4", [])
    assert found.inbound == [VIRTUAL_NETWORK, BALANCER, NONE]
    inside, internet, last = found.outbound
    assert (inside, internet.accept, last) == (VIRTUAL_NETWORK, True, NONE)
    assert is_in("8.8.8.8", internet)
    assert is_in("10.77.16.1", internet)
    assert not any(is_in(address, internet) for address in ("10.77.2.1", "10.78.0.9", "198.51.100.7"))


def test_azures_outbound_rules_apply_by_priority_to_their_sources(tmp_path: Path) -> None:
    given = [
        rule(300, "Deny", "Outbound", sourceAddressPrefix="10.77.2.1", destinationAddressPrefix="Internet"),
        rule(100, "Allow", "Outbound", destinationAddressPrefixes=["203.0.113.0/24"], protocol="Udp"),
    ]
    first = Rule(peers=["203.0.113.0/24"], protocol="udp")
    worker = azure_rules(World("worker", tmp_path), "10.77.2.1", given).outbound
    assert worker[0] == first
    assert (worker[1].accept, is_in("8.8.8.8", worker[1])) == (False, True)
    head = azure_rules(World("head", tmp_path), "10.77.0.4", given).outbound
    assert (head[0], head[1]) == (first, VIRTUAL_NETWORK)


def test_connections_from_outside_need_a_rule_with_a_source_outside_of_the_network() -> None:
    ssh = Rule(peers=["10.78.0.0/26"], protocol="tcp", ports=["22"])
    card = Firewall(inbound=[ssh, INSIDE, BALANCER, NONE], outbound=[NONE])
    found = outside(card, IPv4Network("10.77.0.0/20"))
    assert found.inbound == [Rule(protocol="udp"), Rule(protocol="tcp", ports=["22"]), NONE]
    # The metadata service is reached although a rule denies everything.
    assert (is_in("169.254.169.254", found.outbound[0]), found.outbound[-1]) == (True, NONE)


def can_filter() -> bool:
    if not all(map(shutil.which, ("nft", "ip", "unshare"))):
        return False
    made = [*NAMESPACES, "nft", "add table inet t"]
    return not subprocess.run(made, capture_output=True, check=False).returncode


NAMESPACES = ("unshare", "--user", "--map-root-user", "--net")
_WEB = Rule(protocol="tcp", ports=["80"])
_SMALL = Rule(protocol="udp", ports=["1-79"], accept=False)


@pytest.mark.skipif(not can_filter(), reason="nft, ip or new namespaces are missing")
@pytest.mark.parametrize(
    ("inbound", "outbound", "possible"),
    [
        ([], [], set()),
        ([INSIDE], [], {"tcp 22 in", "tcp 80 in", "udp 22 in", "udp 80 in"}),
        ([], [ALL], {"tcp 22 out", "tcp 80 out", "udp 22 out", "udp 80 out"}),
        ([_WEB, NONE, ALL], [_SMALL, ALL], {"tcp 80 in", "tcp 22 out", "tcp 80 out", "udp 80 out"}),
        (
            [Rule(peers=["10.78.0.0/26"])],
            [Rule(peers=["10.77.2.1", "10.77.0.0/20"])],
            {"tcp 22 out", "tcp 80 out", "udp 22 out", "udp 80 out"},
        ),
    ],
    ids=["none", "inbound", "outbound", "order", "peers"],
)
def test_nft_applies_the_rules(tmp_path: Path, inbound: list[Rule], outbound: list[Rule], possible: set[str]) -> None:
    file = tmp_path / "rules"
    text = render({MAC: Firewall(inbound=inbound, outbound=outbound)})
    file.write_text(f'define mac_{MAC.replace(":", "")} = "card"\n{text}')
    command = [*NAMESPACES, sys.executable, "-m", "tests.offline.boot.firewall_probe", str(file)]
    done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=60)
    assert not done.returncode, done.stderr
    assert set(json.loads(done.stdout)) == possible
