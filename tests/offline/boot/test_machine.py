"""The description of a booted machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.catalog import images
from offline.boot import description, guest, machine


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
