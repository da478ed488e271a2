"""The description of a booted machine."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest

from components.catalog import images
from offline.boot import description, guest, machine
from trainyard.errors import PlatformError


def test_the_fixture_of_the_driver_has_the_version_of_the_pinned_images() -> None:
    source = (Path(machine.__file__).parent / "image" / "modules" / "nvidia.c").read_text()
    assert f'#define VERSION "{guest.DRIVER}"' in source
    for name in ("azure-ubuntu-24.04-hpc", "gcp-ubuntu-24.04-nvidia-580"):
        assert guest.DRIVER.startswith(images()[name].versions["driver"])


@pytest.mark.parametrize("squash", [True, False])
def test_a_storage_server_exports_with_the_services_squash_option(squash: bool) -> None:
    export = description.Export(ranges=["10.77.0.4/32"], squash=squash)
    commands = "\n".join(description.nfs_server("id", "shared", "198.51.100.7", "/shared", [export]).first_boot)
    assert ("10.77.0.4/32(rw,sync,no_subtree_check,root_squash" in commands) is squash
    assert ("no_root_squash" in commands) is not squash


def test_a_disk_is_detached_and_attached_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = ["type", "port0", "data0"]

    def execute(_: Path, command: Any) -> list[Any] | None:
        name = command["arguments"].get("id")
        if command["execute"] == "device_add":
            if command["arguments"]["bus"] not in devices:
                return None
            devices.append(name)
        elif command["execute"] == "device_del" and devices[-1] != "busy":
            devices.remove(name)
        return [[{"name": found} for found in devices]]

    disk = description.CloudDisk(path=tmp_path / "disk", serial="lun0", gib=1)
    card = description.Card(address=IPv4Interface("10.0.0.4/24"))
    bare = description.CloudMachine(resource="id", name="head", cloud="azure", cards=[card])
    whole = replace(bare, disks=[disk])
    monkeypatch.setattr(machine, "execute", execute)
    monkeypatch.setattr(machine, "_UNPLUG_SECONDS", 0.1)
    for wanted, attached in ((whole, True), (bare, False), (whole, True)):
        machine.exchange_disks(tmp_path, wanted)
        assert ("data0" in devices) is attached
    devices.append("busy")
    with pytest.raises(PlatformError, match="head: the guest did not release the disk data0"):
        machine.exchange_disks(tmp_path, bare)
    devices[:] = ["type"]  # a machine that was started without the disk has no port for it
    with pytest.raises(PlatformError, match="head: QEMU did not attach the disk data0"):
        machine.exchange_disks(tmp_path, whole)
