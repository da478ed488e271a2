"""Tests for the seed disk and MAC addresses."""

from __future__ import annotations

import json
import subprocess
from ipaddress import IPv4Interface
from pathlib import Path

import pytest

from components.platforms.local.machine import macs, meta_data, network_config, write_seed


def test_addresses_are_stable_unique_and_locally_administered() -> None:
    names = [f"yard-gpu-{index}" for index in range(64)]
    cards = [macs("local", name) for name in names]
    assert cards == [macs("local", name) for name in names]
    every = [mac for card in cards for mac in (card.external, card.private)]
    assert len(set(every)) == 128
    assert all(mac.startswith("52:54:00:") and len(mac) == 17 for mac in every)
    assert macs("other", "yard-gpu-0") != cards[0]


def test_network_interfaces_match_by_mac_address() -> None:
    cards = macs("local", "yard-head")
    config = json.loads(network_config(cards, IPv4Interface("10.77.0.4/20")))
    ext0, clu0 = config["ethernets"]["ext0"], config["ethernets"]["clu0"]
    assert ext0["match"] == {"macaddress": cards.external}
    assert ext0["addresses"] == ["10.0.2.15/24"]
    assert ext0["routes"] == [{"to": "0.0.0.0/0", "via": "10.0.2.2"}]
    assert clu0 == {"match": {"macaddress": cards.private}, "set-name": "clu0", "addresses": ["10.77.0.4/20"]}


@pytest.mark.parametrize("user_data", ["#cloud-config\nhostname: x\n", "#cloud-config\n# \u00e9\n" + "x: y\n" * 9000])
def test_the_seed_disk_contains_its_files(tmp_path: Path, user_data: str) -> None:
    # An external program reads the image so that the test does not depend on the code that wrote the image.
    disk = tmp_path / "seed.img"
    write_seed(disk, user_data, meta_data("abc", "yard-head"), "{}")
    label = subprocess.run(["isoinfo", "-d", "-i", disk], capture_output=True, text=True, check=True).stdout
    assert "Volume id: cidata" in label
    read = {
        name: subprocess.run(["isoinfo", "-R", "-x", f"/{name}", "-i", disk], capture_output=True, check=True).stdout
        for name in ("user-data", "meta-data", "network-config")
    }
    assert read["user-data"].decode() == user_data
    assert json.loads(read["meta-data"]) == {"instance-id": "abc", "local-hostname": "yard-head", "dsmode": "local"}
    assert [path.name for path in tmp_path.iterdir()] == ["seed.img"]
