"""A machine with a ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.components.platforms.hosts.ledger import HOSTS, Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with configuration files written by its owner."""
    made = Machine(tmp_path)
    made.write("etc/hosts", HOSTS)
    made.write("etc/munge/munge.key", "theirs", 0o400)
    made.write("etc/default/slurmd", "SLURMD_OPTIONS=''\n", 0o600)
    return made
