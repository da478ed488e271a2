"""The stage that copies NCCL's settings to /etc/nccl.conf."""

from __future__ import annotations

from pathlib import Path

from tests.cloud_init.stage_sandbox import Ran, Sandbox

FABRIC = "CUDA_DEVICE_ORDER=PCI_BUS_ID\nNCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_TUNER='a b;c'\nUCX_NET_DEVICES=mlx5_0:1\n"


def nccl(root: Path, gpus: int) -> Ran:
    (root / "etc/trainyard").mkdir(parents=True)
    (root / "etc/trainyard/fabric.env").write_text(FABRIC)
    return Sandbox(root, (), {}).run("46-nccl", ROLE="worker", GPUS=str(gpus))


def test_settings_of_nccl_are_copied_without_quotes(tmp_path: Path) -> None:
    ran = nccl(tmp_path, 8)
    assert ran.code == 0, ran.errors
    assert (tmp_path / "etc/nccl.conf").read_text() == "NCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_TUNER=a b;c\n"


def test_a_node_without_gpus_has_no_settings(tmp_path: Path) -> None:
    assert nccl(tmp_path, 0).code == 0
    assert not (tmp_path / "etc/nccl.conf").exists()
