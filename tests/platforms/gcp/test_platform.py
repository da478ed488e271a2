"""What GcpPlatform asks for, seen by a recorder in the engine's place."""

from __future__ import annotations

from tests.platforms.gcp.conftest import Build


def test_structure(build: Build) -> None:
    built = build("gcp-a2")
    for typ, name, _ in built.resources:
        print(typ, name)
    print(built.hosts)
    print(built.one("compute/instance:Instance", "neox-gpu-0").keys())
    assert 0
