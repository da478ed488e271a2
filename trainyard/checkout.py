"""The git checkout that contains this code. A wheel installation has no checkout."""

from __future__ import annotations

import sys
from pathlib import Path

from trainyard.errors import ClusterError

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "trainyard"
"""The project's name in Pulumi.yaml."""


def exists() -> bool:
    return (ROOT / "Pulumi.yaml").is_file()


def require(command: str) -> None:
    """Add the checkout to the import path. Raises ClusterError, which names `command`, if there is no checkout."""
    if not (exists() and (ROOT / "components").is_dir()):
        raise ClusterError(
            f"`{command}` needs a checkout of trainyard, but this yard is installed without one. "
            "Fix: clone the repository, run `make setup` in it, and use the yard in that checkout"
        )
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))


def state() -> Path:
    """Return the folder of generated files: .trainyard in a checkout, otherwise ~/.yard."""
    return ROOT / ".trainyard" if exists() else Path.home() / ".yard"
