"""Replaces the root folder of the checkout during a test."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import trainyard.checkout
from tests.architecture.modules import modules

_COPY = "from trainyard.checkout import ROOT"


def use_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _import_copies()
    monkeypatch.setattr(trainyard.checkout, "ROOT", root)


@cache
def _import_copies() -> None:
    """Import all modules that copy ROOT. A module first imported during a test would keep the folder of this test."""
    for name, path in modules().items():
        if _COPY in path.read_text() and not name.startswith(("tools.", "offline.")):
            import_module(name)
