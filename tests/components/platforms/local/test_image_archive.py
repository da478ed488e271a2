"""Tests for the Debian archive in the apt configuration, with lines from `apt-get indextargets`."""

from __future__ import annotations

import pytest

from components.platforms.local import image_build as archive
from trainyard.errors import PlatformError

DEBIAN = [
    "http://a/debian/\tbookworm\tmain\tDebian",
    "http://a/debian/\tbookworm-updates\tmain\tDebian",
    "http://s/debian-security/\tbookworm-security\tmain\tDebian",
]
UBUNTU = ["http://u/ubuntu/\tnoble\tmain\tUbuntu", "http://u/ubuntu/\tnoble-security\tmain\tUbuntu"]
OTHERS = ["https://x/apt/\tcloud-sdk-bookworm\tmain\tcloud-sdk-bookworm", "http://a/debian/\tbookworm\tcontrib\tDebian"]


@pytest.mark.parametrize(
    ("lines", "distribution", "found"),
    [
        (DEBIAN, "debian", ("http://a/debian/", "http://s/debian-security/")),
        (OTHERS + DEBIAN[::-1], "debian", ("http://a/debian/", "http://s/debian-security/")),
        (DEBIAN[:2], "debian", ("http://a/debian/", "http://a/debian-security")),
        (UBUNTU + DEBIAN, "ubuntu", ("http://a/debian/", "http://s/debian-security/")),
        (UBUNTU + OTHERS, "ubuntu", None),
        (["http://a/debian/\tbookworm\tmain\t"], "debian", ("http://a/debian/", "http://a/debian-security")),
        (["http://u/ubuntu/\tnoble\tmain\t"], "ubuntu", None),
        ([], "debian", None),
    ],
)
def test_the_debian_archive_is_found_in_the_sources(
    lines: list[str], distribution: str, found: tuple[str, str] | None
) -> None:
    assert archive.parse_targets(lines, distribution) == found


def test_only_archive_settings_of_apt_are_forwarded() -> None:
    dump = [
        'APT::Architecture "amd64";',
        'Acquire::Check-Valid-Until "false";',
        'Acquire::http::Proxy "http://p:3128";',
        'Acquire::https "";',
        'Acquire::https::CaInfo "";',
        'DPkg::Post-Invoke:: "rm -rf /";',
    ]
    assert archive.parse_options(dump) == (
        'Acquire::Check-Valid-Until "false"',
        'Acquire::http::Proxy "http://p:3128"',
    )


def test_trainyard_debian_mirror_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_DEBIAN_MIRROR", "http://mine/debian/")
    monkeypatch.setattr(archive, "_lines", lambda *_: [])
    mine = archive.machine_archive()
    assert (mine.main, mine.security) == ("http://mine/debian/", "http://mine/debian-security")


def test_archive_is_found_without_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(*command: str) -> list[str]:
        return ["http://a/debian/\tbookworm\tmain\t"] if "--no-release-info" in command else []

    monkeypatch.delenv("TRAINYARD_DEBIAN_MIRROR", raising=False)
    monkeypatch.setattr(archive, "_lines", lines)
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "debian"})
    assert archive.machine_archive().main == "http://a/debian/"


def test_without_a_debian_archive_the_error_has_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINYARD_DEBIAN_MIRROR", raising=False)
    monkeypatch.setattr(archive, "_lines", lambda command, *_: UBUNTU if command == "apt-get" else [])
    with pytest.raises(PlatformError, match="TRAINYARD_DEBIAN_MIRROR"):
        archive.machine_archive()
