"""The steps of a build: install the packages in a folder, extract the kernel, and create the disk."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from pathlib import Path

from components.platforms.local.image import recipe
from components.platforms.local.image.archive import Archive
from components.platforms.local.image.kernel import vmlinux
from components.platforms.local.image.privilege import Privilege
from components.platforms.local.image.progress import BuildProgress
from components.platforms.local.image.tool import run_tool
from trainyard.errors import PlatformError

_SPACE_GIB = 6
"""Free space for a build. The folder, the raw disk and the qcow2 disk need 1.6 GiB each (measured)."""


def build(work: Path, archive: Archive, rights: Privilege, progress: BuildProgress) -> None:
    """Create gold.qcow2, vmlinux and manifest.json in the empty folder `work`. Raises PlatformError if a tool fails."""
    _check_space(work)
    begin = time.monotonic()
    tree = work / "root"
    (work / "recipe.tar").write_bytes(recipe.recipe_tar())
    work.chmod(0o755)  # in a user namespace, another user reads it
    run_tool(install_command(tree, work / "recipe.tar", archive, rights), progress)
    progress.phase("extract the kernel")
    (work / "vmlinux").write_bytes(vmlinux(_kernel(tree).read_bytes()))
    versions = run_tool([*rights.prefix, "chroot", str(tree), "dpkg-query", "-W"])
    progress.phase("create the disk")
    raw = work / "gold.raw"
    raw.touch()
    # In a user namespace, another user writes the file.
    raw.chmod(0o666 if rights.prefix else 0o600)
    os.truncate(raw, recipe.DISK_GIB << 30)
    run_tool([*rights.prefix, "mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", str(tree), str(raw)])
    run_tool(["qemu-img", "convert", "-O", "qcow2", str(raw), str(work / "gold.qcow2")])
    manifest = {
        "recipe": recipe.image_id(),
        "suite": recipe.SUITE,
        "built_with": rights.why,
        "seconds": round(time.monotonic() - begin),
        "packages": dict(line.split("\t") for line in versions.splitlines()),
    }
    (work / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    progress.phase("delete temporary files")
    raw.unlink()
    (work / "recipe.tar").unlink()
    remove_tree(tree, rights)


def install_command(tree: Path, recipe_tar: Path, archive: Archive, rights: Privilege) -> list[str]:
    """Return the mmdebstrap command that creates the root file system of the image in `tree`."""
    command = [*rights.installer, "mmdebstrap", f"--mode={rights.mode}", "--variant=minbase", "--format=directory"]
    command += [f"--aptopt={option}" for option in (*archive.options, *recipe.APT_OPTIONS)]
    command += [f"--dpkgopt={option}" for option in recipe.DPKG_OPTIONS]
    command += [f"--essential-hook={hook}" for hook in recipe.ESSENTIAL_HOOKS]
    command += [
        f"--customize-hook=tar-in {shlex.quote(str(recipe_tar))} /",
        f'--customize-hook=chroot "$1" {recipe.INSIDE}/customise',
        f'--customize-hook=rm -rf "$1{recipe.INSIDE}"',
        f"--include={','.join(recipe.packages())}",
    ]
    return [*command, recipe.SUITE, str(tree), *archive.sources(recipe.SUITE)]


def remove_tree(tree: Path, rights: Privilege) -> None:
    """Remove a folder with files of other users. Raises PlatformError if a file system is mounted in it."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = [mount for mount in mounts if mount.startswith(f"{tree}/")]
    if below:
        raise PlatformError(f"golden image: {below[0]} is still mounted. Fix: unmount it, then remove {tree}")
    subprocess.run([*rights.prefix, "rm", "-rf", "--one-file-system", str(tree)], check=False, capture_output=True)


def _check_space(work: Path) -> None:
    free = os.statvfs(work).f_bavail * os.statvfs(work).f_frsize >> 30
    if free < _SPACE_GIB:
        raise PlatformError(
            f"golden image: {work.parent} has {free} GiB of free space, and the build needs {_SPACE_GIB}. "
            "Fix: free some space, or set TRAINYARD_CACHE to a folder on a larger disk"
        )


def _kernel(tree: Path) -> Path:
    kernels = sorted((tree / "boot").glob("vmlinuz-*"))
    if len(kernels) != 1:
        raise PlatformError(f"golden image: expected one kernel in /boot, found {len(kernels)}")
    return kernels[0]
