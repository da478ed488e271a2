"""The install script: files that it writes, and files that it rejects."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import pytest

from components.catalog import fabrics
from components.node.files import NodeFile, files_for, shipped_files
from components.node.install import BIRTH, render_install
from components.node.parameters import birth_env, kind_env
from components.node.user_data import install_script
from components.plan.plan import ClusterPlan
from trainyard.errors import CatalogError

ROOT = Path(__file__).parents[3]
FILES = ROOT / "cloud-init" / "files"
SHIPPED = sorted(path for path in FILES.rglob("*") if path.is_file() and path.parent.name != "__pycache__")


def run(files: Iterable[NodeFile], root: Path) -> str:
    """Run the install script with all paths relative to `root`. Return the arguments of its systemctl calls."""
    (root / "bin").mkdir(parents=True)
    shim = root / "bin" / "systemctl"
    shim.write_text(f'#!/bin/sh\necho "$@" >>{root}/systemctl-args\n')
    shim.chmod(0o755)
    for folder in ("usr/local/lib", "usr/local/sbin", "etc/systemd/system/multi-user.target.wants"):
        (root / folder).mkdir(parents=True)
    script = render_install(files)
    moved = re.sub(r"(?<![\w.}\"/])/(etc|usr/local|var/lib)/", rf"{root}/\1/", script)
    path = f"{root / 'bin'}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", moved], check=True, env={"PATH": path}, timeout=30)
    return (root / "systemctl-args").read_text()


def birth_files(plan: ClusterPlan) -> list[NodeFile]:
    """Return the files of the head's user-data."""
    script = install_script(plan, plan.head)
    _, _, rest = script.partition("\n=== ")
    body, _, _ = rest.partition("END-OF-FILES\nchmod")
    pairs = [part.split("\n", 1) for part in re.split(r"^=== (?=/)", body, flags=re.MULTILINE)]
    return [NodeFile(path, text, text.startswith("#!")) for path, text in pairs]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, local_plan: ClusterPlan) -> Path:
    """A folder with the installed files of user-data."""
    root = tmp_path_factory.mktemp("node")
    units = "show -p NeedDaemonReload --value trainyard-bootstrap.service\n"
    assert run(birth_files(local_plan), root) == f"{units}start --no-block trainyard-bootstrap.service\n"
    return root


def test_birth_is_the_active_bundle(installed: Path) -> None:
    library = installed / "usr/local/lib/trainyard"
    assert library.readlink() == installed / "var/lib/trainyard/bundles/birth"
    assert (library / "kinds/head/stages").read_text() == "10-base\n15-archive\n20-apt\n30-driver\n"
    assert {path.name for path in (library / "stages").iterdir()} == {"10-base", "15-archive", "20-apt", "30-driver"}


def test_programs_and_units_are_placed(installed: Path, local_plan: ClusterPlan) -> None:
    library = installed / "usr/local/lib/trainyard"
    for name in ("trainyard-allow-format", "trainyard-receive", "trainyard-status"):
        program = installed / "usr/local/sbin" / name
        assert program.resolve() == (library / "sbin" / name).resolve()
        assert program.stat().st_mode & 0o777 == 0o755
    unit = installed / "etc/systemd/system/trainyard-bootstrap.service"
    assert unit.read_text() == (library / "units" / unit.name).read_text()
    # Only the bundle contains the storage parameters.
    text = (installed / "etc/trainyard/node.env").read_text()
    assert text == birth_env(local_plan, local_plan.head) + kind_env(local_plan, local_plan.head)


def test_the_bring_up_starts_again_after_a_crash(installed: Path, local_plan: ClusterPlan) -> None:
    units = installed / "etc/systemd/system"
    link = units / "multi-user.target.wants/trainyard-bootstrap.service"
    assert link.readlink() == units / link.name
    # The files are on the disk before the bring-up starts.
    assert "\nsync -f /etc/systemd/system\nsystemctl start " in install_script(local_plan, local_plan.head)


def test_shipped_files_have_no_comments() -> None:
    for file in shipped_files():
        original = (FILES / file.path.lstrip("/")).read_text()
        kept = [
            line
            for line in original.splitlines()
            if not re.match(r" *# (?!(?:runs|inputs|fabrics|containers|drivers|next to jobs): )", line)
        ]
        assert file.text.splitlines() == kept, file.path
        if file.text.startswith("#!/usr/bin/env bash") or file.stage:
            subprocess.run(["bash", "-n"], input=file.text, text=True, check=True)


def test_every_stage_states_whether_it_runs_next_to_jobs() -> None:
    for file in shipped_files():
        if file.stage:
            assert len(re.findall(r"^# next to jobs: (?:yes|no)$", file.text, re.MULTILINE)) == 1, file.path
            assert len(re.findall(r"^# runs: (?:once|every boot|every pass)$", file.text, re.MULTILINE)) == 1, file.path


def test_shipped_files_are_ascii_without_tabs() -> None:
    for path in SHIPPED:
        text = path.read_text()
        assert "\t" not in text, path
        assert not re.search(r" $", text, re.MULTILINE), path
        assert text.isascii(), path


def test_only_programs_are_executable() -> None:
    for file in shipped_files():
        assert file.text.startswith("#!") == file.executable, file.path


def test_keeps_empty_files_and_special_characters(tmp_path: Path) -> None:
    odd = 'a $HOME `date` \\n "quoted" %s\n'
    place = NodeFile(f"{BIRTH}/place", "#!/bin/sh\n", executable=True)
    run([NodeFile("/etc/x/empty", ""), NodeFile("/etc/x/odd", odd), place], tmp_path)
    assert (tmp_path / "etc/x/empty").read_text() == ""
    assert (tmp_path / "etc/x/odd").read_text() == odd


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
def test_refuses_files_that_would_break_the_script(path: str, text: str) -> None:
    with pytest.raises(CatalogError, match="cannot contain"):
        render_install([NodeFile(path, text)])


def test_selects_files_by_fabric() -> None:
    some = NodeFile("/a", "# fabrics: gvnic gpudirect-gib\n")
    assert some.is_needed("gpudirect-gib", "none")
    assert not some.is_needed("gpudirect", "docker")
    assert NodeFile("/a", "echo '# fabrics: x'\n").is_needed("ethernet", "none")
    kept = [file.path for file in shipped_files() if not file.is_needed("ethernet", "none")]
    own = {"packages.sh", "driver.sh", "42-cards", "44-containers", "45-transport"}
    assert {path.rpartition("/")[2] for path in kept} >= own


def test_contains_all_files_that_stages_source() -> None:
    for choice in product(fabrics(), ["none", "docker", "enroot"], ["image", "install"]):
        texts = {file.path: file.text for file in files_for(*choice)}
        for path, text in texts.items():
            sourced = re.findall(r"^source (/usr/local/lib/trainyard/\S+)$", text, re.MULTILINE)
            assert texts.keys() >= set(sourced), (choice, path)


def test_selects_files_by_container_runtime() -> None:
    some = NodeFile("/a", "# fabrics: gpudirect-tcpx\n# containers: docker enroot\n")
    assert some.is_needed("ethernet", "docker")
    assert some.is_needed("gpudirect-tcpx", "none")
    assert not some.is_needed("ethernet", "none")
