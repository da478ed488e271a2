"""The cluster of virtual machines shared by the integration tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.project import FIRST, HEAD, SECOND, Project, wait_until


@pytest.fixture(scope="session", autouse=True)
def _end_in_order() -> None:
    """Handle SIGTERM in the same way as Ctrl-C, so that the fixtures remove the machines."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _command_plugin(request: pytest.FixtureRequest) -> None:
    Project.official = request.config.getoption("--official")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Remove the shared cluster after all other tests, which otherwise run in the alphabetical order of their files."""
    items.sort(key=lambda item: item.name == "test_down_leaves_nothing")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for plugin in sorted(Project.plugins):
        terminalreporter.write_line(f"pulumi-command in these tests: {plugin}")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A running cluster with one head and two workers, in a copy of the project."""
    folder: Path = tmp_path_factory.mktemp("cluster") / "project"
    project = Project(folder, cluster="it", port_base=23100)
    project.setup()
    try:
        project.stack("up", timeout=900)
        yield project
    finally:
        project.down(check=False)


@pytest.fixture
def frozen() -> Iterator[list[int]]:
    """A list of stopped processes that are continued after the test."""
    stopped: list[int] = []
    yield stopped
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


_REPAIR = """
rm -f /var/filler
mount -o remount,rw /
nft delete table inet test
nft delete table ip test_xid
systemctl start chrony munge
trainyard-health clear gpu-xid
"""
"""Ends the faults that tests cause on a node. Some of the commands fail, because a test causes at most one fault."""


@pytest.fixture
def repaired(cluster: Project) -> Iterator[None]:
    """After a failed test, end its fault and return both workers to service, so that the next tests can pass."""
    yield
    nodes = (FIRST, SECOND)
    if all(cluster.in_service(node) and not cluster.verdicts(node) for node in nodes):
        return
    for node in nodes:
        cluster.as_root(node, _REPAIR, check=False)
    cluster.on(HEAD, "sudo scancel --user=trainer")
    wait_until("the end of the verdicts", 150, lambda: not any(cluster.verdicts(node) for node in nodes))
    # Only an operator can end the drains of an operator.
    cluster.on(HEAD, f"sudo scontrol update nodename={FIRST},{SECOND} state=resume", check=False)
    wait_until("both workers to be in service", 240, lambda: all(map(cluster.in_service, nodes)))
