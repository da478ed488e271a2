"""The torchrun on the nodes, with fake torch packages that were built with or without libuv."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import STAGES, Sandbox
from tests.cloud_init.test_stages_system import system

TORCHRUN = STAGES.parent / "torchrun"
_DISTRIBUTED = """
import os

class TCPStore:
    def __init__(self, host, port=0, is_master=False, wait_for_workers=True, use_libuv=True):
        if use_libuv and not {built}:
            raise RuntimeError("use_libuv was requested but PyTorch was built without libuv support")
        self.values = {{}}

    def set(self, key, value):
        self.values[key] = value
"""
_RENDEZVOUS = """
class RendezvousStoreInfo:
    @staticmethod
    def build(rank, store, local_addr):
        store.set("MASTER_ADDR", local_addr)
        return f"own store at {local_addr}"

class RendezvousInfo:
    def __init__(self, store, rank, world_size, ranks):
        self.store, self.rank, self.world_size, self.ranks = store, rank, world_size, ranks
"""
_STATIC = """
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo

class StaticTCPRendezvous:
    master_addr = "head"

    @property
    def use_agent_store(self):
        return True

    def next_rendezvous(self):
        return RendezvousInfo(TCPStore(self.master_addr), 0, 2, "agent's store")
"""
_API = """
def _get_addr_and_port(parameters):
    return ("head", 29500)
"""
_RUN = """
import os, sys
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous
from torch.distributed.launcher import api

def main():
    handler = static_tcp_rendezvous.StaticTCPRendezvous()
    print(sys.argv[1:], handler.use_agent_store, handler.next_rendezvous().ranks)
    names = ("USE_LIBUV", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
    print(api._get_addr_and_port(None)[1], *map(os.environ.get, names))

if __name__ == "__main__":
    main()
"""
"""Fake versions of the parts of torch 2.6 (torch/distributed) that the node's torchrun replaces."""


def torchrun(folder: Path, *command: str, built: bool, **environment: str) -> str:
    """Run a command with the fake torch and return its output. `built`: whether torch includes libuv."""
    files = {
        "__init__": "",
        "distributed/__init__": _DISTRIBUTED.format(built=built),
        "distributed/run": _RUN,
        "distributed/launcher/__init__": "",
        "distributed/launcher/api": _API,
        "distributed/elastic/__init__": "",
        "distributed/elastic/rendezvous/__init__": _RENDEZVOUS,
        "distributed/elastic/rendezvous/static_tcp_rendezvous": _STATIC,
    }
    for name, text in files.items():
        file = folder / "torch" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    environment |= {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    arguments = [*command, "--nnodes=2", "a b"]
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True).stdout


def test_torchrun_is_unchanged_with_libuv(tmp_path: Path) -> None:
    assert (
        torchrun(tmp_path, str(TORCHRUN), built=True) == "['--nnodes=2', 'a b'] True agent's store\n29500 None None\n"
    )


def test_stores_use_no_libuv_if_torch_lacks_it(tmp_path: Path) -> None:
    assert torchrun(tmp_path, str(TORCHRUN), built=False) == "['--nnodes=2', 'a b'] False own store at head\nNone 0 1\n"


@pytest.mark.parametrize("built", [True, False])
def test_torchrun_as_a_module_uses_the_same_stores(tmp_path: Path, built: bool) -> None:
    """The .pth file is in the user's packages folder of a Python outside any virtual environment."""
    packages = tmp_path / "usr/lib/python3/dist-packages"
    (packages / "torch").mkdir(parents=True)
    system(tmp_path)
    hook = tmp_path / "usr/local/lib/trainyard/torchrun"
    hook.parent.mkdir(parents=True)
    hook.symlink_to(TORCHRUN)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    user = tmp_path / "user/lib" / version / "site-packages"
    user.mkdir(parents=True)
    (file,) = packages.glob("*.pth")
    file.rename(user / file.name)
    command = (f"{sys.base_prefix}/bin/{version}", "-m", "torch.distributed.run")
    as_module = torchrun(tmp_path / "fake", *command, built=built, PYTHONUSERBASE=str(tmp_path / "user"))
    assert as_module == torchrun(tmp_path / "fake", str(TORCHRUN), built=built)


@pytest.mark.parametrize("installed", [None, "the owner's\n"])
def test_existing_torchrun_is_not_replaced(tmp_path: Path, installed: str | None) -> None:
    file = tmp_path / "usr/local/bin/torchrun"
    Sandbox(tmp_path).write({"usr/local/bin/torchrun": installed} if installed else {})
    system(tmp_path, TEST_LEDGER="yes")
    if installed is None:
        assert str(file.readlink()).endswith("/usr/local/lib/trainyard/torchrun")
    else:
        assert file.read_text() == installed
