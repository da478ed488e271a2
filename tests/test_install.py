"""The install script: what it writes when it is run, and what it cannot carry."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from components.catalog import fabrics
from components.cloud_init import install_script
from components.errors import CatalogError
from components.install import NodeFile, files_for, render_install, shipped_files
from components.plan import ClusterPlan

ROOT = Path(__file__).parent.parent
FILES = ROOT / "cloud-init" / "files"
SHIPPED = sorted(path for path in FILES.rglob("*") if path.is_file())


def shipped(path: Path) -> str:
    return path.relative_to(FILES).as_posix()


def run(files: Iterable[NodeFile], root: Path) -> str:
    """Render and run a script for the files, each moved below `root`. Returns what it asked systemctl for."""
    (root / "bin").mkdir(parents=True)
    shim = root / "bin" / "systemctl"
    shim.write_text(f'#!/bin/sh\necho "$@" >>{root}/asked\n')
    shim.chmod(0o755)
    script = render_install(replace(file, path=f"{root}{file.path}") for file in files)
    path = f"{root / 'bin'}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", script], check=True, env={"PATH": path}, timeout=30)
    return (root / "asked").read_text()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the shipped files were installed."""
    root = tmp_path_factory.mktemp("node")
    assert run(shipped_files(), root) == "start --no-block trainyard-bootstrap.service\n"
    return root


@pytest.mark.parametrize("path", SHIPPED, ids=shipped)
def test_a_shipped_file_arrives_as_it_is(path: Path, installed: Path) -> None:
    arrived = installed / shipped(path)
    assert arrived.read_bytes() == path.read_bytes()
    assert arrived.stat().st_mode & 0o777 == (0o755 if os.access(path, os.X_OK) else 0o644)


@pytest.mark.parametrize("path", SHIPPED, ids=shipped)
def test_a_shipped_file_can_be_read_by_people_and_carried(path: Path) -> None:
    text = path.read_text()
    assert "\t" not in text
    assert not re.search(r" $", text, re.MULTILINE)
    assert text.isascii()


def test_a_node_gets_its_own_files_and_the_shipped_ones(local_plan: ClusterPlan) -> None:
    script = install_script(local_plan, local_plan.workers[0])
    paths = re.findall(r"^=== (/.*)$", script, flags=re.MULTILINE)
    common = [f"/{shipped(path)}" for path in SHIPPED if "\n# fabrics: " not in path.read_text()]
    assert paths == ["/etc/trainyard/node.env", "/etc/trainyard/fabric.env", *common]


def test_a_program_is_executable_and_nothing_else_is() -> None:
    for file in shipped_files():
        assert file.text.startswith("#!") == file.executable, file.path


def test_an_empty_file_and_dollars_and_backslashes_survive(tmp_path: Path) -> None:
    odd = 'a $HOME `date` \\n "quoted" %s\n'
    files = [NodeFile("/x/empty", ""), NodeFile("/x/odd", odd), NodeFile("/x/run", "#!/bin/sh\n", executable=True)]
    run(files, tmp_path)
    assert (tmp_path / "x/empty").read_text() == ""
    assert (tmp_path / "x/odd").read_text() == odd


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/x", "no newline at the end"),
        ("/x", "a\nEND-OF-FILES\nb\n"),
        ("/x", "a\n=== /etc/passwd\n"),
        ("relative", "a\n"),
        ("/with space", "a\n"),
        ("/a$b", "a\n"),
    ],
)
def test_what_would_tear_the_script_is_refused(path: str, text: str) -> None:
    with pytest.raises(CatalogError, match="cannot carry"):
        render_install([NodeFile(path, text)])


def test_a_file_for_some_fabrics_goes_to_their_nodes_only() -> None:
    some = NodeFile("/a", "# fabrics: gvnic gpudirect-gib\n")
    assert some.suits("gpudirect-gib", "none")
    assert not some.suits("gpudirect", "docker")
    assert NodeFile("/a", "echo '# fabrics: x'\n").suits("ethernet", "none")
    kept = [file.path for file in shipped_files() if not file.suits("ethernet", "none")]
    own = {"packages.sh", "42-cards", "44-containers", "45-transport"}
    assert {path.rpartition("/")[2] for path in kept} >= own


@pytest.mark.parametrize("containers", ["none", "docker", "enroot"])
@pytest.mark.parametrize("fabric", fabrics())
def test_a_node_has_every_file_that_its_stages_source(fabric: str, containers: str) -> None:
    texts = {file.path: file.text for file in files_for(fabric, containers)}
    for path, text in texts.items():
        sourced = re.findall(r"^source (/usr/local/lib/trainyard/\S+)$", text, re.MULTILINE)
        assert texts.keys() >= set(sourced), path


def test_a_file_for_containers_goes_to_stacks_that_name_them() -> None:
    some = NodeFile("/a", "# fabrics: gpudirect-tcpx\n# containers: docker enroot\n")
    assert some.suits("ethernet", "docker")
    assert some.suits("gpudirect-tcpx", "none")
    assert not some.suits("ethernet", "none")
