"""A Pulumi environment in which every cloud is simulated: its own plugins, backend and state, under .trainyard/offline.

Nothing of it can reach a real stack: the engine finds no other plugin, and the state of a real stack lies elsewhere.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import yaml

from tools.environment import ROOT, STATE, ToolError
from tools.stackfile import committed_text

HOME = STATE / "offline"
PLUGINS = {"azure-native": "pulumi-azure-native", "gcp": "pulumi-gcp", "command": "pulumi-command"}
"""The simulated plugins, with the SDK package whose version each says to be."""
SIMULATED = frozenset({"azure", "gcp"})
"""Platforms that an offline run can make; the others' machines are real."""


def environment(online: Mapping[str, str], home: Path = HOME) -> dict[str, str]:
    """Return the environment for an offline run, and make what it needs on disk."""
    try:
        _link_plugins(home)
        _keep_no_log(home / "pulumi-home")
        (home / "state").mkdir(parents=True, exist_ok=True)
        # `pulumi stack init` writes the salt beside the Pulumi.yaml that it runs under.
        (home / "Pulumi.yaml").write_text("name: trainyard\nruntime: python\nstackConfigDir: stacks\n")
    except OSError as error:
        raise ToolError(f"{home}: {error.strerror}; simulated clouds live there. Fix: make it writable") from error
    kept = {name: value for name, value in online.items() if name != "PULUMI_CONFIG_PASSPHRASE_FILE"}
    return {
        **kept,
        "PULUMI_HOME": str(home / "pulumi-home"),
        "PULUMI_BACKEND_URL": f"file://{home / 'state'}",
        "PULUMI_CONFIG_PASSPHRASE": "offline",  # guards nothing: no key made here opens anything
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "TRAINYARD_OFFLINE": str(home / "clouds"),
        "TRAINYARD_OFFLINE_COMMANDS": "record",
    }


def refuse_real_machines(stack: str) -> None:
    """Raise ToolError for a stack whose platform is not simulated: `up` would make real machines."""
    try:
        content = yaml.safe_load(committed_text(stack))
        provider = content["config"]["trainyard:cluster"]["platform"]["provider"]
    except (yaml.YAMLError, RecursionError, KeyError, TypeError):
        return  # the program itself says what is wrong with the file
    if provider not in SIMULATED:
        raise ToolError(
            f"stack '{stack}': --offline simulates {' and '.join(sorted(SIMULATED))}, and platform '{provider}' makes "
            "real machines. Fix: leave --offline out, or only preview"
        )


def _link_plugins(home: Path) -> None:
    """Install the simulated plugins, as the versions that the SDKs ask for, where the engine looks first."""
    for plugin, package in PLUGINS.items():
        name = f"pulumi-resource-{plugin}"
        link = home / "pulumi-home" / "plugins" / f"resource-{plugin}-v{version(package)}" / name
        target = ROOT / "offline" / "bin" / name
        if link.is_symlink() and link.readlink() == target:
            continue
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _keep_no_log(pulumi_home: Path) -> None:
    """Have the engine keep no log of its own: of a large stack's preview that is more than half of its work.

    It writes all that passes through it, compressed and encrypted, and no option ends that. It goes on without a log
    where it cannot make the folder, so a file lies in its place.
    """
    place = pulumi_home / "logs"
    if place.is_dir():
        shutil.rmtree(place)
    place.touch()
