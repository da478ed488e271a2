"""Tests for the connection test between hosts."""

from __future__ import annotations

import errno
import os
import socket
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

import pytest

from tests.components.platforms.recording import ROOT

FILE = ROOT / "components" / "platforms" / "hosts" / "node" / "reach"


def load() -> Any:
    """Return the program `reach` as a module."""
    spec = spec_from_loader("reach", SourceFileLoader("reach", str(FILE)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REACH = load()


def refuse(monkeypatch: pytest.MonkeyPatch, fault: OSError, *ports: int) -> None:
    """Make connections to `ports` fail with `fault`, and refuse connections to all other ports."""

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        raise fault if address[1] in ports else ConnectionRefusedError(errno.ECONNREFUSED, "")

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(REACH, "clock_difference", lambda address: None)


def test_a_refused_connection_is_a_success() -> None:
    assert REACH.fault("127.0.0.1", 1) == ""


@pytest.mark.parametrize(
    ("fault", "words"),
    [(TimeoutError(), "no answer"), (OSError(errno.EHOSTUNREACH, ""), "No route to host")],
)
def test_an_unreachable_port_has_a_fix(monkeypatch: pytest.MonkeyPatch, fault: OSError, words: str) -> None:
    refuse(monkeypatch, fault, 2049, 29500)
    assert REACH.conflicts("a", "b", "10.0.0.2") == [
        f"host a: b (10.0.0.2) cannot be reached on port 2049 (NFS): {words}, 29500 (ranks): {words}. "
        "Fix: let the hosts reach one another by TCP on all ports of their private network."
    ]


def test_all_faults_of_all_hosts_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(monkeypatch, TimeoutError(), 22)
    monkeypatch.setenv("PLAN_NODE", "a")
    monkeypatch.setenv("PLAN_PEERS", "b=10.0.0.2 c=10.0.0.3")
    assert REACH.main() == 1
    assert [line.split(" (")[0] for line in capsys.readouterr().err.splitlines()] == ["host a: b", "host a: c"]


@pytest.mark.parametrize(("ahead", "found"), [(None, 0), (59.0, 0), (-61.0, 1), (400.0, 1)])
def test_different_clocks_are_a_fault(monkeypatch: pytest.MonkeyPatch, ahead: float | None, found: int) -> None:
    refuse(monkeypatch, TimeoutError())
    monkeypatch.setattr(REACH, "clock_difference", lambda address: ahead)
    lines = REACH.conflicts("a", "b", "10.0.0.2")
    assert len(lines) == found
    assert all(line.startswith(f"host a: the clock of b differs by {ahead:+.0f} s. Fix: ") for line in lines)


@pytest.mark.skipif(os.geteuid() != 0, reason="a raw socket needs root")
def test_the_clock_is_unknown_without_an_icmp_reply() -> None:
    assert REACH.clock_difference("127.0.0.1") in {None, 0.0} or abs(REACH.clock_difference("127.0.0.1")) < 1
    assert REACH.clock_difference("not-an-address.invalid") is None


def test_the_checksum_is_that_of_rfc_1071() -> None:
    assert REACH.checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0x220D
