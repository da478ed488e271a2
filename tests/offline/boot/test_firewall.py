"""The firewall rules of booted machines: from the simulated clouds' resources, and as nftables."""

from __future__ import annotations

import shutil
import subprocess
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from offline.boot.firewall import Rule, from_outside, render
from offline.cloud.azure import SUBSCRIPTION, Azure
from offline.cloud.gcp import Gcp
from offline.cloud.world import Record, World

NET = "projects/offline/global/networks/net"
SUBNET = "projects/offline/regions/r/subnetworks/net-0"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/g/providers"
Inputs = dict[str, Any]
INSIDE = Rule(sources=["10.77.0.0/20"])


def put(world: World, identity: str, token: str, inputs: Inputs, outputs: Inputs | None = None) -> Record:
    record = Record(identity, token, "urn", inputs, outputs or {})
    world.put(record)
    return record


def google_rules(world: World, tags: list[str]) -> Any:
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
    return machine.cards[0].rules


def test_google_rules_apply_to_tagged_machines_of_their_network(tmp_path: Path) -> None:
    world = World("test", tmp_path)
    ssh: Inputs = {
        "sourceRanges": ["203.0.113.0/24"],
        "targetTags": ["head"],
        "allows": [{"protocol": "tcp", "ports": ["22"]}],
    }
    rules: dict[str, Inputs] = {
        "inside": {"network": NET, "sourceRanges": INSIDE.sources, "allows": [{"protocol": "all"}]},
        "ssh": {"network": NET, **ssh},
        "other": {"network": f"{NET}-2", "sourceRanges": ["192.0.2.0/24"], "allows": [{"protocol": "all"}]},
    }
    for name, inputs in rules.items():
        put(world, f"projects/offline/global/firewalls/{name}", "gcp:compute/firewall:Firewall", inputs)
    assert google_rules(world, []) == [INSIDE]
    both = google_rules(world, ["head"])
    assert sorted(both, key=lambda rule: rule.protocol) == [
        INSIDE,
        Rule(sources=["203.0.113.0/24"], protocol="tcp", ports=["22"]),
    ]
    world.remove("projects/offline/global/firewalls/inside")
    assert google_rules(world, []) == []


def azure_rules(world: World, address: str, rules: list[dict[str, Any]]) -> Any:
    """Return the rules of a machine with this address in a subnet with a security group."""
    network = f"{GROUP}/Microsoft.Network/virtualNetworks/net"
    card, group = f"{GROUP}/Microsoft.Network/networkInterfaces/nic", f"{GROUP}/Microsoft.Network/groups/rules"
    space = {"addressSpace": {"addressPrefixes": ["10.77.0.0/20", "10.78.0.0/26"]}}
    put(world, network, "azure-native:network:VirtualNetwork", space)
    subnet = {"addressPrefix": "10.77.0.0/20", "networkSecurityGroup": {"id": group}}
    put(world, f"{network}/subnets/nodes", "azure-native:network:Subnet", subnet)
    put(world, group, "azure-native:network:NetworkSecurityGroup", {"securityRules": rules})
    where = [{"privateIPAddress": address, "subnet": {"id": f"{network}/subnets/nodes"}}]
    put(world, card, "azure-native:network:NetworkInterface", {}, {"ipConfigurations": where})
    profile = {"networkProfile": {"networkInterfaces": [{"id": card}]}}
    vm = put(world, f"{GROUP}/Microsoft.Compute/vm", "azure-native:compute:VirtualMachine", profile, profile)
    machine = Azure().machine(vm, world)
    assert machine
    return machine.cards[0].rules


def rule(priority: int, access: str, **properties: Any) -> dict[str, Any]:
    everything = {"protocol": "*", "destinationPortRange": "*", "destinationAddressPrefix": "*"}
    return {"priority": priority, "access": access, "direction": "Inbound", **everything, **properties}


def test_azure_rules_apply_by_priority_to_their_destinations(tmp_path: Path) -> None:
    given = [
        rule(4096, "Deny", sourceAddressPrefix="*"),
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
    rest = [INSIDE, Rule(accept=False), Rule(sources=["10.77.0.0/20", "10.78.0.0/26"])]
    ssh = Rule(sources=["10.78.0.0/26"], protocol="tcp", ports=["22"])
    assert azure_rules(World("head", tmp_path), "10.77.0.4", given) == [ssh, *rest]
    assert azure_rules(World("worker", tmp_path), "10.77.2.1", given) == rest


def test_connections_from_outside_need_a_rule_with_a_source_outside_of_the_network() -> None:
    ssh = Rule(sources=["10.78.0.0/26"], protocol="tcp", ports=["22"])
    found = from_outside([ssh, INSIDE, Rule(accept=False)], IPv4Network("10.77.0.0/20"))
    assert found == [Rule(protocol="udp"), Rule(protocol="tcp", ports=["22"]), Rule(accept=False)]


@pytest.mark.skipif(not shutil.which("nft") or not shutil.which("unshare"), reason="nft or unshare is missing")
def test_nft_accepts_the_rules() -> None:
    rules = [INSIDE, Rule(protocol="icmp"), Rule(protocol="udp", ports=["111", "1024-65535"], accept=False)]
    text = 'define mac_525400123456 = "eth1"\n' + render({"52:54:00:12:34:56": rules})
    assert "ip saddr { 10.77.0.0/20 } accept\n    meta l4proto icmp accept\n    meta l4proto udp th dport" in text
    check = ["unshare", "--user", "--map-root-user", "--net", "nft", "--check", "--file", "-"]
    done = subprocess.run(check, input=text, text=True, capture_output=True, check=False)
    assert not done.returncode, done.stderr
