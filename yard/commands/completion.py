"""Shell completion for the values of arguments and options.

Completions read only local files, because they must respond within 0.15 s. Job numbers are not completed, because
reading them needs an SSH connection.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer import Context

from trainyard import checkout

_JOB = Path(__file__).parents[1] / "job"
_JOB_FILES = {".py", ".yaml", ".yml", ".sbatch", ".slurm", ".sh"}


def stacks(incomplete: str) -> list[str]:
    """Return the names of the stack files that start with `incomplete`."""
    files = (checkout.ROOT / "stacks").glob("Pulumi.*.yaml")
    return _matching((file.stem.removeprefix("Pulumi.") for file in files), incomplete)


def recipes(incomplete: str) -> list[str]:
    """Return the names of the recipes that start with `incomplete`."""
    return _matching((file.stem for file in (_JOB / "recipes").glob("*.yaml")), incomplete)


def launchers(incomplete: str) -> list[str]:
    """Return the names of the launchers that start with `incomplete`."""
    return _matching((file.stem for file in (_JOB / "launchers").glob("*.yaml")), incomplete)


def environments(incomplete: str) -> list[str]:
    """Return the names of the included environments that start with `incomplete`."""
    folder = Path(__file__).parents[1] / "environments"
    return _matching((file.parent.name for file in folder.glob("*/environment.yaml")), incomplete)


def posts(incomplete: str) -> list[str]:
    """Return the names of the blog posts that start with `incomplete`."""
    folder = Path(__file__).parents[1] / "reproduce" / "posts"
    return _matching((file.stem for file in folder.glob("*.yaml")), incomplete)


def jobs(incomplete: str) -> list[str]:
    """Return the recipes and the job files in the current directory whose names start with `incomplete`.

    The list is empty for a path with a slash, so that the shell completes file names.
    """
    files = (path.name for path in Path().iterdir() if path.suffix in _JOB_FILES)
    return [] if "/" in incomplete else [*recipes(incomplete), *_matching(files, incomplete)]


def hosts(context: Context, incomplete: str) -> list[str]:
    """Return the hosts of the selected stack that start with `incomplete`. The list is empty without cached outputs."""
    cluster = _cached_cluster(context)
    found = [cluster["head"], *cluster["nodes"]] if cluster else []
    return _matching((host["name"] for host in found), incomplete)


def groups(context: Context, incomplete: str) -> list[str]:
    """Return the node groups of the selected stack that start with `incomplete`. The list is empty if no outputs are
    cached.
    """
    cluster = _cached_cluster(context)
    return _matching({node["group"] for node in cluster["nodes"]} if cluster else (), incomplete)


def _cached_cluster(context: Context) -> dict[str, Any] | None:
    """Return the stack's outputs from the file that yard/stack/load.py writes, or None."""
    folder = checkout.state() / "ssh" / str(context.params.get("stack")).replace("/", "-")
    try:
        cluster = json.loads((folder / "outputs.json").read_text())["cluster"]
    except (OSError, ValueError, KeyError):
        return None
    return cluster if isinstance(cluster, dict) else None


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))
