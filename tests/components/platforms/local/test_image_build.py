"""Tests for builds and the cache of golden images."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from components.platforms.local import image, image_build
from components.platforms.local.image_build import Archive, BuildProgress, Privilege
from tests.components.platforms.local.conftest import Executable
from trainyard.errors import PlatformError

ARCHIVE = Archive(main="http://m/debian", security="http://m/debian-security")
RIGHTS = Privilege(mode="root", prefix=(), why="root")
ELF = b"\x7fELF" + bytes(range(256)) * 40


def bzimage(content: bytes) -> bytes:
    """Return a file in the format of Debian's kernel: setup sectors, a zstd payload and the size of the payload's
    content."""
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
    monkeypatch.setattr(image, "machine_archive", lambda: ARCHIVE)
    monkeypatch.setattr(image, "privilege", lambda: RIGHTS)
    return tmp_path / "images"


def complete(work: Path, *_: object) -> None:
    for name in ("gold.qcow2", "vmlinux", "manifest.json"):
        (work / name).write_text("")


def test_vmlinux_extracts_the_kernel() -> None:
    assert image_build.vmlinux(bzimage(ELF)) == ELF


@pytest.mark.parametrize("damaged", [b"\0" * 4096, bzimage(b"no kernel"), bzimage(ELF)[:-200]])
def test_a_kernel_in_another_format_is_refused(damaged: bytes) -> None:
    with pytest.raises(PlatformError, match="golden image"):
        image_build.vmlinux(damaged)


def test_an_image_is_built_once(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []

    def count(work: Path, *_: object) -> None:
        built.append(work)
        complete(work)

    monkeypatch.setattr(image, "build", count)
    assert image.find_image(image_build.image_id()) is None
    first, second = image.ensure_image(), image.ensure_image()
    assert first == second
    assert len(built) == 1
    assert sorted(path.name for path in images.iterdir()) == sorted([image_build.image_id(), "lock"])


def test_concurrent_builds_create_one_image(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []

    def slow(work: Path, *_: object) -> None:
        time.sleep(0.3)
        built.append(work)
        complete(work)

    monkeypatch.setattr(image, "build", slow)
    threads = [threading.Thread(target=image.ensure_image) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(built) == 1


@pytest.mark.parametrize("failure", [PlatformError("no network"), KeyboardInterrupt(), SystemExit(143)])
def test_a_failed_build_leaves_no_files(images: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    def fail(work: Path, *_: object) -> None:
        (work / "root").mkdir()
        raise failure

    monkeypatch.setattr(image, "build", fail)
    with pytest.raises(type(failure)):
        image.ensure_image()
    assert [path.name for path in images.iterdir()] == ["lock"]


def test_the_next_build_removes_files_of_a_killed_build(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (images / "building-dead" / "root").mkdir(parents=True)
    monkeypatch.setattr(image, "build", complete)
    image.ensure_image()
    assert sorted(path.name for path in images.iterdir()) == sorted([image_build.image_id(), "lock"])


def test_a_build_keeps_the_previous_and_baked_images(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    baked = "trainyard-debian-13-0123456789abcdef"
    for age, name in ((4000, baked), (3000, "oldest"), (2000, "old"), (1000, "previous")):
        (images / name).mkdir(parents=True)
        complete(images / name)
        stamp = time.time() - age
        os.utime(images / name / "manifest.json", (stamp, stamp))
    monkeypatch.setattr(image, "build", complete)
    image.ensure_image()
    assert sorted(path.name for path in images.iterdir()) == sorted([image_build.image_id(), "lock", "previous", baked])


def test_a_build_keeps_the_images_of_existing_disks(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = images.parent / "disk.qcow2"
    disk.touch()
    for age, name in ((4000, "moved"), (3000, "held"), (2000, "old"), (1000, "previous")):
        (images / name).mkdir(parents=True)
        complete(images / name)
        stamp = time.time() - age
        os.utime(images / name / "manifest.json", (stamp, stamp))
    # The disk was first based on the image `moved`. A new machine at the same path is based on `held`.
    image.hold_image(image.GoldenImage(images / "moved"), disk)
    image.hold_image(image.GoldenImage(images / "held"), disk)
    monkeypatch.setattr(image, "build", complete)
    image.ensure_image()
    kept = sorted([image_build.image_id(), "held", "lock", "previous"])
    assert sorted(path.name for path in images.iterdir()) == kept

    disk.unlink()
    shutil.rmtree(images / image_build.image_id())
    image.ensure_image()
    assert sorted(path.name for path in images.iterdir()) == sorted([image_build.image_id(), "lock", "previous"])


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
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"1 2 0:3 / {tmp_path}/root/proc rw - proc proc rw\n")
    (tmp_path / "root").mkdir()
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda self: real(mountinfo if str(self) == "/proc/self/mountinfo" else self)
    )
    with pytest.raises(PlatformError, match="still mounted"):
        image_build.remove_tree(tmp_path / "root", RIGHTS)
    assert (tmp_path / "root").is_dir()


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["x"], 2)])
def test_the_command_prints_its_usage(images: Path, arguments: list[str], code: int) -> None:
    assert image.main(arguments) == code


def test_the_command_prints_the_folder(
    images: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(image, "build", complete)
    assert image.main(["build"]) == 0
    assert capsys.readouterr().out == f"{images / image_build.image_id()}\n"
