"""`make clean` deletes the cache, `make down` deletes the state, and `destroy` refuses protected resources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from components.platforms.local.image import find_image, hold_image
from tools import down
from tools.clean import clean
from tools.stack import refuse_protected
from trainyard import checkout
from trainyard.errors import StackError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with tools, and with an unused image, an image that a machine's disk uses, and a baked image."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("TRAINYARD_CACHE", str(cache))
    for name in ("0a", "0b", "trainyard-debian-13-0123456789abcdef"):
        (cache / "images" / name).mkdir(parents=True)
        (cache / "images" / name / "manifest.json").write_text("{}")
    (cache / "images" / "0a" / "gold.qcow2").write_bytes(b"x" * 300_000)
    (cache / "mypy").mkdir()
    (cache / "mypy" / "file").write_bytes(b"x" * 200_000)
    (cache / "notes.txt").write_text("not from this project")
    disk = tmp_path / "disk.qcow2"
    disk.touch()
    used = find_image("0b")
    assert used is not None
    hold_image(used, disk)
    return cache


def test_clean_deletes_the_cache_and_says_what(cache: Path) -> None:
    lines = list(clean(cache))
    assert sorted(path.name for path in cache.iterdir()) == ["images", "notes.txt"]
    assert sorted(path.name for path in (cache / "images").iterdir()) == ["0b", "trainyard-debian-13-0123456789abcdef"]
    assert [line.partition(" (")[0] for line in lines[:4]] == [
        f"deleted {cache / 'mypy'}",
        f"deleted {cache / 'images' / '0a'}",
        f"kept {cache / 'images' / '0b'}",
        f"kept {cache / 'images' / 'trainyard-debian-13-0123456789abcdef'}",
    ]
    assert lines[-1].startswith("deleted 0.5 MB in ")


def test_clean_of_an_empty_cache_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "absent"))
    assert [line.partition(" in ")[0] for line in clean(tmp_path / "absent")] == ["deleted 0.0 MB"]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with the files that remain after a stack is removed."""
    monkeypatch.setattr(checkout, "state", lambda: tmp_path)
    for folder in (
        "state/.pulumi/stacks/trainyard",
        "state/.pulumi/backups",
        "pulumi-home/logs",
        "pulumi-home/plugins",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "state/.pulumi/stacks/trainyard/local.json.bak").write_text("{}")
    return tmp_path


def test_state_is_removed_after_the_last_stack(state: Path) -> None:
    down.remove_empty_state()
    assert not (state / "state/.pulumi").exists()
    assert [path.name for path in (state / "pulumi-home").iterdir()] == ["plugins"]


def test_state_of_another_stack_is_kept(state: Path) -> None:
    other = state / "state/.pulumi/stacks/trainyard/azure-h100.json"
    other.write_text("{}")
    down.remove_empty_state()
    assert other.exists()
    assert (state / "state/.pulumi/backups").exists()


def resource(name: str, **more: Any) -> dict[str, Any]:
    return {"urn": f"urn:pulumi:s::trainyard::a$gcp:compute/disk:Disk::{name}", "type": "gcp:compute/disk:Disk", **more}


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """The state file that a fake `pulumi stack export` prints."""
    program = tmp_path / "bin" / "pulumi"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$1 $2" = "stack export" ] && cat {tmp_path}/state\n')
    program.chmod(0o755)
    return tmp_path / "state"


def refuse(tmp_path: Path) -> None:
    refuse_protected("opt", {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})


def test_protected_resources_are_listed_with_both_fixes(exported: Path, tmp_path: Path) -> None:
    resources = [resource("opt-head"), resource("opt-shared", protect=True), resource("opt-gpu-0", protect=False)]
    exported.write_text(json.dumps({"version": 3, "deployment": {"resources": resources}}))
    with pytest.raises(StackError) as refused:
        refuse(tmp_path)
    message = str(refused.value)
    assert "stack 'opt' has protected data: opt-shared (gcp:compute/disk:Disk). Nothing was deleted." in message
    assert "--exclude-protected" in message
    assert "protect_storage to false in stacks/Pulumi.opt.yaml" in message


@pytest.mark.parametrize("deployment", [{}, {"resources": []}, {"resources": [resource("opt-head")]}, None])
def test_stack_without_protected_resources_is_accepted(exported: Path, tmp_path: Path, deployment: Any) -> None:
    exported.write_text(json.dumps({"version": 3, "deployment": deployment}))
    refuse(tmp_path)


def test_a_state_that_cannot_be_read_stops_it(tmp_path: Path, exported: Path) -> None:
    with pytest.raises(StackError, match="the state cannot be read"):
        refuse(tmp_path)
