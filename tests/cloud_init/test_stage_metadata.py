"""The nftables rules from the stage 12-metadata, applied in network namespaces created by the test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import Sandbox

_NETWORK = """
set -e
mount -t tmpfs none /run
mkdir /run/netns
ip link set lo up
for name in box cloud; do
  ip netns add $name
  ip link add $name type veth peer name eth0 netns $name
  ip link set $name up
  ip -n $name link set eth0 up
  ip -n $name link set lo up
done
ip addr add 10.1.1.1/24 dev box
ip -n box addr add 10.1.1.2/24 dev eth0
ip -n box route add default via 10.1.1.1
ip addr add 10.1.2.1/24 dev cloud
ip -n cloud addr add 10.1.2.2/24 dev eth0
ip -n cloud route add default via 10.1.2.1
for address in 169.254.169.254/32 168.63.129.16/32; do
  ip -n cloud addr add $address dev lo
  ip route add $address via 10.1.2.2
done
ip addr add fd00::1/64 dev cloud nodad
ip -n cloud addr add fd00::2/64 dev eth0 nodad
ip -n cloud addr add fd20:ce::254/128 dev lo nodad
ip route add fd20:ce::254/128 via fd00::2
ip addr add fd01::1/64 dev box nodad
ip -n box addr add fd01::2/64 dev eth0 nodad
ip -n box route add default via fd01::1
ip -n cloud route add default via fd00::1
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
"""
"""A node, a container on a bridge (box), and a cloud network with its services."""
_PROBE = Path(__file__).parent / "metadata_probe.py"
OPEN = dict.fromkeys(("metadata", "wire", "metadata6", "elsewhere", "dns", "udp"), "open")
REFUSED = OPEN | dict.fromkeys(("metadata", "wire", "metadata6"), "refused")


def can_filter() -> bool:
    """Return whether this test may create network namespaces and load rules in them."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("nft", "ip", "unshare"))):
        return False
    rule = "table inet t { chain c { type filter hook output priority 0; meta skuid 0 reject; }; }"
    probed = subprocess.run(["unshare", "--net", "nft", rule], capture_output=True, check=False)
    return probed.returncode == 0


namespaces = pytest.mark.skipif(not can_filter(), reason="needs root and nft")


def rules(root: Path, existing: str = "") -> str:
    """Run the stage. Return the path of the rules."""
    root.mkdir(exist_ok=True)
    ran = Sandbox(root, ("dpkg-query", "apt-get", "systemctl"), {"dpkg-query": "0 installed"}).run(
        "12-metadata", TEST_LEDGER=existing
    )
    assert ran.code == 0, ran.errors
    assert ran.commands[-1] == "systemctl reload-or-restart trainyard-metadata.service"
    return str(root / "etc/trainyard/metadata.nft")


def answers(file: str) -> dict[str, dict[str, str]]:
    """Apply the rules twice in a new network namespace, and connect from it as several users."""
    line = f'{_NETWORK}\nexec "$@"'
    done = subprocess.run(
        ["unshare", "--net", "--mount", "bash", "-c", line, "-", sys.executable, str(_PROBE), file],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str]] = json.loads(done.stdout)
    return found


@namespaces
def test_every_user_reaches_the_services_without_rules() -> None:
    assert answers("-")["job"] == OPEN


@namespaces
def test_only_root_reaches_the_services(tmp_path: Path) -> None:
    found = answers(rules(tmp_path / "node"))
    assert found["root"] == OPEN
    assert found["job"] == found["other"] == found["mptcp"] == REFUSED
    assert found["container"] == REFUSED
    assert "table inet owner" in found["tables"]


@namespaces
def test_on_existing_hosts_only_the_job_user_is_refused(tmp_path: Path) -> None:
    found = answers(rules(tmp_path / "node", existing="yes"))
    assert found["root"] == found["other"] == OPEN
    assert found["job"] == found["mptcp"] == REFUSED
    assert found["container"] == OPEN


def test_the_rules_are_applied_before_the_network_at_boot(tmp_path: Path) -> None:
    rules(tmp_path)
    link = tmp_path / "etc/systemd/system/sysinit.target.wants/trainyard-metadata.service"
    assert link.is_symlink()
    assert link.readlink().name == link.name


def test_nftables_is_installed_where_it_is_missing(tmp_path: Path) -> None:
    node = Sandbox(tmp_path, ("dpkg-query", "apt-get", "systemctl"), {"dpkg-query": "1 "})
    assert "apt-get -q -y --no-install-recommends install nftables" in node.run("12-metadata").commands
