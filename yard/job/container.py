"""The container of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.errors import Problem
from yard.job.rules import list_of, one_of, section, text_like

RUNTIMES = ("pyxis", "enroot", "docker")
SSH_PORT = 2222
"""Port of sshd in containers. The host's sshd uses port 22 and would start ranks outside the container."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """A job's container. `image` has the form 'registry/name:tag' or, for pyxis and enroot, 'registry#name:tag'."""

    image: str
    runtime: str
    mounts: Sequence[str] = ()
    """Mounts as HOST:CONTAINER or HOST:CONTAINER:ro. The shared path and /etc/trainyard are always mounted."""


def _mount(value: Any) -> Iterator[Problem]:
    parts = value.removesuffix(":ro").split(":") if isinstance(value, str) else []
    # docker and pyxis use commas as separators.
    if len(parts) != 2 or not all(  # noqa: PLR2004  (host and container)
        part.startswith("/") and ".." not in part.split("/") and "," not in part for part in parts
    ):
        rule = "must be HOST:CONTAINER or HOST:CONTAINER:ro, with absolute paths and without commas"
        yield Problem(path="", rule=rule, fix="for example '/data:/data:ro'")


container_rule = section(
    {
        "image": text_like(r"[\w./:@#+-]+", "must be an image name", "for example 'nvcr.io/nvidia/pytorch:26.01-py3'"),
        "runtime": one_of(RUNTIMES),
        "mounts": list_of(_mount, "[/data:/data:ro]"),
    },
    ("image", "runtime"),
    "container: {image: 'nvcr.io/nvidia/pytorch:26.01-py3', runtime: docker}",
)
