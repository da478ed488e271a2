"""Tests for the recipe of the golden image: its hash, archive and mmdebstrap command."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from components.platforms.local import image_build as recipe
from components.platforms.local.image_build import Archive, Privilege, install_command

ARCHIVE = Archive(main="http://m/debian", security="http://m/debian-security", options=('Acquire::Check-Date "false"',))
ROOT = Privilege(mode="root", prefix=(), why="root")
SUDO = Privilege(mode="root", prefix=("sudo", "-n"), why="sudo")
UNSHARE = Privilege(mode="unshare", prefix=("mmdebstrap", "--unshare-helper"), why="user namespace")


@pytest.fixture
def own_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the recipe that a test can change."""
    copy = tmp_path / "local"
    shutil.copytree(recipe.FOLDER.parent, copy)
    monkeypatch.setattr(recipe, "FOLDER", copy / "recipe")
    return copy


@pytest.mark.parametrize(
    "file", ["recipe/packages.txt", "recipe/rootfs/etc/fstab", "recipe/customise", "image_build.py"]
)
def test_changes_of_recipe_or_build_change_the_image_id(own_recipe: Path, file: str) -> None:
    before = recipe.image_id()
    assert recipe.image_id() == before
    with (own_recipe / file).open("a") as changed:
        changed.write("# changed\n")
    assert recipe.image_id() != before


def test_the_image_id_does_not_depend_on_time_or_path(own_recipe: Path) -> None:
    before = recipe.image_id()
    (own_recipe / "recipe" / "packages.txt").touch()
    (own_recipe / "machine.py").write_text("")
    assert recipe.image_id() == before


def test_the_tar_has_files_of_rootfs_at_their_paths() -> None:
    with tarfile.open(fileobj=io.BytesIO(recipe.recipe_tar())) as archive:
        entries = {entry.name: entry for entry in archive}
    assert {"etc/fstab", "etc/cloud/cloud.cfg", "run/image-recipe/customise"} <= set(entries)
    assert entries["run/image-recipe/customise"].mode == 0o755
    assert entries["etc/fstab"].mode == 0o644
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}


def test_package_names_are_valid_and_unique() -> None:
    packages = recipe.packages()
    assert len(set(packages)) == len(packages)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name) for name in packages)


@pytest.mark.parametrize("file", sorted(recipe.FOLDER.glob("masked-*.txt")), ids=lambda path: path.name)
def test_names_in_lists_are_valid_and_unique(file: Path) -> None:
    names = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9@_.-]+", name) for name in names)


def test_packages_are_from_the_archive_of_the_machine() -> None:
    command = install_command(Path("/w/root"), Path("/w/recipe.tar"), ARCHIVE, ROOT)
    assert command[-5:] == [
        "trixie",
        "/w/root",
        "deb http://m/debian trixie main",
        "deb http://m/debian trixie-updates main",
        "deb http://m/debian-security trixie-security main",
    ]
    assert '--aptopt=Acquire::Check-Date "false"' in command
    assert "--dpkgopt=force-confold" in command


@pytest.mark.parametrize(
    ("rights", "begins", "mode"),
    [
        (ROOT, ["mmdebstrap"], "root"),
        (SUDO, ["sudo", "-n", "mmdebstrap"], "root"),
        (UNSHARE, ["mmdebstrap"], "unshare"),
    ],
)
def test_the_installer_uses_the_available_privileges(rights: Privilege, begins: list[str], mode: str) -> None:
    command = install_command(Path("/w/root"), Path("/w/recipe.tar"), ARCHIVE, rights)
    assert command[: len(begins) + 1] == [*begins, f"--mode={mode}"]
