"""The Pulumi project in which this process runs, and the files that are installed with this code."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from trainyard.errors import ClusterError

CODE = Path(__file__).resolve().parents[1]
"""The folder with the packages: the root of a checkout, or site-packages."""


def installed(path: str) -> Path:
    """Return a file or folder of this code. `path` is its path in the repository.

    The wheel contains the folders `cloud-init` and `stacks` in the package trainyard (setup.py).
    """
    inside = Path(__file__).parent / path
    return inside if inside.exists() else CODE / path


def is_checkout() -> bool:
    """Return whether this code runs from a checkout, and not from a wheel."""
    return (CODE / "pyproject.toml").is_file()


def _nearest() -> Path:
    """Return the nearest folder with a Pulumi.yaml, from the current folder upwards, as Pulumi does.

    Outside all projects, it is the checkout of this code or, without a checkout, the current folder.
    """
    here = Path.cwd()
    found = (folder for folder in (here, *here.parents) if (folder / "Pulumi.yaml").is_file())
    return next(found, CODE if is_checkout() else here)


ROOT = _nearest()
"""The project's folder."""


def exists() -> bool:
    """Return whether this process runs in a project."""
    return (ROOT / "Pulumi.yaml").is_file()


def require(command: str) -> None:
    """Raise ClusterError outside a project."""
    if not exists():
        raise ClusterError(
            f"`{command}` needs a Pulumi project, but neither {ROOT} nor a folder above it contains a Pulumi.yaml. "
            "Fix: run it in the folder of your project, or create a project with `yard new NAME`"
        )


def state() -> Path:
    """Return the folder for generated files, which is .trainyard in a project and otherwise ~/.yard."""
    return ROOT / ".trainyard" if exists() else Path.home() / ".yard"


def name() -> str:
    """Return the project's name in Pulumi.yaml."""
    return _setting("name") or "trainyard"


def stack_file(stack: str) -> str:
    """Return the path of a stack file in the project, for example stacks/Pulumi.local.yaml."""
    return str(PurePosixPath(_setting("stackConfigDir")) / f"Pulumi.{stack}.yaml")


def _setting(key: str) -> str:
    """Return a top-level value in Pulumi.yaml, or "". A YAML parser would take a third of the start time of yard."""
    try:
        text = (ROOT / "Pulumi.yaml").read_text()
    except OSError:
        return ""
    found = re.search(rf"(?m)^{key}:[ \t]*[\"']?([^\"'#\s]+)", text)
    return found[1] if found else ""
