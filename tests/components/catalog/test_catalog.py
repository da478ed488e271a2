"""Consistency of the rows in the catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from components import catalog
from components.catalog import Fabric, Machine, fabrics, images, machines, prices, read_rows
from components.node.slurm import SLURM_VERSIONS
from components.platforms import PLATFORMS
from trainyard.errors import CatalogError

EVERY_MACHINE = [
    pytest.param(row, id=f"{provider}:{name}") for provider in PLATFORMS for name, row in machines(provider).items()
]


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_each_platform_has_machines_with_and_without_gpus(provider: str) -> None:
    assert {row.gpus > 0 for row in machines(provider).values()} == {True, False}


@pytest.mark.parametrize("row", EVERY_MACHINE)
def test_machine_is_consistent(row: Machine) -> None:
    assert (row.gpus > 0) == (row.gpu_type is not None) == (row.gpu_device is not None)
    assert row.fabric in fabrics()
    assert 0 < row.schedulable_memory_mib < row.memory_mib


def test_machine_files_are_of_known_platforms() -> None:
    files = (Path(catalog.__file__).parent / "machines").glob("*.yaml")
    assert {file.stem for file in files} == set(PLATFORMS)


@pytest.mark.parametrize("name", sorted(images()))
def test_slurm_version_of_each_image_is_supported(name: str) -> None:
    assert images()[name].slurm_version in SLURM_VERSIONS


@pytest.mark.parametrize("name", sorted(images()))
def test_fabric_manager_has_the_version_of_the_driver(name: str) -> None:
    versions = images()[name].versions
    assert versions.get("fabric_manager", versions.get("driver")) == versions.get("driver")


@pytest.mark.parametrize("provider", sorted(PLATFORMS))
def test_prices_are_of_known_machine_types(provider: str) -> None:
    assert set(prices(provider)) <= set(machines(provider))


def test_mpi_uses_the_infiniband_cards_and_no_other_card() -> None:
    cards = {
        machine.name: fabrics()[machine.fabric].env.get("UCX_NET_DEVICES")
        for machine in machines("azure").values()
        if machine.fabric.startswith("infiniband-")
    }
    assert {name: machines("azure")[name].rdma for name in cards}["Standard_ND40rs_v2"] == 1
    assert cards == {name: ",".join(f"mlx5_ib{n}:1" for n in range(machines("azure")[name].rdma)) for name in cards}


@pytest.mark.parametrize(
    ("memory", "schedulable"), [(1024, 768), (4096, 3072), (16384, 15360), (1900544, 1900544 - 95027)]
)
def test_schedulable_memory(memory: int, schedulable: int) -> None:
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


def test_error_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fabrics.yaml").write_text("x: {env: 5, source: s, dated: today}\n")
    monkeypatch.setattr(catalog, "_FOLDER", tmp_path)
    with pytest.raises(CatalogError, match=r"catalog/fabrics\.yaml"):
        read_rows("fabrics.yaml", Fabric)
