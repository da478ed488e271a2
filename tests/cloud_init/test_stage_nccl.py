"""The stage that copies NCCL's settings to /etc/nccl.conf."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import Ran, Sandbox

FABRIC = "CUDA_DEVICE_ORDER=PCI_BUS_ID\nNCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_TUNER='a b;c'\nUCX_NET_DEVICES=mlx5_0:1\n"


FOUND = "0 1 libs found in cache\n\tlibnccl-net.so (libc6,x86-64) => /var/lib/tcpx/lib64/libnccl-net.so\n"
OTHER = "0 \tlibnccl-net-shim.so (libc6,x86-64) => /var/lib/tcpx/lib64/libnccl-net-shim.so\n"
"""The index of a library whose ELF header contains another name than its file (glibc 2.36, tested 2026-11-24)."""


def nccl(root: Path, gpus: int, fabric: str = FABRIC, index: str = "0 ") -> Ran:
    (root / "etc/trainyard").mkdir(parents=True)
    (root / "etc/trainyard/fabric.env").write_text(fabric)
    return Sandbox(root, ("ldconfig",), {"ldconfig -p": index}).run("46-nccl", ROLE="worker", GPUS=str(gpus))


def test_settings_of_nccl_are_copied_without_quotes(tmp_path: Path) -> None:
    ran = nccl(tmp_path, 8)
    assert ran.code == 0, ran.errors
    assert (tmp_path / "etc/nccl.conf").read_text() == "NCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_TUNER=a b;c\n"


def test_a_node_without_gpus_has_no_settings(tmp_path: Path) -> None:
    assert nccl(tmp_path, 0).code == 0
    assert not (tmp_path / "etc/nccl.conf").exists()


@pytest.mark.parametrize(("index", "sets"), [(FOUND, True), (OTHER, False)])
def test_nccl_net_names_only_a_plugin_that_programs_find(tmp_path: Path, index: str, sets: bool) -> None:
    """Otherwise NCCL would fail in every program that does not set LD_LIBRARY_PATH."""
    ran = nccl(tmp_path, 8, "NCCL_NET=GPUDirectTCPX_v7\nNCCL_PROTO=Simple\n", index)
    assert ran.code == 0, ran.errors
    settings = "NCCL_NET=GPUDirectTCPX_v7\nNCCL_PROTO=Simple\n" if sets else "NCCL_PROTO=Simple\n"
    assert (tmp_path / "etc/nccl.conf").read_text() == settings
    assert [line[:11] for line in ran.output] == ([] if sets else ["log WARNING"])
