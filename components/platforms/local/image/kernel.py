"""Extraction of the ELF kernel, which QEMU boots directly, from Debian's compressed bzImage."""

from __future__ import annotations

import struct
import subprocess

from trainyard.errors import PlatformError

_SETUP_SECTORS = 0x1F1
_BOOT_FLAG = 0x1FE
_PAYLOAD = 0x248
"""Offsets in the setup header: setup_sects, boot_flag and payload_offset, which payload_length follows
(Documentation/arch/x86/boot.rst of the Linux kernel)."""
_ELF = b"\x7fELF"


def payload(bzimage: bytes) -> bytes:
    """Return the compressed payload without its last four bytes, which are the size of the uncompressed kernel."""
    if bzimage[_BOOT_FLAG : _BOOT_FLAG + 2] != b"\x55\xaa":
        raise PlatformError("golden image: /boot/vmlinuz is not a bzImage; the kernel package has changed its format")
    base = (bzimage[_SETUP_SECTORS] + 1) * 512
    offset, length = struct.unpack_from("<II", bzimage, _PAYLOAD)
    return bzimage[base + offset : base + offset + length - 4]


def vmlinux(bzimage: bytes) -> bytes:
    """Return the ELF kernel. Raises PlatformError if the payload is not compressed with zstd, as in Debian 13."""
    done = subprocess.run(["zstd", "-dc"], input=payload(bzimage), capture_output=True, check=False)
    if done.returncode or not done.stdout.startswith(_ELF):
        raise PlatformError(f"golden image: the kernel's payload is not zstd: {done.stderr.decode().strip()}")
    return done.stdout
