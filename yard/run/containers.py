"""Renders the settings of a job's container: the variables that shared.sh reads, and srun's options for pyxis."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable

from yard.job.placement import Placement
from yard.job.spec import PROVIDED, SSH_PORT, Container

PASSED_ON = tuple(name for name in PROVIDED if name not in {"BUSBW_FLOOR", "ARRAY_INDEX"})
"""Variables that are set on the host and copied into the container. All others are set in the container."""
_FACTS = "/etc/trainyard"
"""The folder on a node that contains the node's settings."""


def mounts(container: Container, placement: Placement) -> tuple[str, ...]:
    """Return the mounts that all containers, NCCL's transport and the job need, as HOST:CONTAINER[:ro]."""
    shared = placement.shared_path
    of_transport = (f"{path.removesuffix(':ro')}:{path}" for path in placement.transport.mounts)
    return f"{shared}:{shared}", f"{_FACTS}:{_FACTS}:ro", *of_transport, *container.mounts


def container_lines(container: Container | None, placement: Placement, *, over_ssh: bool) -> list[str]:
    """Return the lines that set shared.sh's variables. `over_ssh` must be set if ranks are started over SSH."""
    if container is None:
        return ["readonly container_runtime=''"]
    lines = [f"readonly container_runtime={container.runtime}"]
    if container.runtime == "enroot":
        lines += _enroot(container, placement)
    if container.runtime == "docker":
        lines += _docker(container, placement, over_ssh=over_ssh)
    return lines


def pyxis_options(container: Container, placement: Placement) -> list[str]:
    """Return the container's options for srun, which does not inherit them from sbatch."""
    # The image's variables override the host's variables, except for the variables in --container-env.
    return [
        f"--container-image={shlex.quote(enroot_name(container.image))}",
        f"--container-mounts={shlex.quote(','.join(mounts(container, placement)))}",
        "--no-container-mount-home",
        # By default, the container's file system is read-only (NVIDIA/enroot at 8ea147d3, conf/enroot.conf.in,
        # ENROOT_ROOTFS_WRITABLE, read 2026-11-23). `setup` installs software there.
        "--container-writable",
        f"--container-env={','.join((*PASSED_ON, 'MELLANOX_VISIBLE_DEVICES'))}",
    ]


def enroot_name(image: str) -> str:
    """Return an image's name for enroot and pyxis, which expect '#' after the registry."""
    registry, slash, rest = image.partition("/")
    return f"{registry}#{rest}" if slash and re.search(r"[.:]", registry) and "#" not in registry else image


def _enroot(container: Container, placement: Placement) -> list[str]:
    image, uri = container.image, ""
    if not image.endswith(".sqsh"):
        uri = f"docker://{enroot_name(image)}"
        image = f"{re.sub(r'[^A-Za-z0-9.-]+', '-', image)}.sqsh"
    names = f"readonly container_file={shlex.quote(image)} container_uri={shlex.quote(uri)}"
    return [names, *_options(_enroot_mount, mounts(container, placement))]


def _docker(container: Container, placement: Placement, *, over_ssh: bool) -> list[str]:
    # The container runs as the job user, because the NFS server of the shared path maps root to nobody.
    users = ("/etc/passwd:/etc/passwd:ro", "/etc/group:/etc/group:ro")
    port = SSH_PORT if over_ssh else 0
    return [
        f"readonly container_image={shlex.quote(container.image)} container_ssh_port={port}",
        f"readonly container_gpus={'yes' if placement.real_gpus else 'no'}",
        *_options(_docker_mount, (*mounts(container, placement), *users)),
    ]


def _options(option: Callable[[str, str, bool], str], mounted: Iterable[str]) -> list[str]:
    """Return the lines that set container_options. `option` converts a mount to a value of --mount."""
    lines = ["readonly container_options=("]
    for mount in mounted:
        source, target = mount.removesuffix(":ro").split(":")
        lines.append(f"  --mount {option(source, target, mount.endswith(':ro'))}")
    return [*lines, ")"]


def _docker_mount(source: str, target: str, read_only: bool) -> str:
    # If the path does not exist on the host, --mount fails, while --volume would create a folder that belongs to root.
    return f"{shlex.quote(f'type=bind,source={source},target={target}')}{',readonly' if read_only else ''}"


def _enroot_mount(source: str, target: str, read_only: bool) -> str:
    # The value is an fstab entry with colons as separators. With "ro" but without "rbind", enroot creates no bind
    # mount and fails: NVIDIA/enroot, bin/enroot-mount.c, mount_fstab and mount_generic; read 2026-11-22.
    return f"{shlex.quote(f'{source}:{target}:none:x-create=auto,rbind')}{',ro' if read_only else ''}"
