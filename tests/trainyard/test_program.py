"""Tests of the Pulumi program's entry point."""

from __future__ import annotations

import gc
import signal

import pulumi
import pytest

from trainyard import program


def test_ctrl_c_ends_the_program_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """With Python's own handler, `pulumi up` showed a traceback of pulumi's event loop after Ctrl-C."""
    handlers: list[object] = []
    monkeypatch.setattr(pulumi, "run", lambda _: handlers.append(signal.getsignal(signal.SIGINT)))
    before = signal.getsignal(signal.SIGINT)
    try:
        program.run()
    finally:
        signal.signal(signal.SIGINT, before)
        gc.enable()
    assert handlers == [signal.SIG_DFL]
