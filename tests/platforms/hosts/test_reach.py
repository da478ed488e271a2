"""The test of the private network between hosts: which answers are faults."""

from __future__ import annotations

import errno
import os
import socket
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

import pytest

from tests.platforms.recording import ROOT

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
    """Let a connection to some ports end with a fault, and any other with a refusal."""

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        raise fault if address[1] in ports else ConnectionRefusedError(errno.ECONNREFUSED, "")

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(REACH, "clock_difference", lambda address: None)


def test_a_port_where_nothing_listens_yet_is_reached() -> None:
    assert REACH.fault("127.0.0.1", 1) == ""


@pytest.mark.parametrize(
    ("fault", "words"),
    [(TimeoutError(), "no answer"), (OSError(errno.EHOSTUNREACH, ""), "No route to host")],
)
def test_a_closed_port_is_named_with_a_fix(monkeypatch: pytest.MonkeyPatch, fault: OSError, words: str) -> None:
    refuse(monkeypatch, fault, 2049, 29500)
    assert REACH.conflicts("a", "b", "10.0.0.2") == [
        f"host a: b (10.0.0.2) is not reached on port 2049 (NFS): {words}, 29500 (ranks): {words}. "
        "Fix: let the hosts reach one another by TCP on all ports of their private network."
    ]


def test_every_fault_of_every_host_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(monkeypatch, TimeoutError(), 22)
    monkeypatch.setenv("BORROW_NODE", "a")
    monkeypatch.setenv("BORROW_PEERS", "b=10.0.0.2 c=10.0.0.3")
    assert REACH.main() == 1
    assert [line.split(" (")[0] for line in capsys.readouterr().err.splitlines()] == ["host a: b", "host a: c"]


@pytest.mark.parametrize(("ahead", "found"), [(None, 0), (59.0, 0), (-61.0, 1), (400.0, 1)])
def test_clocks_that_are_apart_are_a_fault(monkeypatch: pytest.MonkeyPatch, ahead: float | None, found: int) -> None:
    refuse(monkeypatch, TimeoutError())
    monkeypatch.setattr(REACH, "clock_difference", lambda address: ahead)
    lines = REACH.conflicts("a", "b", "10.0.0.2")
    assert len(lines) == found
    assert all(line.startswith(f"host a: the clock of b differs by {ahead:+.0f} s. Fix: ") for line in lines)


@pytest.mark.skipif(os.geteuid() != 0, reason="a raw socket needs root")
def test_a_host_without_an_answer_to_icmp_has_no_known_clock() -> None:
    assert REACH.clock_difference("127.0.0.1") in {None, 0.0} or abs(REACH.clock_difference("127.0.0.1")) < 1
    assert REACH.clock_difference("not-an-address.invalid") is None


def test_the_checksum_is_that_of_rfc_1071() -> None:
    assert REACH.checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0x220D
