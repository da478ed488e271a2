"""The version that a plugin reports, with this project's replacement for pulumi-command."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from tests.official.reported import reported_version

ROOT = Path(__file__).parents[2]


def test_a_plugin_reports_its_version() -> None:
    program = ROOT / "offline" / "bin" / "pulumi-resource-command"
    assert reported_version(str(program)) == version("pulumi-command")
