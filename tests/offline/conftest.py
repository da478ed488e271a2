"""The command plugin, and a machine to send commands to."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.offline.loopback_sshd import Sshd, new_server, running, sshd_binary
from tests.offline.plugin import Plugin, serving


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    """A fresh plugin, as one deployment has it."""
    with serving() as found:
        yield found


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """A folder that every user may pass through, as sshd wants it for its keys."""
    folder = Path(tempfile.mkdtemp(prefix="ty-sshd-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def new_sshd(server_folder: Path) -> Sshd:
    """An ssh server that does not run yet."""
    if not sshd_binary():
        pytest.skip("there is no sshd here (Debian: apt-get install openssh-server)")
    return new_server(server_folder)


@pytest.fixture
def sshd(new_sshd: Sshd) -> Iterator[Sshd]:
    """A running ssh server."""
    with running(new_sshd) as found:
        yield found
