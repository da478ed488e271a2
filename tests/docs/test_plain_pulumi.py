"""The commands in docs/pulumi.md run in a copy of the tracked files, without `make setup`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from yard.stack.simulated import PLUGINS
from yard.stack.stackfile import added_keys

PAGE = (ROOT / "docs" / "pulumi.md").read_text()
KEPT = re.compile(r"PATH|LANG|TMPDIR|USER|PYTHONDONTWRITEBYTECODE")
"""Variables of a new shell. It has no variable of Pulumi, Trainyard or a virtual environment."""


def commands(name: str) -> str:
    """Return the commands after a mark on the page."""
    found = re.search(rf"<!-- commands: {name} -->\n```\n(.*?)```", PAGE, re.DOTALL)
    assert found, f"docs/pulumi.md has no commands with the mark {name}"
    return found[1]


def copy_tracked_files(folder: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def test_versions_on_the_page_are_current() -> None:
    for plugin, package in PLUGINS.items():
        assert f"| plugin {plugin} | {version(package)} |" in PAGE
    wanted = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["requiredPulumiVersion"]
    assert f"| {wanted.removeprefix('>=')} or newer |" in PAGE


@pytest.mark.engine
def test_a_clone_is_deployed_with_the_cli_alone(tmp_path: Path) -> None:
    clone, home, programs = tmp_path / "clone", tmp_path / "home", tmp_path / "programs"
    copy_tracked_files(clone)
    pulumi = shutil.which("pulumi")
    assert pulumi
    # `pulumi install` downloads packages and plugins. Here it links the ones that set-up has installed.
    programs.mkdir()
    (programs / "pulumi").write_text(
        f"#!/bin/bash\n[[ $1 == install ]] || exec {pulumi} \"$@\"\nln -s '{Path(sys.executable).parents[1]}' .venv\n"
    )
    (programs / "pulumi").chmod(0o755)
    for plugin, package in PLUGINS.items():
        folder = home / ".pulumi" / "plugins" / f"resource-{plugin}-v{version(package)}"
        folder.mkdir(parents=True)
        (folder / f"pulumi-resource-{plugin}").symlink_to(clone / "offline" / "bin" / f"pulumi-resource-{plugin}")
    shell = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)} | {
        # A CLI that set-up has built starts the first python3 on PATH. The official CLI starts the one in .venv.
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "PULUMI_HOME": str(home / ".pulumi"),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_SKIP_CONFIRMATIONS": "true",
        "TRAINYARD_OFFLINE": str(home / "clouds"),
        "TRAINYARD_OFFLINE_COMMANDS": "record",
    }
    done = subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", commands("plain-pulumi")],
        cwd=clone, env=shell, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "opt-gpu-0 slots=8\nopt-gpu-1 slots=8\n" in done.stdout
    assert list((home / "clouds" / "azure-a100" / "resources").iterdir())
    # The page states which keys Pulumi adds to the stack file.
    assert list(added_keys((clone / "stacks" / "Pulumi.azure-a100.yaml").read_text())) == ["encryptionsalt"]
    assert "`encryptionsalt`" in PAGE
