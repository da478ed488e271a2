"""The golden image (its recipe, the Debian archive, builds and the cache), and baked images with a fake QEMU."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import yaml

from components.platforms.local import bake, image, image_build
from components.platforms.local.bake import bake_here, report_in
from components.platforms.local.facts import FACTS
from components.platforms.local.image import GoldenImage, find_image, require_image
from components.platforms.local.image_build import Archive, BuildProgress, Privilege, Recipe
from components.platforms.local.paths import cache_folder, socket_folder
from components.platforms.local.process import started_under, sweep_run
from components.platforms.registry import Baking
from offline.boot.machine import IMAGE, image_of
from tests.components.platforms.local.conftest import Executable
from tests.components.platforms.recording import planned
from trainyard.errors import PlatformError

ARCHIVE = Archive(main="http://m/debian", security="http://m/debian-security", options=('Acquire::Check-Date "false"',))
RIGHTS = Privilege(mode="root", prefix=(), why="root")


@pytest.fixture
def own_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "local"
    shutil.copytree(image_build.GOLDEN.folders[0].parent, copy)
    monkeypatch.setattr(image_build, "__file__", str(copy / "image_build.py"))
    return copy


@pytest.mark.parametrize("file", ["recipe/packages.txt", "recipe/rootfs/etc/fstab", "image_build.py"])
def test_changes_of_recipe_or_build_change_the_image_id(own_recipe: Path, file: str) -> None:
    recipe = Recipe(folders=(own_recipe / "recipe",))
    before = image_build.image_id(recipe)
    # The id does not depend on times or on other files.
    (own_recipe / file).touch()
    (own_recipe / "machine.py").write_text("")
    assert image_build.image_id(recipe) == before
    with (own_recipe / file).open("a") as changed:
        changed.write("changed\n")
    assert image_build.image_id(recipe) != before


NOBLE = Recipe(suite="noble")


def test_an_entry_can_be_limited_to_suites(own_recipe: Path) -> None:
    folder = own_recipe / "recipe"
    (folder / "packages.txt").write_text("# comment\nsudo\n\nlinux-image-virtual noble # kernel\ntorch trixie\n")
    found = {suite: image_build.packages(Recipe(suite=suite, folders=(folder,))) for suite in image_build.RELEASES}
    assert found == {
        "trixie": ("sudo", "torch"),
        "noble": ("sudo", "linux-image-virtual"),
    }


def read_tar(recipe: Recipe) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(image_build.recipe_tar(recipe))) as archive:
        return {entry.name: (archive.extractfile(entry) or io.BytesIO()).read().decode() for entry in archive}


def test_the_lists_in_the_tar_are_those_of_the_suite() -> None:
    ubuntu, debian = read_tar(NOBLE), read_tar(image_build.GOLDEN)
    masked = "run/image-recipe/0/masked-units.txt"
    assert "apparmor.service" in debian[masked].splitlines()
    assert set(debian[masked].splitlines()) - set(ubuntu[masked].splitlines()) == {"apparmor.service"}
    # Only lists have entries.
    assert ubuntu["etc/fstab"] == debian["etc/fstab"] == "/dev/root / ext4 rw,noatime 0 0\n"


def test_each_suite_has_one_kernel_and_its_own_image() -> None:
    recipes = [Recipe(suite=suite, folders=IMAGE.folders) for suite in image_build.RELEASES]
    kernels = [[name for name in image_build.packages(recipe) if name.startswith("linux-")] for recipe in recipes]
    assert kernels == [
        ["linux-headers-cloud-amd64", "linux-image-cloud-amd64"],
        ["linux-headers-virtual", "linux-image-virtual"],
    ]
    assert len({image_build.image_id(recipe) for recipe in recipes}) == len(recipes)


def test_ubuntu_packages_are_from_its_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    # Sources of the names and their absence: packages.ubuntu.com (components/catalog/image_contracts.yaml).
    recipe = Recipe(suite="noble", folders=IMAGE.folders)
    assert not {"python3-torch", "docker-cli", "waagent"} & set(image_build.packages(recipe))
    monkeypatch.setenv("TRAINYARD_UBUNTU_MIRROR", "http://u/ubuntu")
    monkeypatch.setattr(image_build, "_lines", lambda *_: [])
    archive = image_build.machine_archive(recipe)
    command = image_build.install_command(Path("/w/root"), Path("/w/recipe.tar"), archive, RIGHTS, recipe)
    assert command[-5:] == [
        "noble",
        "/w/root",
        "deb http://u/ubuntu noble main universe",
        "deb http://u/ubuntu noble-updates main universe",
        "deb http://u/ubuntu noble-security main universe",
    ]


@pytest.mark.parametrize(
    ("system", "suite", "slurm"),
    [("debian-13", "trixie", (24, 11)), ("ubuntu-24.04", "noble", (23, 11))],
)
def test_the_image_key_selects_suite_and_slurm_version(system: str, suite: str, slurm: tuple[int, int]) -> None:
    plan = planned("local", {"platform__image": system}).plan
    assert plan.image.slurm_version == slurm
    assert isinstance(FACTS.baking, Baking)
    assert FACTS.baking.base(plan) == image_build.image_id(Recipe(suite=suite))


def test_a_variable_selects_the_suite_of_booted_clouds() -> None:
    assert image_of({"TRAINYARD_OFFLINE_SUITE": "noble"}).suite == "noble"
    assert image_of({}).suite == image_build.GOLDEN.suite == "trixie"
    with pytest.raises(PlatformError, match=r"cloud image: unknown suite 'xenial'\. Fix: use trixie, noble"):
        image_build.image_id(image_of({"TRAINYARD_OFFLINE_SUITE": "xenial"}))


def test_the_tar_has_files_of_rootfs_at_their_paths() -> None:
    with tarfile.open(fileobj=io.BytesIO(image_build.recipe_tar())) as archive:
        entries = {entry.name: entry for entry in archive}
    assert {"etc/fstab", "etc/cloud/cloud.cfg", "run/image-recipe/0/customise"} <= set(entries)
    assert entries["run/image-recipe/0/customise"].mode == 0o755
    assert entries["etc/fstab"].mode == 0o644
    assert {(entry.uid, entry.gid) for entry in entries.values()} == {(0, 0)}


def test_an_image_with_one_stage_has_all_modules_in_it() -> None:
    golden, cloud = (yaml.safe_load(read_tar(recipe)["etc/cloud/cloud.cfg"]) for recipe in (image_build.GOLDEN, IMAGE))
    assert golden["datasource_list"] == ["NoCloud"]
    assert (golden["cloud_config_modules"], golden["cloud_final_modules"]) == ([], [])
    # The agents and datasources of the clouds need the network, so booted clouds run all stages.
    assert "datasource_list" not in cloud
    assert cloud["cloud_final_modules"]


@pytest.mark.parametrize(
    ("mode", "prefix", "begins"),
    [
        ("root", (), ["mmdebstrap", "--mode=root"]),
        ("root", ("sudo", "-n"), ["sudo", "-n", "mmdebstrap", "--mode=root"]),
        ("unshare", ("mmdebstrap", "--unshare-helper"), ["mmdebstrap", "--mode=unshare"]),
    ],
)
def test_packages_are_from_the_archive_of_the_machine(
    mode: Literal["root", "unshare"], prefix: tuple[str, ...], begins: list[str]
) -> None:
    rights = Privilege(mode=mode, prefix=prefix, why="")
    command = image_build.install_command(Path("/w/root"), Path("/w/recipe.tar"), ARCHIVE, rights)
    assert command[: len(begins)] == begins
    assert command[-5:] == [
        "trixie",
        "/w/root",
        "deb http://m/debian trixie main",
        "deb http://m/debian trixie-updates main",
        "deb http://m/debian-security trixie-security main",
    ]
    assert '--aptopt=Acquire::Check-Date "false"' in command
    assert "--dpkgopt=force-confold" in command


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
    assert image_build.parse_targets(lines, distribution) == found


@pytest.mark.parametrize(
    ("lines", "distribution", "found"),
    [
        (DEBIAN + UBUNTU, "debian", ("http://u/ubuntu/", "http://u/ubuntu/")),
        (["http://u/ubuntu/\tnoble-proposed\tmain\tUbuntu", *UBUNTU[:1]], "ubuntu", ("http://u/ubuntu/",) * 2),
        (["http://u/ubuntu/\tnoble\tmain\t"], "ubuntu", ("http://u/ubuntu/", "http://u/ubuntu/")),
        (DEBIAN, "debian", None),
    ],
)
def test_the_ubuntu_archive_is_found_in_the_sources(
    lines: list[str], distribution: str, found: tuple[str, str] | None
) -> None:
    assert image_build.parse_targets(lines, distribution, "ubuntu") == found


def test_a_missing_ubuntu_archive_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], images: Path
) -> None:
    monkeypatch.setattr(image, "machine_archive", image_build.machine_archive)
    monkeypatch.setattr(image_build, "_lines", lambda *_: DEBIAN)
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "debian"})
    assert image.main(["build", "noble"]) == 1
    assert capsys.readouterr().err.splitlines()[1:] == [
        "golden image: apt on this machine has no Ubuntu archive, which noble needs. Fix: set TRAINYARD_UBUNTU_MIRROR "
        "to the URL of one, for example http://HOST/ubuntu"
    ]
    assert names(images) == set()


def test_only_archive_settings_of_apt_are_forwarded() -> None:
    dump = [
        'APT::Architecture "amd64";',
        'Acquire::Check-Valid-Until "false";',
        'Acquire::http::Proxy "http://p:3128";',
        'Acquire::https "";',
        'Acquire::https::CaInfo "";',
        'DPkg::Post-Invoke:: "rm -rf /";',
    ]
    assert image_build.parse_options(dump) == (
        'Acquire::Check-Valid-Until "false"',
        'Acquire::http::Proxy "http://p:3128"',
    )


@pytest.mark.parametrize(
    ("mirror", "targets", "main"),
    [
        ("http://mine/debian/", [], "http://mine/debian/"),
        # Without --no-release-info, apt lists no source whose index it has not read.
        ("", ["http://a/debian/\tbookworm\tmain\t"], "http://a/debian/"),
        ("", UBUNTU, None),
    ],
)
def test_the_archive_comes_from_the_mirror_or_from_apt(
    monkeypatch: pytest.MonkeyPatch, mirror: str, targets: list[str], main: str | None
) -> None:
    def lines(*command: str) -> list[str]:
        return targets if "--no-release-info" in command else []

    monkeypatch.setenv("TRAINYARD_DEBIAN_MIRROR", mirror)
    monkeypatch.setattr(image_build, "_lines", lines)
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "debian"})
    if main is None:
        with pytest.raises(PlatformError, match="set TRAINYARD_DEBIAN_MIRROR"):
            image_build.machine_archive()
    else:
        assert image_build.machine_archive().main == main


ELF = b"\x7fELF" + bytes(range(256)) * 40


def bzimage(content: bytes) -> bytes:
    """Return a file in the format of Debian's kernel: setup sectors, a zstd payload and the size of its content."""
    packed = subprocess.run(["zstd", "-qc"], input=content, capture_output=True, check=True).stdout
    header = bytearray(5 * 512 + 64)
    header[0x1F1] = 4
    header[0x1FE:0x200] = b"\x55\xaa"
    header[0x248:0x250] = (64).to_bytes(4, "little") + (len(packed) + 4).to_bytes(4, "little")
    return bytes(header) + packed + len(content).to_bytes(4, "little")


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The images folder of an empty cache. The archive and the privileges for a build are available."""
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    monkeypatch.setattr(image, "machine_archive", lambda _: ARCHIVE)
    monkeypatch.setattr(image, "privilege", lambda: RIGHTS)
    return tmp_path / "images"


def complete(work: Path, *_: object) -> None:
    for name in ("gold.qcow2", "vmlinux", "manifest.json"):
        (work / name).write_text("{}")


def names(images: Path) -> set[str]:
    """Return the names of the files in the images folder, except the new image and the lock."""
    return {path.name for path in images.iterdir()} - {image_build.image_id(), "lock"}


def older(images: Path, *names: str) -> None:
    """Create complete images, oldest first."""
    for age, name in enumerate(reversed(names), 1):
        (images / name).mkdir(parents=True)
        complete(images / name)
        stamp = time.time() - 1000 * age
        os.utime(images / name / "manifest.json", (stamp, stamp))


@pytest.mark.parametrize("damaged", [b"\0" * 4096, bzimage(b"no kernel"), bzimage(ELF)[:-200]])
def test_a_kernel_in_another_format_is_refused(damaged: bytes) -> None:
    assert image_build.vmlinux(bzimage(ELF)) == ELF
    with pytest.raises(PlatformError, match="golden image"):
        image_build.vmlinux(damaged)


def test_concurrent_and_later_builds_create_one_image(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []

    def slow(work: Path, *_: object) -> None:
        time.sleep(0.3)
        built.append(work)
        complete(work)

    monkeypatch.setattr(image, "build", slow)
    assert image.find_image(image_build.image_id()) is None
    # Files of a build that was killed are removed.
    (images / "building-dead" / "root").mkdir(parents=True)
    threads = [threading.Thread(target=image.ensure_image) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert image.ensure_image() == image.find_image(image_build.image_id())
    assert len(built) == 1
    assert names(images) == set()


@pytest.mark.parametrize("failure", [PlatformError("no network"), KeyboardInterrupt(), SystemExit(143)])
def test_a_failed_build_leaves_no_files(images: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    def fail(work: Path, *_: object) -> None:
        (work / "root").mkdir()
        raise failure

    monkeypatch.setattr(image, "build", fail)
    with pytest.raises(type(failure)):
        image.ensure_image()
    assert names(images) == set()


def test_a_build_keeps_the_previous_and_baked_images(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baked = "trainyard-debian-13-0123456789abcdef"
    older(images, baked, "oldest", "old", "previous")
    monkeypatch.setattr(image, "build", complete)
    image.ensure_image()
    assert names(images) == {"previous", baked}


def test_a_build_keeps_the_images_of_other_suites(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older(images, "old", "previous", "ubuntu")
    (images / "ubuntu" / "manifest.json").write_text('{"suite": "noble"}')
    older(images, "oldest")
    monkeypatch.setattr(image, "build", complete)
    image.ensure_image()
    assert names(images) == {"oldest", "ubuntu"}
    assert require_image(image_build.image_id(NOBLE)).folder.name == image_build.image_id(NOBLE)


def test_a_build_keeps_the_images_of_existing_disks(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = images.parent / "disk.qcow2"
    disk.touch()
    older(images, "moved", "held", "old", "previous")
    # The disk was first based on the image `moved`. A new machine at the same path is based on `held`.
    image.hold_image(image.GoldenImage(images / "moved"), disk)
    image.hold_image(image.GoldenImage(images / "held"), disk)
    monkeypatch.setattr(image, "build", complete)
    image.ensure_image()
    assert names(images) == {"held", "previous"}
    disk.unlink()
    shutil.rmtree(images / image_build.image_id())
    image.ensure_image()
    assert names(images) == {"previous"}


def test_the_output_of_a_failed_tool_is_in_the_error(tmp_path: Path, executable: Executable) -> None:
    executable("mmdebstrap", "import sys; print('E: no such suite'); sys.exit(25)")
    with pytest.raises(PlatformError, match="mmdebstrap failed with exit status 25:\n  E: no such suite"):
        image_build.build(tmp_path, ARCHIVE, RIGHTS, BuildProgress("test"))


def test_an_interrupted_build_ends_its_tool(
    tmp_path: Path, executable: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "pid"
    executable(
        "mmdebstrap",
        f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); print('x', flush=True); time.sleep(60)",
    )

    class Interrupting(BuildProgress):
        def phase(self, text: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(image_build, "_PHASES", {"x": "interrupt now"})
    with pytest.raises(KeyboardInterrupt):
        image_build.build(tmp_path, ARCHIVE, RIGHTS, Interrupting("test"))
    assert not Path(f"/proc/{note.read_text()}").exists()


def test_a_folder_with_a_mount_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = f"1 2 0:3 / {tmp_path}/root/proc rw - proc proc rw\n"
    (tmp_path / "root").mkdir()
    monkeypatch.setattr(Path, "read_text", lambda self: mounted if str(self) == "/proc/self/mountinfo" else "")
    with pytest.raises(PlatformError, match="still mounted"):
        image_build.remove_tree(tmp_path / "root", RIGHTS)
    assert (tmp_path / "root").is_dir()


def test_the_command_prints_the_folder(
    images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(image, "build", complete)
    assert image.main(["x"]) == image.main([]) == image.main(["build", "xenial"]) == 2
    assert image.main(["build"]) == 0
    assert capsys.readouterr().out == f"{images / image_build.image_id()}\n"


NAME = "trainyard-debian-13-0123456789abcdef"
PLAN = planned("local", {"platform__accelerator": "tcg"}).plan


@pytest.fixture
def run(tmp_path: Path, stack_run: Path, console: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The run folder of a builder that completes its stages and shuts down."""
    monkeypatch.setattr(bake, "runs_folder", lambda: tmp_path / "run")
    monkeypatch.setenv("FAKE_DIES", "1")
    console.write_text("booting\r\ntrainyard-bake: stage 20-apt for head\r\n[   9.1] trainyard-bake: done\r\n")
    folder = tmp_path / "run" / NAME
    yield folder
    sweep_run(folder)


def nothing_is_left(run: Path) -> bool:
    incomplete = list((cache_folder() / "images").glob(f"{bake.BUILDING}*"))
    return not (started_under(run) or run.exists() or socket_folder(run).exists() or incomplete)


def test_a_complete_image_is_stored_and_built_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bake_here(PLAN, NAME) == NAME
    made = find_image(NAME)
    assert made
    assert made.kernel.read_bytes() == b"\x7fELF"
    assert require_image(NAME) == made
    assert nothing_is_left(run)
    monkeypatch.setattr(bake, "_build", lambda *_: pytest.fail("built again"))
    assert bake_here(PLAN, NAME) == NAME


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("trainyard-bake: failed: stage 44-containers ended\r\n", "44-containers ended"),
        ("", "the builder stopped early"),
    ],
)
def test_a_failed_bake_is_reported_and_leaves_nothing(run: Path, console: Path, said: str, reason: str) -> None:
    console.write_text(f"E: no package docker.io\r\n{said}")
    with pytest.raises(PlatformError, match=reason) as failure:
        bake_here(PLAN, NAME)
    assert "No image was stored" in str(failure.value)
    assert "E: no package docker.io" in str(failure.value)
    assert nothing_is_left(run)
    assert find_image(NAME) is None


def test_an_interrupted_bake_leaves_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        assert started_under(run)
        raise KeyboardInterrupt

    monkeypatch.delenv("FAKE_DIES")
    monkeypatch.setattr(bake, "_wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bake_here(PLAN, NAME)
    assert nothing_is_left(run)
    assert find_image(NAME) is None


def test_files_of_a_killed_bake_are_removed(run: Path) -> None:
    (cache_folder() / "images" / f"{bake.BUILDING}dead").mkdir()
    (run / "builder").mkdir(parents=True)
    bake_here(PLAN, NAME)
    assert nothing_is_left(run)


def test_a_missing_image_is_reported(image: GoldenImage) -> None:
    with pytest.raises(PlatformError, match=f"the image {NAME} is not on this computer. Fix: run `yard bake`"):
        require_image(NAME)


def test_an_incomplete_line_is_not_a_report() -> None:
    assert report_in("trainyard-bake: stage 10-base\r\ntrainyard-bake: do") == "stage 10-base"
    assert report_in("") == ""
