"""The catalog: its rows agree with one another and with the code that uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from components import catalog
from components.catalog import Machine, fabrics, images, machines, prices
from components.errors import CatalogError
from components.platforms import PLATFORMS
from components.slurm import SLURM_VERSIONS

EVERY_MACHINE = [
    pytest.param(row, id=f"{provider}:{name}") for provider in PLATFORMS for name, row in machines(provider).items()
]


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_every_platform_has_machines_with_and_without_gpus(provider: str) -> None:
    assert {row.gpus > 0 for row in machines(provider).values()} == {True, False}


@pytest.mark.parametrize("row", EVERY_MACHINE)
def test_a_machine_agrees_with_itself(row: Machine) -> None:
    assert (row.gpus > 0) == (row.gpu_type is not None) == (row.gpu_device is not None)
    assert row.fabric in fabrics()
    assert 0 < row.schedulable_memory_mib < row.memory_mib


def test_no_row_is_of_an_unknown_platform() -> None:
    files = (Path(catalog.__file__).parent / "machines").glob("*.yaml")
    assert {file.stem for file in files} == set(PLATFORMS)


@pytest.mark.parametrize("name", sorted(images()))
def test_slurm_can_be_configured_on_every_image(name: str) -> None:
    assert images()[name].slurm_version in SLURM_VERSIONS


@pytest.mark.parametrize("name", sorted(images()))
def test_a_pinned_fabric_manager_is_of_the_drivers_version(name: str) -> None:
    versions = images()[name].versions
    assert versions.get("fabric_manager", versions.get("driver")) == versions.get("driver")


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_every_price_is_of_a_machine_type(provider: str) -> None:
    assert set(prices(provider)) <= set(machines(provider))


def test_mpi_uses_every_rdma_card() -> None:
    for provider in PLATFORMS:
        for machine in machines(provider).values():
            devices = fabrics()[machine.fabric].env.get("UCX_NET_DEVICES")
            assert devices is None or len(set(devices.split(","))) == machine.rdma


@pytest.mark.parametrize(
    ("memory", "schedulable"), [(1024, 768), (4096, 3072), (16384, 15360), (1900544, 1900544 - 95027)]
)
def test_memory_left_to_the_system(memory: int, schedulable: int) -> None:
    row = {
        "name": "m",
        "provider": "p",
        "vcpus": 1,
        "gpus": 0,
        "fabric": "ethernet",
        "source": "s",
        "dated": "2026-01-01",
    }
    assert Machine.model_validate(row | {"memory_mib": memory}).schedulable_memory_mib == schedulable


def test_a_wrong_fact_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fabrics.yaml").write_text("x: {env: 5, source: s, dated: today}\n")
    monkeypatch.setattr(catalog, "_FOLDER", tmp_path)
    with pytest.raises(CatalogError, match=r"catalog/fabrics\.yaml"):
        fabrics.__wrapped__()
