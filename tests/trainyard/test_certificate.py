"""End dates of certificates that ssh-keygen has written."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.offline.loopback_sshd import make_key
from trainyard.certificate import expiry, valid_before


def sign(folder: Path, kind: str, validity: str) -> Path:
    """Return the file with the certificate of a new key."""
    make_key(folder / "ca")
    make_key(folder / "key", kind)
    command: list[str | Path] = [
        "ssh-keygen",
        "-q",
        "-s",
        folder / "ca",
        "-I",
        "id",
        "-n",
        "a,b",
        "-V",
        validity,
        folder / "key.pub",
    ]
    subprocess.run(command, check=True)
    return folder / "key-cert.pub"


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_the_end_of_a_certificate_is_read(tmp_path: Path, kind: str) -> None:
    file = sign(tmp_path, kind, "-1d:+10d")
    assert abs(valid_before(file.read_text()) - time.time() - 10 * 86400) < 120
    assert expiry([file]) is None


def test_an_expired_certificate_is_named_with_its_date(tmp_path: Path) -> None:
    file = sign(tmp_path, "ed25519", "20200101:20200304")
    missing, key = tmp_path / "none-cert.pub", tmp_path / "key.pub"
    found = str(expiry([missing, key, file]))
    assert found.startswith(f"the SSH certificate {file} expired on 2020-03-0")


def test_an_endless_certificate_does_not_expire(tmp_path: Path) -> None:
    assert expiry([sign(tmp_path, "ed25519", "always:forever")]) is None


@pytest.mark.parametrize("text", ["", "ssh-ed25519 AAAA a", "ssh-ed25519-cert-v01@openssh.com"])
def test_other_text_is_not_a_certificate(text: str) -> None:
    with pytest.raises(ValueError, match="certificate"):
        valid_before(text)


def test_a_truncated_certificate_is_refused(tmp_path: Path) -> None:
    kind, body, *_ = sign(tmp_path, "ed25519", "-1d:+1d").read_text().split()
    with pytest.raises(ValueError, match="truncated"):
        valid_before(f"{kind} {body[:40]}")
