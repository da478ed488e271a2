"""Removal of the shared cluster."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.integration.project import FIRST, HEAD, SECOND, Project, alive

pytestmark = pytest.mark.integration


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_down_leaves_nothing(cluster: Project) -> None:
    pids = [cluster.pid(node) for node in (HEAD, FIRST, SECOND)]
    cluster.down()
    assert not [pid for pid in pids if alive(pid)]
    assert all(_port_is_free(port) for port in range(23100, 23140))
    left = [path for path in (cluster.folder / ".trainyard" / "run").rglob("*") if path.is_file() or path.is_socket()]
    assert left == []
    assert list((cluster.folder / ".trainyard").rglob("locks/**/*.json")) == []
    here = str(cluster.folder).encode()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes()
        except OSError:
            continue
        assert not (b"qemu" in command or b"vde_switch" in command) or here not in command, command
