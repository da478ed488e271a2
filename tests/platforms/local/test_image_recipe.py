"""The recipe: its identity, how it travels, and the mmdebstrap call it becomes."""

from __future__ import annotations

import io
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from components.platforms.local.image import recipe
from components.platforms.local.image.archive import Archive
from components.platforms.local.image.privilege import Privilege
from components.platforms.local.image.steps import install_command

ARCHIVE = Archive(main="http://m/debian", security="http://m/debian-security", options=('Acquire::Check-Date "false"',))
ROOT = Privilege(mode="root", prefix=(), why="root")
SUDO = Privilege(mode="root", prefix=("sudo", "-n"), why="sudo")
UNSHARE = Privilege(mode="unshare", prefix=("mmdebstrap", "--unshare-helper"), why="user namespace")


@pytest.fixture
def own_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the recipe and its code that a test may change."""
    copy = tmp_path / "image"
    shutil.copytree(recipe.FOLDER.parent, copy)
    monkeypatch.setattr(recipe, "FOLDER", copy / "recipe")
    return copy


@pytest.mark.parametrize("file", ["recipe/packages.txt", "recipe/rootfs/etc/fstab", "recipe/customise", "steps.py"])
def test_any_change_of_recipe_or_builder_is_another_image(own_recipe: Path, file: str) -> None:
    before = recipe.recipe_hash()
    assert recipe.recipe_hash() == before
    with (own_recipe / file).open("a") as changed:
        changed.write("# changed\n")
    assert recipe.recipe_hash() != before


def test_time_and_place_are_not_part_of_the_identity(own_recipe: Path) -> None:
    before = recipe.recipe_hash()
    (own_recipe / "recipe" / "packages.txt").touch()
    (own_recipe / "progress.py").write_text("")
    assert recipe.recipe_hash() == before


def test_the_recipe_travels_as_root_s_files_in_their_places() -> None:
    with tarfile.open(fileobj=io.BytesIO(recipe.recipe_tar())) as archive:
        entries = {entry.name: entry for entry in archive}
    assert {"etc/fstab", "etc/cloud/cloud.cfg", "run/image-recipe/customise"} <= set(entries)
    assert entries["run/image-recipe/customise"].mode == 0o755
    assert entries["etc/fstab"].mode == 0o644
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}


def test_packages_are_names_and_none_twice() -> None:
    packages = recipe.packages()
    assert len(set(packages)) == len(packages)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name) for name in packages)


@pytest.mark.parametrize("file", sorted(recipe.FOLDER.glob("masked-*.txt")), ids=lambda path: path.name)
def test_lists_hold_plain_names_and_none_twice(file: Path) -> None:
    names = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9@_.-]+", name) for name in names)


def test_the_install_takes_everything_from_the_machine_s_archive() -> None:
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
def test_the_install_runs_with_the_rights_there_are(rights: Privilege, begins: list[str], mode: str) -> None:
    command = install_command(Path("/w/root"), Path("/w/recipe.tar"), ARCHIVE, rights)
    assert command[: len(begins) + 1] == [*begins, f"--mode={mode}"]
