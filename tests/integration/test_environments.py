"""Python environments on the local cluster, with a package index on this computer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from tests.integration.mirror import GUEST_VIEW, Server
from tests.integration.project import Done, Project
from tests.yard.environments.wheels import lock_line, make_wheel
from yard.environments.definition import FOLDER, LOCK

pytestmark = [pytest.mark.integration, pytest.mark.full]

FIRST_BUILD_SECONDS = 90
LATER_SECONDS = 3
"""Maximum number of seconds for a command that finds a complete environment. The time includes the start of yard and an
SSH connection."""
_PLATFORM = ("--python-version", "3.13", "--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64")
_SHOW = """python3 -c '
import importlib.util, safetensors, sys
print(sys.prefix, safetensors.__file__, importlib.util.find_spec("torch").origin)'"""


class Index(Server):
    """A package index on this computer, with the wheels in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        self._folder = folder

    def publish(self) -> None:
        """Write the pages of the index."""
        for wheel in self.wheels.glob("*.whl"):
            page = self._folder / "simple" / wheel.name.split("-")[0].replace("_", "-") / "index.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(f'<a href="/wheels/{wheel.name}">{wheel.name}</a>')

    def handler(self) -> Callable[..., SimpleHTTPRequestHandler]:
        """Return the class that answers a request with a file in the folder."""
        return partial(SimpleHTTPRequestHandler, directory=str(self._folder))


@pytest.fixture(scope="module")
def index(cluster: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """The job user's pip reads an index on this computer. It contains the wheels for the environment `cpu`."""
    made = Index(tmp_path_factory.mktemp("index"))
    download = ["pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    target = ("-d", str(made.wheels), "-r", str(FOLDER / "cpu" / LOCK))
    subprocess.run([sys.executable, "-m", *download, *_PLATFORM, *target], check=True, timeout=300)
    make_wheel(made.wheels, "alpha", script=True)
    made.publish()
    made.start()
    settings = f"[global]\\nindex-url = http://{GUEST_VIEW}:{made.port}/simple\\ntrusted-host = {GUEST_VIEW}\\n"
    cluster.yard("ssh", "--", f"mkdir -p ~/.config/pip && printf '{settings}' >~/.config/pip/pip.conf")
    yield made
    made.stop()
    cluster.yard("ssh", "--", "rm -rf ~/.config/pip", check=False)


@pytest.fixture
def lock(cluster: Project, index: Index) -> Path:
    """A lock file that contains one of this test's wheels. The file is in the copy of the checkout."""
    path = cluster.folder / "own.lock"
    path.write_text(lock_line(next(index.wheels.glob("alpha-*"))))
    return path


def path_in(done: Done) -> str:
    """Return the path that `yard env build` printed in its last line."""
    path = done.out.strip().splitlines()[-1]
    assert path.startswith("/shared/envs/"), done.out
    return path


def folders(cluster: Project) -> list[str]:
    """Return the names of all environments on the cluster, complete or not."""
    return cluster.yard(
        "ssh", "--", "cd /shared/envs && find . -mindepth 1 -maxdepth 1 -type d -printf '%f\\n'"
    ).out.split()


def test_cpu_is_built_once_and_used_on_two_nodes(cluster: Project, index: Index) -> None:
    built = cluster.yard("env", "build", "cpu", timeout=600)
    path = path_in(built)
    again = cluster.yard("env", "build", "cpu")
    assert path_in(again) == path
    job = json.loads(
        cluster.yard("submit", "--json", "--nodes", "2", "--no-code", "--env", "cpu", "--", _SHOW).out.splitlines()[-1]
    )["id"]
    cluster.yard("wait", str(job), timeout=600)
    for rank in ("0", "1"):
        log = cluster.yard("logs", str(job), "--rank", rank).out
        assert f"{path} {path}/lib/python3.13/site-packages/safetensors/__init__.py /usr/lib/python3/" in log
    assert built.seconds <= FIRST_BUILD_SECONDS
    assert again.seconds <= LATER_SECONDS
    (listed,) = [row for row in json.loads(cluster.yard("env", "ls", "--json").out) if row["name"] == "cpu"]
    assert f"/shared/envs/{listed['folder']}" == path


def test_simultaneous_builds_share_one_result(cluster: Project, lock: Path) -> None:
    command = [sys.executable, "-m", "yard", "env", "build", str(lock)]
    builds = [cluster.start(*command) for _ in range(2)]
    printed = [build.communicate(timeout=600)[0] for build in builds]
    assert [build.returncode for build in builds] == [0, 0], printed
    assert len({text.strip().splitlines()[-1] for text in printed}) == 1
    assert sum("  building /shared/envs/own-" in text for text in printed) == 1


def test_an_environment_in_use_is_not_removed(cluster: Project, lock: Path) -> None:
    path = path_in(cluster.yard("env", "build", str(lock), timeout=600))
    sent = cluster.yard("submit", "--json", "--no-code", "--env", str(lock), "--", "alpha-run; sleep 300")
    job = str(json.loads(sent.out.splitlines()[-1])["id"])
    refused = cluster.yard("env", "rm", "own", check=False)
    assert refused.code == 1
    assert f"job {job} uses environment {path.rpartition('/')[2]}" in refused.out
    cluster.yard("cancel", job)
    cluster.yard("wait", job, check=False)
    cluster.yard("env", "rm", "own")
    assert not [name for name in folders(cluster) if "own-" in name]


def test_an_unreachable_index_is_reported(cluster: Project, index: Index, lock: Path) -> None:
    index.stop()
    try:
        failed = cluster.yard("submit", "--no-code", "--env", str(lock), "--", "true", timeout=600, check=False)
    finally:
        index.start()
    assert failed.code == 1
    assert "alpha==1.0: the package index cannot be reached. Fix: set `mirrors: {pypi: URL}`" in failed.out
    assert not [name for name in folders(cluster) if "own-" in name]


def test_a_full_shared_disk_is_reported(cluster: Project, lock: Path) -> None:
    # Blocks that only root may use stay free for the services of the head.
    cluster.on("it-head", "sudo fallocate -l $(df --output=avail -B1 /shared | sed 1d) /shared/full; df /shared")
    try:
        failed = cluster.yard("env", "build", str(lock), timeout=600, check=False)
    finally:
        cluster.on("it-head", "sudo rm -f /shared/full")
    assert failed.code == 1
    assert "the shared file system is full. Fix: remove environments with `yard env rm`" in failed.out
    assert not [name for name in folders(cluster) if "own-" in name]
    cluster.yard("env", "build", str(lock), timeout=600)
