"""The direction of dependencies: left of the platforms nothing knows Pulumi, and no neutral code knows a provider."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from components.platforms import PLATFORMS

ROOT = Path(__file__).parent.parent
COMPONENTS = sorted((ROOT / "components").rglob("*.py"))
KNOWS_PULUMI = {
    "settings.py",
    "cluster.py",
    "bringup.py",
    "keys.py",
    "host_keys.py",
    "leftovers.py",
    "tunnel.py",
    "sdk_savings.py",
}
"""The stages that create things or read configuration, and what relieves the SDK; besides them, only platforms."""
ABOVE_PLATFORMS = {
    "settings",
    "cluster",
    "bringup",
    "keys",
    "host_keys",
    "leftovers",
    "tunnel",
    "checks",
    "stackfile",
    "sdk_savings",
}


def place(file: Path) -> str:
    return file.relative_to(ROOT / "components").as_posix()


@cache
def parsed(file: Path) -> ast.Module:
    """Return a file's syntax, which one test after the other looks through."""
    return ast.parse(file.read_text())


@cache
def imports(file: Path) -> tuple[str, ...]:
    """Return what a file imports when it is loaded or used, but for type checking only."""
    return tuple(_imports(file))


def _imports(file: Path) -> Iterator[str]:
    tree = parsed(file)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(file)} imports relatively; write the whole name"
            yield node.module or ""


@pytest.mark.parametrize("file", COMPONENTS, ids=place)
def test_only_creating_stages_import_pulumi(file: Path) -> None:
    of_platform = place(file).startswith("platforms/") and file.name != "__init__.py"
    if place(file) in KNOWS_PULUMI or of_platform:
        return
    assert [name for name in imports(file) if name.split(".")[0].startswith("pulumi")] == []


@pytest.mark.parametrize("file", COMPONENTS, ids=place)
def test_only_platforms_import_a_cloud(file: Path) -> None:
    if not place(file).startswith("platforms/"):
        assert [name for name in imports(file) if name.startswith(("pulumi_azure", "pulumi_gcp"))] == []


@pytest.mark.parametrize("file", [file for file in COMPONENTS if place(file).startswith("platforms/")], ids=place)
def test_a_platform_knows_nothing_above_it(file: Path) -> None:
    # What a check is may be known everywhere; the checks themselves may not.
    known = [name.removeprefix("components.") for name in imports(file) if name != "components.checks.base"]
    assert [name for name in known if name.split(".")[0] in ABOVE_PLATFORMS] == []


@pytest.mark.parametrize("file", COMPONENTS, ids=place)
def test_components_need_nothing_from_the_commands(file: Path) -> None:
    assert [name for name in imports(file) if name.split(".")[0] in {"jobs", "offline", "tools", "tests"}] == []


@pytest.mark.parametrize("file", [file for file in COMPONENTS if not place(file).startswith("platforms/")], ids=place)
def test_neutral_code_never_asks_for_a_provider_by_name(file: Path) -> None:
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Compare | ast.MatchValue):
            constants = {inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)}
            assert not constants & set(PLATFORMS), f"line {node.lineno}: decide by a fact, not by the provider"


@pytest.mark.parametrize("file", COMPONENTS, ids=place)
def test_configuration_and_exports_have_one_place_each(file: Path) -> None:
    used = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert "pulumi.export" not in used, "only __main__.py exports"
    assert place(file) == "settings.py" or "pulumi.Config" not in used, "only settings.py reads configuration"


def test_reading_and_rendering_load_no_pulumi() -> None:
    # A process of its own: in this one, other tests have loaded Pulumi already.
    modules = "components.stackfile, components.slurm, components.cloud_init, components.handover, components.outputs"
    code = f"import sys, {modules}; sys.exit(any(name.startswith('pulumi') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_engines_plugin_for_local_machines_loads_no_pydantic() -> None:
    # It starts on every preview, and people wait for it.
    code = (
        "import sys, components.platforms.local.provider; sys.exit('pydantic' in sys.modules or 'rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
