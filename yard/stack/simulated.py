"""The Pulumi environment for simulated clouds. Plugins, backend and state are in .trainyard/offline.

Real stacks are in a different backend, so they cannot be changed. The engine finds only the simulated plugins.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from trainyard import checkout
from trainyard.errors import StackError
from yard.stack.stackfile import platform_section

HOME = checkout.state() / "offline"
PLUGINS = {"azure-native": "pulumi-azure-native", "gcp": "pulumi-gcp", "command": "pulumi-command"}
"""SDK packages by plugin. A simulated plugin has the same version as its SDK."""


def environment(online: Mapping[str, str], home: Path = HOME) -> dict[str, str]:
    """Create the folders and links for a run with simulated clouds, and return its environment variables."""
    try:
        _link_plugins(home)
        _prevent_log(home / "pulumi-home")
        (home / "state").mkdir(parents=True, exist_ok=True)
        # `pulumi stack init` writes the salt to a file in stackConfigDir.
        (home / "Pulumi.yaml").write_text("name: trainyard\nruntime: python\nstackConfigDir: stacks\n")
    except OSError as error:
        raise StackError(
            f"{home}: {error.strerror}. Simulated clouds need this folder. Fix: make it writable"
        ) from error
    kept = {name: value for name, value in online.items() if name != "PULUMI_CONFIG_PASSPHRASE_FILE"}
    return {
        **kept,
        "PULUMI_HOME": str(home / "pulumi-home"),
        "PULUMI_BACKEND_URL": f"file://{home / 'state'}?metadata=skip",  # see tools/setup/env.sh
        "PULUMI_CONFIG_PASSPHRASE": "offline",  # protects no real secret
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "TRAINYARD_OFFLINE": str(home / "clouds"),
        "TRAINYARD_OFFLINE_COMMANDS": "record",
    }


def refuse_real_machines(stack: str) -> None:
    """Raise StackError for a platform without a simulation, because `up` would create real machines."""
    provider = platform_section(stack).get("provider")
    # The Pulumi program reports an invalid stack file later.
    if provider not in {None, "azure", "gcp"}:
        raise StackError(
            f"stack '{stack}': --offline simulates azure and gcp, but platform '{provider}' uses real machines. "
            "Fix: omit --offline, or only preview"
        )


def _link_plugins(home: Path) -> None:
    """Link the simulated plugins into the engine's plugin folder."""
    for plugin, package in PLUGINS.items():
        name = f"pulumi-resource-{plugin}"
        link = home / "pulumi-home" / "plugins" / f"resource-{plugin}-v{version(package)}" / name
        target = checkout.ROOT / "offline" / "bin" / name
        if link.is_symlink() and link.readlink() == target:
            continue
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _prevent_log(pulumi_home: Path) -> None:
    """Replace the folder for the engine's logs with a file. The engine then runs without a log.

    The log contains all requests, and no option disables it. In a large preview, more than half of the time is spent on
    the log.
    """
    logs = pulumi_home / "logs"
    if logs.is_dir():
        shutil.rmtree(logs)
    logs.touch()
