"""The version lock of the NVIDIA driver, and archives with mirrors."""

from __future__ import annotations

import re

import pytest

from components.catalog import DriverLock, archives, conflicts, driver_locks, incompatible, machines
from components.platforms import PLATFORMS
from components.spec.cluster import MirrorsSpec
from tests.conftest import ROOT

LOCKS = [pytest.param(lock, id=name) for name, lock in driver_locks().items()]
TOOLKIT = ROOT / "cloud-init/files/usr/local/lib/trainyard/stages/44-containers"


@pytest.mark.parametrize("lock", LOCKS)
def test_versions_of_a_lock_are_compatible(lock: DriverLock) -> None:
    assert list(incompatible(lock.versions, conflicts())) == []


@pytest.mark.parametrize("lock", LOCKS)
def test_driver_packages_have_the_locked_driver(lock: DriverLock) -> None:
    versions = {package.version for package in (*lock.packages.values(), *lock.nvswitch.values())}
    assert {version for version in versions if version.startswith(f"{lock.driver}-")}
    branch = lock.driver.partition(".")[0]
    assert not [version for version in versions if version.startswith(branch) and not version.startswith(lock.driver)]
    assert bool(lock.nvswitch) == ("fabric_manager" in lock.versions) == ("nscq" in lock.versions)


@pytest.mark.parametrize("lock", LOCKS)
def test_packages_without_a_hash_are_unverified(lock: DriverLock) -> None:
    hashes = [package.sha256 for package in (*lock.packages.values(), *lock.nvswitch.values())]
    assert ("their hashes" in lock.unverified) == (None in hashes)


@pytest.mark.parametrize("lock", LOCKS)
def test_toolkit_of_a_lock_is_that_of_the_stage(lock: DriverLock) -> None:
    assert f"\nreadonly toolkit={lock.versions['container_toolkit']}\n" in TOOLKIT.read_text()


@pytest.mark.parametrize("lock", LOCKS)
def test_each_archive_of_a_lock_can_have_a_mirror(lock: DriverLock) -> None:
    for url in filter(None, (archive.url for archive in lock.archives)):
        found = [name for name, row in archives().items() if re.match(rf"(?:{row.url})(/|$)", url)]
        assert len(found) == 1, url


def test_refused_gpus_are_types_of_the_catalog() -> None:
    known = {row.gpu_type for provider in PLATFORMS for row in machines(provider).values()}
    for lock in driver_locks().values():
        assert lock.refused_gpus.keys() <= known


def test_each_archive_is_a_key_of_mirrors() -> None:
    assert list(MirrorsSpec.model_fields) == [*archives(), "pypi"]


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"driver": "580.1", "fabric_manager": "580.2"}, "driver 580.1 and fabric manager 580.2"),
        ({"driver": "580.1", "fabric_manager": "580.1", "nscq": "580.2"}, "driver 580.1 and NSCQ 580.2"),
        ({"driver": "550.1", "cuda": "13.0"}, "this release of CUDA needs driver 580 or later"),
        ({"driver": "580.1", "cuda": "12.9", "nccl": "2.27.5-1+cuda13.0"}, "NCCL for CUDA 13.0"),
        ({"driver": "580.1", "container_toolkit": "1.17.7-1"}, "enroot cannot start containers"),
    ],
)
def test_incompatible_versions_are_reported(versions: dict[str, str], words: str) -> None:
    [found] = incompatible(versions, conflicts())
    assert words in found


@pytest.mark.parametrize(
    "versions",
    [
        {"driver": "580.1", "fabric_manager": "580.1", "nscq": "580.1", "cuda": "13.0", "nccl": "2.27.5-1+cuda12.9"},
        {"driver": "550.163.01", "cuda": "12.4", "nccl": "2.22.3-1-1"},
        {"container_toolkit": "1.17.8-1"},
    ],
)
def test_compatible_versions_are_accepted(versions: dict[str, str]) -> None:
    assert list(incompatible(versions, conflicts())) == []


def test_machine_without_gpus_keeps_its_quotas() -> None:
    machine = machines("gcp")["a2-highgpu-8g"]
    found = machine.without_gpus()
    assert (found.gpus, found.gpu_type, found.gpu_device, found.floors) == (0, None, None, None)
    assert found.usd_per_hour == machine.usd_per_hour
    assert found.quotas == {name: 8 if count == "gpus" else count for name, count in machine.quotas.items()}
    assert 8 in found.quotas.values()
