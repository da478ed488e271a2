"""The permitted imports between modules, packages and layers in this project."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from components.platforms import PLATFORMS
from tests.architecture.modules import ROOT, folder, imports, modules, nodes, package, reachable
from tests.components.platforms.recording import CONTRACTS

COMPONENTS = [name for name in modules() if package(name) == "components"]
NEUTRAL = [name for name in COMPONENTS if not name.startswith("components.platforms.")]
CREATES_RESOURCES = re.compile(
    r"components\.(stackfile\.settings|cluster\.(cluster|program|bringup|busy|leftovers|tunnel)|keys|host_keys)"
)
"""Modules outside the platform packages that import Pulumi to create resources or read configuration."""
READS_THE_SPEC = re.compile(r"components\.(spec|stackfile|plan)\..*|components\.platforms\.\w+\.rules")
"""Modules that may import the spec: the stack file, the plan, and the platforms' checks of the stack file."""
ABOVE_PLATFORMS = re.compile(r"components\.(stackfile\..*|cluster\..*|keys|host_keys)")

SENT_ALONE = (
    "trainyard.relay",
    "yard.environments.build",
    *(f"yard.run.{name}" for name in ("dataset", "flight", "goodput", "query", "supervisor")),
    *(name for name in modules() if name.startswith("yard.run.runner")),
)
"""Programs that run without the project: on a host with Python 3.10, or for ssh."""
NEEDS_A_PROJECT = "yard.preview.rehearsal"
"""The only module with the plan that commands on a cluster import, after `project.require`."""
ENTRY_POINT = "trainyard.program"
"""The Pulumi program's entry point, which no module imports. It may import packages above its own."""


def run_python(code: str) -> str:
    """Run code in a new process, because other tests have already imported many modules. Return its output."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


def test_no_module_imports_itself_through_others() -> None:
    assert [module for module in modules() if module in reachable(module)] == []


def test_no_two_packages_import_each_other() -> None:
    # No module imports an entry point, so an entry point may be in the package below its imports.
    importers = [name for name in modules() if not name.endswith("__main__") and name != ENTRY_POINT]
    found = {(folder(name), folder(other)) for name in importers for other in imports(name) & modules().keys()}
    assert {(one, other) for one, other in found if one < other and (other, one) in found} == set()


@pytest.mark.parametrize(
    ("layer", "above"),
    [
        ("trainyard", {"components", "yard", "tools", "offline", "tests"}),
        ("components", {"yard", "tools", "offline", "tests"}),
        ("yard", {"tools", "offline", "tests"}),
    ],
)
def test_a_layer_imports_no_layer_above_it(layer: str, above: set[str]) -> None:
    members = [module for module in modules() if package(module) == layer and module != ENTRY_POINT]
    found = {(module, name) for module in members for name in imports(module)}
    assert {(module, name) for module, name in found if package(name) in above} == set()


def test_only_creating_modules_import_pulumi() -> None:
    found = {(module, name) for module in NEUTRAL for name in imports(module) if package(name).startswith("pulumi")}
    assert {(module, name) for module, name in found if not CREATES_RESOURCES.fullmatch(module)} == set()
    assert {(module, name) for module, name in found if name.startswith(("pulumi_azure", "pulumi_gcp"))} == set()


def test_nothing_after_the_plan_imports_the_spec() -> None:
    readers = [name for name in modules() if "components.spec.cluster" in imports(name)]
    assert [name for name in readers if not READS_THE_SPEC.fullmatch(name)] == []


def test_a_platform_imports_no_layer_above_it() -> None:
    platforms = [name for name in COMPONENTS if name not in NEUTRAL]
    found = {(module, name) for module in platforms for name in imports(module)}
    assert {(module, name) for module, name in found if ABOVE_PLATFORMS.fullmatch(name)} == set()


def test_neutral_code_does_not_compare_provider_names() -> None:
    for module in NEUTRAL:
        for node in nodes(module):
            if isinstance(node, ast.Compare | ast.MatchValue):
                constants = {inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)}
                assert not constants & set(PLATFORMS), f"{module}:{node.lineno}: use a fact instead of the name"


def test_one_module_reads_configuration_and_one_exports() -> None:
    used = {
        (module, f"{node.value.id}.{node.attr}")
        for module in COMPONENTS
        for node in nodes(module)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert {module for module, name in used if name == "pulumi.export"} == {"components.cluster.program"}
    assert {module for module, name in used if name == "pulumi.Config"} == {"components.stackfile.settings"}


@pytest.mark.parametrize("module", SENT_ALONE)
def test_programs_that_run_alone_need_only_python(module: str) -> None:
    ast.parse(modules()[module].read_text(), feature_version=(3, 10))
    own = {name for name in imports(module) if name.startswith("yard.run.runner")}
    assert {name for name in imports(module) - own if package(name) not in sys.stdlib_module_names} == set()


@pytest.mark.parametrize("command", ["jobs", "results", "cluster", "training"])
def test_commands_on_a_cluster_do_not_import_components(command: str) -> None:
    found = reachable(f"yard.commands.{command}", NEEDS_A_PROJECT)
    assert len(found) > 5
    assert [name for name in found if package(name) == "components"] == []


def test_the_rehearsal_is_imported_after_the_check_for_a_project() -> None:
    users = [name for name in modules() if NEEDS_A_PROJECT in imports(name)]
    assert users == ["yard.commands.jobs"]
    lines = modules()[users[0]].read_text().splitlines()
    required = next(at for at, line in enumerate(lines) if "project.require(" in line)
    assert required < next(at for at, line in enumerate(lines) if f"from {NEEDS_A_PROJECT} import" in line)


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        (
            ("components.stackfile.read", *(f"components.node.{name}" for name in ("slurm", "user_data", "handover"))),
            ("pulumi",),
        ),
        (("components.platforms.local.provider",), ("pydantic", "rich")),
        (("yard.commands.cli",), ("pulumi", "pydantic", "rich", "yaml")),
        (
            ("trainyard.outputs", "yard.run.jobs", "yard.run.submit", "yard.stack.remote"),
            ("pulumi", "pydantic", "rich"),
        ),
    ],
)
def test_a_module_does_not_import_slow_packages(imported: tuple[str, ...], absent: tuple[str, ...]) -> None:
    assert run_python(f"import sys, {', '.join(imported)}; print(*(set({absent!r}) & sys.modules.keys()))") == "\n"


def test_reading_a_stack_file_imports_no_sdk() -> None:
    code = (
        "import sys; from pathlib import Path; from components.stackfile.read import read_stack\n"
        f"for stack in {[CONTRACTS[provider].stack for provider in sorted(PLATFORMS)]}:\n"
        "    read_stack(Path(f'stacks/Pulumi.{stack}.yaml'))\n"
        "print(*sorted(name for name in sys.modules if name.partition('.')[0].startswith(('pulumi', 'grpc'))))"
    )
    assert run_python(code) == "\n"
