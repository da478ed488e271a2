"""A copy of the tracked files, in which commands run as in a new shell with the Pulumi CLI and simulated clouds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.conftest import ROOT
from yard.stack.workspace import PLUGINS

_VENV = Path(sys.executable).parents[1]
_KEPT = re.compile(r"PATH|LANG|TMPDIR|USER|PYTHONDONTWRITEBYTECODE")
"""Environment variables that the commands inherit. Variables of Pulumi, Trainyard and virtual environments are not set,
as in a new shell."""
_SECONDS = 500
_PULUMI = """#!/bin/bash
case $1 in
  install) exec ln -sfn '{venv}' .venv ;;
  up) set -- "$@" --yes --skip-preview ;;
esac
exec {pulumi} "$@"
"""
"""`pulumi install` downloads packages and plugins. Here, it links those that set-up has installed. `up` asks no
question.
"""


def commands(page: Path, name: str) -> str:
    """Return the commands after the mark `<!-- commands: NAME -->` on a page."""
    found = re.search(rf"<!-- commands: {re.escape(name)} -->\n```\n(.*?)```", page.read_text(), re.DOTALL)
    assert found, f"{page} has no commands with the mark {name}"
    return found[1]


class PlainClone:
    """The copy, and the home folder of its user."""

    def __init__(self, folder: Path) -> None:
        self.root, self.home, programs = folder / "clone", folder / "home", folder / "programs"
        self._copy_tracked_files()
        pulumi = shutil.which("pulumi")
        assert pulumi
        programs.mkdir()
        (programs / "pulumi").write_text(_PULUMI.format(pulumi=pulumi, venv=_VENV))
        (programs / "pulumi").chmod(0o755)
        for plugin, package in PLUGINS.items():
            at = self.home / ".pulumi" / "plugins" / f"resource-{plugin}-v{version(package)}"
            at.mkdir(parents=True)
            (at / f"pulumi-resource-{plugin}").symlink_to(self.root / "offline" / "bin" / f"pulumi-resource-{plugin}")
        simulated = self.root / "offline" / "programs"
        self._shell = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)} | {
            # A CLI built by set-up starts the first python3 on PATH. The official CLI starts the Python in .venv.
            "PATH": ":".join(
                map(str, (programs, simulated / "recorded", simulated, _VENV / "bin", os.environ["PATH"]))
            ),
            "HOME": str(self.home),
            "PULUMI_HOME": str(self.home / ".pulumi"),
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "TRAINYARD_OFFLINE": str(self.home / "clouds"),
            "TRAINYARD_OFFLINE_COMMANDS": "record",
        }

    def resources(self, stack: str) -> list[Path]:
        """Return the files of the resources in the simulated cloud of a stack."""
        return sorted((self.home / "clouds" / stack / "resources").iterdir())

    def run(self, script: str, **variables: str) -> str:
        """Run a script in the copy and return its standard output. A failing command fails the test."""
        done = subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", script],
            cwd=self.root,
            env=self._shell | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def changed(self) -> list[str]:
        """Return the paths of the stack files in the copy that differ from the original."""
        files = [*ROOT.glob("stacks/*.yaml"), *ROOT.glob("examples/*/stacks/*.yaml")]
        names = [str(file.relative_to(ROOT)) for file in files]
        return [name for name in names if (self.root / name).read_bytes() != (ROOT / name).read_bytes()]

    def _copy_tracked_files(self) -> None:
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.root / name)
