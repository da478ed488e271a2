"""Builds the golden image: a disk with Debian or Ubuntu and its kernel, which local machines share."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from components.platforms.local.process import run_program
from trainyard.errors import PlatformError


class BuildProgress:
    """Context manager that prints each phase of a build with the time since its start."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._begin = time.monotonic()

    def phase(self, text: str) -> None:
        sys.stderr.write(f"{self._title}: {time.monotonic() - self._begin:4.0f} s  {text}\n")
        sys.stderr.flush()

    def __enter__(self) -> BuildProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.phase("done" if kind is None else "failed")


INSIDE = "/run/image-recipe"
"""Path of the recipes in the image during the build."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """What an image depends on besides the recipe's folders. All kernels have the root disk's driver built in."""

    distribution: str
    """The ID in the distribution's os-release, and the origin of its archive in lower case."""
    components: str = "main"
    root: str = "nvme0n1"
    """The kernel's name of the root disk, an NVMe or a virtio disk."""
    security: str = "capability"
    """The kernel's security modules, separated by commas."""


RELEASES: Mapping[str, Release] = {
    "trixie": Release(distribution="debian"),
    # Ubuntu's kernel 6.8 has virtio disks built in, NVMe as a module, PVH and a payload compressed with zstd. Source:
    # debian.master/config/annotations of linux 6.8.0-86.86 (particle-iot/tachyon-ubuntu-24.04-kernel at 28ce79f0, read
    # 2026-11-28). AppArmor restricts user namespaces with a setting that Debian's kernel 6.12.118 does not have.
    "noble": Release(distribution="ubuntu", components="main universe", root="vda", security="capability,apparmor"),
}
DEFAULT_SUITE = "trixie"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The content of an image. Each folder has packages.txt, rootfs/ and customise.

    In a folder's .txt files, a line is an entry for all suites, or an entry and the suites that it is limited to.
    """

    name: str = "golden"
    suite: str = DEFAULT_SUITE
    folders: tuple[Path, ...] = (Path(__file__).parent / "recipe",)
    """The golden image's folder is the last one, because its customise removes what only a build needs."""

    @property
    def release(self) -> Release:
        """The suite's release. Raises PlatformError if it is unknown."""
        if self.suite not in RELEASES:
            raise PlatformError(f"{self.name} image: unknown suite '{self.suite}'. Fix: use {', '.join(RELEASES)}")
        return RELEASES[self.suite]


GOLDEN = Recipe()
DISK_GIB = 5
"""Size of the root file system, a sparse file."""

ESSENTIAL_HOOKS = (
    # The kernel mounts the root disk without an initrd, so a program that does nothing replaces update-initramfs.
    'ln -s /bin/true "$1/usr/local/sbin/update-initramfs"',
    # No service may start while packages are installed.
    'printf "#!/bin/sh\\nexit 101\\n" >"$1/usr/sbin/policy-rc.d" && chmod 755 "$1/usr/sbin/policy-rc.d"',
)
_STRIP_MODULES = (
    # On an emulated machine, the kernel registers the functions and events of a new module for tracing for longer than
    # it does anything else: `insmod xfs.ko` took 1.4 to 2.4 s, and 0.3 to 0.6 s without its functions, while `insmod
    # nfsv4.ko` took 0.44 s, and 0.08 s without its events (2026-11-29).
    'find "$1/lib/modules" -name "*.ko" -exec objcopy --strip-unneeded --remove-section=.BTF '
    + " ".join(
        f"--remove-section={section} --remove-section=.rela{section}"
        for section in ("__mcount_loc", "_ftrace_events", "_ftrace_eval_map")
    )
    + " {} ';'"
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


def packages(recipe: Recipe = GOLDEN) -> tuple[str, ...]:
    """Return the names of the packages to install."""
    texts = [(folder / "packages.txt").read_text() for folder in recipe.folders]
    return tuple(entry for text in texts for entry in entries(text, recipe.suite))


def entries(text: str, suite: str) -> list[str]:
    """Return the entries for `suite` in the text of a recipe's .txt file."""
    lines = [line.partition("#")[0].split() for line in text.splitlines()]
    return [entry for entry, *suites in filter(None, lines) if not suites or suite in suites]


def image_id(recipe: Recipe = GOLDEN) -> str:
    """Return the image's id: 16 hexadecimal digits of a hash of the recipe and of this module.

    Raises PlatformError if the suite is unknown.
    """
    content = recipe_tar(recipe) + repr(recipe.release).encode() + recipe.suite.encode() + Path(__file__).read_bytes()
    return hashlib.sha256(content).hexdigest()[:16]


def recipe_tar(recipe: Recipe = GOLDEN) -> bytes:
    """Return a tar to unpack at the image's root: the content of each rootfs/, and the other files in INSIDE.

    The bytes depend only on the files' contents and permissions.
    """
    buffer = io.BytesIO()
    files = [
        (path, path.relative_to(folder), f"{INSIDE.lstrip('/')}/{number}")
        # A later file in the archive replaces an earlier one with the same name.
        for number, folder in reversed(list(enumerate(recipe.folders)))
        for path in sorted(path for path in folder.rglob("*") if path.is_file())
    ]
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, relative, within in files:
            in_rootfs = relative.parts[0] == "rootfs"
            name = Path(*relative.parts[1:]) if in_rootfs else Path(within) / relative
            entry = tarfile.TarInfo(str(name))
            content = path.read_bytes()
            if path.suffix == ".txt" and not in_rootfs:
                content = "".join(f"{line}\n" for line in entries(content.decode(), recipe.suite)).encode()
            entry.size = len(content)
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


_SOURCE_FORMAT = "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)\t"
_FORWARDED = ("Acquire::Check-", "Acquire::Retries", "Acquire::http::", "Acquire::https::")
"""Prefixes of the apt settings that an archive may need: proxies, certificates, and the dates of a frozen mirror."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """The URIs of a distribution's archive and its security archive, and their apt settings."""

    main: str
    security: str
    options: tuple[str, ...] = ()

    def sources(self, suite: str) -> tuple[str, ...]:
        """Return the apt sources of a suite, its updates and its security updates."""
        releases = ((self.main, suite), (self.main, f"{suite}-updates"), (self.security, f"{suite}-security"))
        return tuple(f"deb {uri} {release} {RELEASES[suite].components}" for uri, release in releases)


def parse_targets(lines: Iterable[str], own_distribution: str, distribution: str = "debian") -> tuple[str, str] | None:
    """Return the (main, security) URIs of a distribution in lines of `apt-get indextargets`, or None if it is missing.

    A line has no origin if apt has not read the source's index. It then counts as a source of `own_distribution`, the
    ID in this machine's os-release.
    """
    main: str | None = None
    security: str | None = None
    for line in lines:
        uri, release, component, origin = line.split("\t")
        if component != "main" or (origin or own_distribution).lower() != distribution:
            continue
        if release.endswith("-security"):
            security = security or uri
        elif not release.endswith(("-updates", "-backports", "-proposed-updates", "-proposed")):
            main = main or uri
    return (main, security or _security(main, distribution)) if main else None


def parse_options(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the settings in lines of `apt-config dump` that the archive may need."""
    kept = (line.strip().removesuffix(";") for line in lines if line.startswith(_FORWARDED))
    return tuple(line for line in kept if not line.endswith('""'))


def machine_archive(recipe: Recipe = GOLDEN) -> Archive:
    """Return the archive of the recipe's distribution.

    TRAINYARD_DEBIAN_MIRROR, TRAINYARD_UBUNTU_MIRROR or this machine's apt configuration name it. Raises PlatformError
    if none does.
    """
    distribution = recipe.release.distribution
    variable = f"TRAINYARD_{distribution.upper()}_MIRROR"
    options = parse_options(_lines("apt-config", "dump"))
    mirror = os.environ.get(variable)
    if mirror:
        return Archive(main=mirror, security=_security(mirror, distribution), options=options)
    query = ("apt-get", "indextargets", "Created-By: Packages")
    # Without --no-release-info, apt-get omits sources whose indexes it has not read (apt 2.6.1, 2026-11-22).
    targets = _lines(*query, "--format", f"{_SOURCE_FORMAT}$(ORIGIN)") or _lines(
        *query, "--no-release-info", "--format", _SOURCE_FORMAT
    )
    found = parse_targets(targets, platform.freedesktop_os_release()["ID"], distribution)
    if found is None:
        beside = ". The security archive must be at HOST/debian-security" if distribution == "debian" else ""
        raise PlatformError(
            f"{recipe.name} image: apt on this machine has no {distribution.title()} archive, which {recipe.suite} "
            f"needs. Fix: set {variable} to the URL of one, for example http://HOST/{distribution}{beside}"
        )
    return Archive(main=found[0], security=found[1], options=options)


def _security(main: str, distribution: str) -> str:
    """Return the security archive's URI. Ubuntu's archive contains the security updates, and Debian's does not."""
    return f"{main.rstrip('/')}-security" if distribution == "debian" else main


def _lines(*command: str) -> list[str]:
    return run_program("golden image", "build the image on Debian or Ubuntu", *command).splitlines()


@dataclass(frozen=True, kw_only=True)
class Privilege:
    """How the build gets root's privileges."""

    mode: str
    """mmdebstrap's --mode."""
    prefix: tuple[str, ...]
    """Words that begin the other commands, and mmdebstrap's unless it creates a namespace itself (unshare)."""
    why: str


def privilege() -> Privilege:
    """Return how to get privileges: as root, with sudo, or in a user namespace. Raises PlatformError if none works."""
    if os.geteuid() == 0:
        return Privilege(mode="root", prefix=(), why="root")
    if _works("sudo", "-n", "true"):
        return Privilege(mode="root", prefix=("sudo", "-n"), why="sudo")
    if _works("mmdebstrap", "--unshare-helper", "true"):
        return Privilege(mode="unshare", prefix=("mmdebstrap", "--unshare-helper"), why="user namespace")
    raise PlatformError(
        "golden image: the build needs root, passwordless sudo, or user namespaces for this user. "
        "Fix: run `sudo -v` first, or install the uidmap package and give this user a range in /etc/subuid and "
        "/etc/subgid"
    )


def _works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


_SETUP_SECTORS = 0x1F1
_BOOT_FLAG = 0x1FE
_PAYLOAD = 0x248
"""Offsets of setup_sects, boot_flag and payload_offset in the setup header. payload_length follows payload_offset
(Documentation/arch/x86/boot.rst in Linux)."""
_ELF = b"\x7fELF"


def vmlinux(bzimage: bytes) -> bytes:
    """Return the ELF kernel. Raises PlatformError if the payload is not compressed with zstd, as in both releases."""
    if bzimage[_BOOT_FLAG : _BOOT_FLAG + 2] != b"\x55\xaa":
        raise PlatformError("golden image: /boot/vmlinuz is not a bzImage; the kernel package has changed its format")
    base = (bzimage[_SETUP_SECTORS] + 1) * 512
    offset, length = struct.unpack_from("<II", bzimage, _PAYLOAD)
    # The payload's last four bytes are the size of the uncompressed kernel.
    payload = bzimage[base + offset : base + offset + length - 4]
    done = subprocess.run(["zstd", "-dc"], input=payload, capture_output=True, check=False)
    if done.returncode or not done.stdout.startswith(_ELF):
        raise PlatformError(f"golden image: the kernel's payload is not zstd: {done.stderr.decode().strip()}")
    return done.stdout


_STOP_SECONDS = 30
_TAIL_LINES = 15
_PHASES = {
    "running apt-get update": "read the package lists",
    "downloading packages": "download packages",
    "extracting archives": "unpack the base system",
    "installing remaining packages": "install packages",
    "running --customize-hook": "customise",
}
"""The phase that begins with a line of mmdebstrap's output, by a text in this line."""


def run_tool(command: Sequence[str], progress: BuildProgress | None = None) -> str:
    """Run a tool and return its output. `progress` displays mmdebstrap's phases.

    Raises PlatformError with the last lines of the output if the tool fails.
    """
    output: list[str] = []
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
    except FileNotFoundError as error:
        raise PlatformError(
            f"golden image: {command[0]} is missing. Fix: install mmdebstrap, binutils, e2fsprogs, zstd and qemu-utils"
        ) from error
    with process:
        try:
            for line in process.stdout or ():
                output.append(line)
                phase = next((name for begin, name in _PHASES.items() if begin in line), None)
                if progress and phase:
                    progress.phase(phase)
            code = process.wait()
        finally:
            _stop(process)
    if code:
        tail = "  ".join(output[-_TAIL_LINES:]).rstrip()
        raise PlatformError(f"golden image: {command[0]} failed with exit status {code}:\n  {tail}")
    return "".join(output)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    # mmdebstrap unmounts its file systems after SIGTERM.
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


_SPACE_GIB = 6
"""Free space that a build needs. The folder, the raw disk and the qcow2 disk have 1.6 GiB each (measured)."""


def build(work: Path, archive: Archive, rights: Privilege, progress: BuildProgress, recipe: Recipe = GOLDEN) -> None:
    """Create gold.qcow2, vmlinux and manifest.json in the empty folder `work`. Raises PlatformError if a tool fails."""
    _check_space(work)
    begin = time.monotonic()
    tree = work / "root"
    (work / "tar").write_bytes(recipe_tar(recipe))
    work.chmod(0o755)  # in a user namespace, a different user reads it
    run_tool(install_command(tree, work / "tar", archive, rights, recipe), progress)
    progress.phase("extract the kernel")
    (work / "vmlinux").write_bytes(vmlinux(_kernel(tree).read_bytes()))
    versions = run_tool([*rights.prefix, "chroot", str(tree), "dpkg-query", "-W"])
    progress.phase("create the disk")
    raw = work / "gold.raw"
    raw.touch()
    raw.chmod(0o666 if rights.prefix else 0o600)  # in a user namespace, a different user writes it
    os.truncate(raw, DISK_GIB << 30)
    run_tool([*rights.prefix, "mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", str(tree), str(raw)])
    run_tool(["qemu-img", "convert", "-O", "qcow2", str(raw), str(work / "gold.qcow2")])
    manifest = {
        "name": recipe.name,
        "recipe": image_id(recipe),
        "suite": recipe.suite,
        "built_with": rights.why,
        "seconds": round(time.monotonic() - begin),
        "packages": dict(line.split("\t") for line in versions.splitlines()),
    }
    (work / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    progress.phase("delete temporary files")
    raw.unlink()
    (work / "tar").unlink()
    remove_tree(tree, rights)


def install_command(tree: Path, tar: Path, archive: Archive, rights: Privilege, recipe: Recipe = GOLDEN) -> list[str]:
    """Return the mmdebstrap command that creates the image's root file system in `tree`."""
    prefix = () if rights.mode == "unshare" else rights.prefix
    command = [*prefix, "mmdebstrap", f"--mode={rights.mode}", "--variant=minbase", "--format=directory"]
    command += [f"--aptopt={option}" for option in (*archive.options, *APT_OPTIONS)]
    command += [f"--dpkgopt={option}" for option in DPKG_OPTIONS]
    command += [f"--essential-hook={hook}" for hook in ESSENTIAL_HOOKS]
    command += [
        f"--customize-hook=tar-in {shlex.quote(str(tar))} /",
        *(f'--customize-hook=chroot "$1" {INSIDE}/{number}/customise' for number in range(len(recipe.folders))),
        f'--customize-hook=rm -rf "$1{INSIDE}"',
        f"--customize-hook={_STRIP_MODULES}",
        f"--include={','.join(packages(recipe))}",
    ]
    return [*command, recipe.suite, str(tree), *archive.sources(recipe.suite)]


def remove_tree(tree: Path, rights: Privilege) -> None:
    """Remove a folder with other users' files. Raises PlatformError if a file system is mounted in it."""
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
