"""The git checkout that contains this code, if yard was not installed from a wheel."""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.errors import ClusterError

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "trainyard"  # its name in Pulumi.yaml


def exists() -> bool:
    return (ROOT / "Pulumi.yaml").is_file()


def require(command: str) -> None:
    """Add the checkout to the import path. Without a checkout, raise ClusterError, because `command` needs one."""
    if not (exists() and (ROOT / "components").is_dir()):
        raise ClusterError(
            f"`{command}` needs a checkout of trainyard, but this yard is installed without one. "
            "Fix: clone the repository, run `make setup` in it, and use the yard in that checkout"
        )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))


def state() -> Path:
    """Return the folder for generated files, which is .trainyard in a checkout and otherwise ~/.yard."""
    return ROOT / ".trainyard" if exists() else Path.home() / ".yard"
