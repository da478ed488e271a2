"""The container of a job: the image, who runs it, and what of the host it sees. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jobs.rules import Broken, one_of, section, text_like

RUNTIMES = ("pyxis", "enroot", "docker")
SSH_PORT = 2222
"""Where a container's own sshd listens: on 22 is the host's, and a launcher would start the ranks outside."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """`image` as its runtime writes it: docker and enroot 'registry/name:tag', pyxis also 'registry#name:tag'."""

    image: str
    runtime: str
    mounts: tuple[str, ...] = ()
    """Of the host, HOST:CONTAINER or HOST:CONTAINER:ro; the shared path and /etc/trainyard are there anyway."""


def _mounts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Broken(("", "must be a list", "for example `[/data:/data:ro]`"))
    parts = [
        (
            f"[{index}]",
            "must be HOST:CONTAINER or HOST:CONTAINER:ro, both absolute and without a comma",
            "for example '/data:/data:ro'",
        )
        for index, item in enumerate(value)
        if not isinstance(item, str) or not _is_mount(item)
    ]
    if parts:
        raise Broken(*parts)
    return tuple(value)


_ENDS = 2


def _is_mount(text: str) -> bool:
    place, _, _ = text.rpartition(":") if text.endswith(":ro") else (text, "", "")
    parts = place.split(":")
    # docker and pyxis separate with commas.
    return len(parts) == _ENDS and all(
        part.startswith("/") and ".." not in part.split("/") and "," not in part for part in parts
    )


_KEYS = section(
    {
        "image": text_like(
            r"[\w./:@#+-]+", "must be the name of an image", "for example 'nvcr.io/nvidia/pytorch:26.01-py3'"
        ),
        "runtime": one_of(RUNTIMES),
        "mounts": _mounts,
    },
    ("image", "runtime"),
    "for example `container: {image: 'nvcr.io/nvidia/pytorch:26.01-py3', runtime: docker}`",
)


def container(value: Any) -> Container:
    """The rule of the key `container`."""
    return Container(**_KEYS(value))
