"""A Python environment on the local cluster, with a package index on this computer."""

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
from tests.yard.environments.test_build import make_wheel
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
        for wheel in self.wheels.glob("*.whl"):
            page = self._folder / "simple" / wheel.name.split("-")[0].replace("_", "-") / "index.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(f'<a href="/wheels/{wheel.name}">{wheel.name}</a>')

    def handler(self) -> Callable[..., SimpleHTTPRequestHandler]:
        return partial(SimpleHTTPRequestHandler, directory=str(self._folder))


@pytest.fixture(scope="module")
def index(cluster: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """The job user's pip reads an index on this computer. It contains the wheels for the environment `cpu`."""
    made = Index(tmp_path_factory.mktemp("index"))
    download = ["pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    target = ("-d", str(made.wheels), "-r", str(FOLDER / "cpu" / LOCK))
    subprocess.run([sys.executable, "-m", *download, *_PLATFORM, *target], check=True, timeout=300)
    made.publish()
    made.start()
    settings = f"[global]\\nindex-url = http://{GUEST_VIEW}:{made.port}/simple\\ntrusted-host = {GUEST_VIEW}\\n"
    cluster.yard("ssh", "--", f"mkdir -p ~/.config/pip && printf '{settings}' >~/.config/pip/pip.conf")
    yield made
    made.stop()
    cluster.yard("ssh", "--", "rm -rf ~/.config/pip", check=False)


def path_in(done: Done) -> str:
    path = done.out.strip().splitlines()[-1]
    assert path.startswith("/shared/envs/"), done.out
    return path


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


def test_a_package_is_added_without_an_index(cluster: Project) -> None:
    """The package is added to the nodes' own Python, with the distribution's torch."""
    wheel = make_wheel(cluster.folder, "tiny", script=True)
    show = "python3 -c 'import tiny, torch; print(tiny.__file__, torch.__file__)'; tiny-run"
    words = ("--nodes", "2", "--no-code", "--with", f"./{wheel.name}", "--", show)
    job = cluster.submit(*words)["id"]
    cluster.yard("wait", str(job), timeout=600)
    (listed,) = [row for row in json.loads(cluster.yard("env", "ls", "--json").out) if row["name"] == "python-plus"]
    for rank in ("0", "1"):
        log = cluster.yard("logs", str(job), "--rank", rank).out
        assert f"/shared/envs/{listed['folder']}/lib/python3.13/site-packages/tiny.py /usr/lib/python3/" in log
        assert "tiny 1.0" in log
    # The same package is found, and not sent again.
    assert "building environment" not in cluster.yard("submit", *words).out
