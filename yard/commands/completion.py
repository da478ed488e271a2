"""Shell completion for the values of arguments and options.

Completions read only local files, because they must respond within 0.15 s. Job numbers are not completed, because
reading them would need SSH.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from typer import Context

from trainyard import project

_YARD = Path(__file__).parents[1]
_JOB_FILES = {".py", ".yaml", ".yml", ".sbatch", ".slurm", ".sh"}


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _stems(folder: str) -> Callable[[str], list[str]]:
    """Return a function that completes the names of the YAML files in a folder of yard/."""

    def complete(incomplete: str) -> list[str]:
        return _matching((file.stem for file in (_YARD / folder).glob("*.yaml")), incomplete)

    return complete


recipes = _stems("job/recipes")
launchers = _stems("job/launchers")
posts = _stems("reproduce/posts")


def environments(incomplete: str) -> list[str]:
    """Complete the name of an included environment."""
    files = (_YARD / "environments").glob("*/environment.yaml")
    return _matching((file.parent.name for file in files), incomplete)


def stacks(incomplete: str) -> list[str]:
    """Complete the name of a stack file."""
    files = (project.ROOT / project.stack_file("*")).parent.glob("Pulumi.*.yaml")
    return _matching((file.stem.removeprefix("Pulumi.") for file in files), incomplete)


def jobs(incomplete: str) -> list[str]:
    """Complete the name of a recipe, or of a job file in the current directory.

    A path with a slash gets no completions from yard, so that the shell completes it as a file name.
    """
    files = (path.name for path in Path().iterdir() if path.suffix in _JOB_FILES)
    return [] if "/" in incomplete else [*recipes(incomplete), *_matching(files, incomplete)]


def hosts(context: Context, incomplete: str) -> list[str]:
    """Complete the name of a host in the selected stack, if the stack's outputs are cached."""
    cluster = _cached_cluster(context)
    found = [cluster["head"], *cluster["nodes"]] if cluster else []
    return _matching((host["name"] for host in found), incomplete)


def groups(context: Context, incomplete: str) -> list[str]:
    """Complete the name of a node group in the selected stack, if the stack's outputs are cached."""
    cluster = _cached_cluster(context)
    return _matching({node["group"] for node in cluster["nodes"]} if cluster else (), incomplete)


def _cached_cluster(context: Context) -> dict[str, Any] | None:
    """Return the cluster from the outputs that yard/stack/load.py has cached, or None without cached outputs."""
    folder = project.state() / "ssh" / str(context.params.get("stack")).replace("/", "-")
    try:
        cluster = json.loads((folder / "outputs.json").read_text())["cluster"]
    except (OSError, ValueError, KeyError):
        return None
    return cluster if isinstance(cluster, dict) else None
