"""The recipe of the golden image: the files of the folder recipe/, and options of mmdebstrap."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

FOLDER = Path(__file__).parent / "recipe"
INSIDE = "/run/image-recipe"
"""Path of the recipe in the image during the build."""

SUITE = "trixie"
DISK_GIB = 5
"""Size of the root file system, a sparse file."""

ESSENTIAL_HOOKS = (
    # The kernel mounts the root disk without an initrd, so a program that does nothing replaces update-initramfs.
    'ln -s /bin/true "$1/usr/local/sbin/update-initramfs"',
    # No service may start while packages are installed.
    'printf "#!/bin/sh\\nexit 101\\n" >"$1/usr/sbin/policy-rc.d" && chmod 755 "$1/usr/sbin/policy-rc.d"',
)
DPKG_OPTIONS = (
    "force-unsafe-io",
    "force-confold",
    "force-confdef",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)
APT_OPTIONS = ('Apt::Install-Recommends "false"', 'Acquire::Languages "none"')

_HASHED_CODE = ("recipe.py", "steps.py", "kernel.py")
"""Modules whose content is part of the id, because they determine the image."""


def packages() -> tuple[str, ...]:
    """Return the names of the packages to install."""
    lines = (FOLDER / "packages.txt").read_text().splitlines()
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def image_id() -> str:
    """Return the id of the image: 16 hexadecimal digits of a hash of the recipe and the build's code."""
    digest = hashlib.sha256(recipe_tar())
    for name in _HASHED_CODE:
        digest.update((FOLDER.parent / name).read_bytes())
    return digest.hexdigest()[:16]


def recipe_tar() -> bytes:
    """Return a tar of the recipe for the root of the image: files of rootfs/ at their paths, other files in INSIDE.

    The bytes depend only on the content and the permissions of the files.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(path for path in FOLDER.rglob("*") if path.is_file()):
            relative = path.relative_to(FOLDER)
            in_rootfs = relative.parts[0] == "rootfs"
            name = Path(*relative.parts[1:]) if in_rootfs else Path(INSIDE.lstrip("/")) / relative
            entry = tarfile.TarInfo(str(name))
            content = path.read_bytes()
            entry.size = len(content)
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
