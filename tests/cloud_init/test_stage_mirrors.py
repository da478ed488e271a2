"""Mirrors of package archives in a node's apt sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.node.install import mirror_program
from tests.cloud_init.stage_sandbox import Sandbox

SOURCES = {
    "etc/apt/sources.list": "deb http://archive.example.org/debian/ trixie main\n",
    "etc/apt/sources.list.d/debian.sources": "URIs: https://a.example.org/debian\nSuites: trixie\n",
    "etc/apt/mirrors/debian.list": "https://archive.example.org/debian\n",
    "etc/apt/sources.list.d/other.list": "deb http://packages.example.org/debian trixie main\n",
    "etc/apt/sources.list.d/cuda.list": "deb https://developer.download.nvidia.com/compute/cuda/repos/u /\n",
}


@pytest.fixture
def node(tmp_path: Path) -> Sandbox:
    """A node with these sources, on which all packages are installed."""
    for path, text in {**SOURCES, "usr/local/lib/trainyard/mirrors.sh": ""}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    installed = tmp_path / "var/lib/dpkg/info"
    installed.mkdir(parents=True)
    for name in ("pdsh", "nfs-common", "rsync", "python3", "chrony", "unattended-upgrades"):
        (installed / f"{name}.list").touch()
    return Sandbox(tmp_path, ("apt-get",), {})


def sources(node: Sandbox, **mirrors: str) -> list[str]:
    """Run the stage with these mirrors. Return the contents of the files in SOURCES."""
    ran = node.run(
        "20-apt", ROLE="worker", SCHEDULER="none", OS="debian-13", GPU_DEVICE="/dev/nvidia",
        MIRRORS=mirror_program(mirrors), DISTRIBUTION_MIRRORS=mirror_program(mirrors, distribution=True),
    )  # fmt: skip
    assert (ran.code, ran.commands) == (0, []), ran.errors
    return [(node.root / path).read_text() for path in SOURCES]


def test_archives_of_the_image_are_replaced_by_mirrors(node: Sandbox) -> None:
    assert sources(node, debian="http://m/d", nvidia_cuda="http://m/cuda") == [
        "deb http://m/d/ trixie main\n",
        "URIs: http://m/d\nSuites: trixie\n",
        "http://m/d\n",
        # Addresses of the distribution's archives are replaced only in the distribution's own files.
        SOURCES["etc/apt/sources.list.d/other.list"],
        "deb http://m/cuda/u /\n",
    ]


def test_changed_mirror_applies_to_the_original_sources(node: Sandbox) -> None:
    sources(node, debian="http://m/d")
    assert sources(node, debian="http://n/d")[0] == "deb http://n/d/ trixie main\n"
    assert sources(node) == list(SOURCES.values())


def test_sources_are_unchanged_without_mirrors(node: Sandbox) -> None:
    assert sources(node) == list(SOURCES.values())
    assert not (node.root / "var/lib/trainyard").exists()


def pip_settings(tmp_path: Path, index: str) -> str | None:
    """Run the stage with this mirror. Return pip's settings."""
    for folder in ("etc", "usr/local/bin"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    # The unit does not exist in the sandbox, so an earlier run has left a dangling link, which the stage cannot see.
    (tmp_path / "etc/systemd/system/timers.target.wants/trainyard-updates.timer").unlink(missing_ok=True)
    ran = Sandbox(tmp_path, ("sysctl", "systemctl"), {}).run("31-system", SHARED_DOMAIN="", PIP_INDEX=index)
    assert ran.code == 0, ran.errors
    file = tmp_path / "etc/pip.conf"
    return file.read_text() if file.exists() else None


def test_pip_uses_the_mirror(tmp_path: Path) -> None:
    text = pip_settings(tmp_path, "http://mirror.example.org:8080/simple")
    assert text is not None
    assert "\nindex-url = http://mirror.example.org:8080/simple\n" in text
    assert "\ntrusted-host = mirror.example.org:8080\n" in text
    text = pip_settings(tmp_path, "https://mirror.example.org/simple")
    assert text is not None
    assert "trusted-host" not in text
    assert pip_settings(tmp_path, "") is None


def test_pip_settings_of_others_are_kept(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/pip.conf").write_text("[global]\nindex-url = https://own.example.org\n")
    assert pip_settings(tmp_path, "") == "[global]\nindex-url = https://own.example.org\n"
