"""A fake QEMU, a fake switch and a fake golden image, with real processes and files."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import run
from textwrap import dedent

import pytest

from components.platforms.local.image import GoldenImage
from components.platforms.local.image_build import image_id
from components.platforms.local.paths import socket_folder
from components.platforms.local.process import end, started_under
from tests.components.platforms.recording import HOST_KEY

_DAEMON = """
    import os, pathlib, sys, time
    arguments = sys.argv[1:]
    value = lambda option: arguments[arguments.index(option) + 1]
    ready, done = os.pipe()
    if os.fork():
        os.close(done)
        os.read(ready, 1)
        sys.exit(0)
    os.setsid()
    for handle in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), handle)
"""
# Like QEMU with -daemonize, the program returns when the process in the background has written its own pidfile. An
# earlier machine's pidfile can still exist, so the program must not wait for the file's existence.
_QEMU = """
    pathlib.Path(value("-pidfile")).write_text(f"{os.getpid()}\\n")
    os.close(done)
    console = next(part for part in value("-chardev").split(",") if part.startswith("path="))[5:]
    with open(console, "a") as log:
        log.write(open(os.environ["FAKE_CONSOLE"]).read())
    if not os.environ.get("FAKE_DIES"):
        time.sleep(600)
"""
_SWITCH = """
    pathlib.Path(value("-s")).mkdir(exist_ok=True)
    pathlib.Path(value("-p")).write_text(f"{os.getpid()}\\n")
    os.close(done)
    time.sleep(600)
"""

Executable = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore sys.tracebacklimit after the test, because failing providers set it."""
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)


@pytest.fixture
def executable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Executable:
    """Return a function that creates a Python program in the first folder on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def make(name: str, program: str) -> Path:
        path = folder / name
        path.write_text(f"#!{sys.executable} -IS\n{dedent(program)}")
        path.chmod(0o755)
        return path

    return make


@pytest.fixture
def console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with the console output for the next fake guest. By default, it contains the last lines of the boot log."""
    path = tmp_path / "console"
    path.write_text(f"booting\r\n[   12.3] trainyard-hostkey: {HOST_KEY}\r\n")
    monkeypatch.setenv("FAKE_CONSOLE", str(path))
    return path


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GoldenImage:
    """The image of this checkout in a cache, with an empty disk and an empty kernel."""
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "images" / image_id()
    folder.mkdir(parents=True)
    run(["qemu-img", "create", "-q", "-f", "qcow2", str(folder / "gold.qcow2"), "1M"], check=True)
    (folder / "vmlinux").write_bytes(b"\x7fELF")
    (folder / "manifest.json").write_text("{}")
    return GoldenImage(folder)


@pytest.fixture
def stack_run(tmp_path: Path, image: GoldenImage, console: Path, executable: Executable) -> Iterator[Path]:
    """A run folder. QEMU and the switch are fakes whose processes end with the test."""
    executable("qemu-system-x86_64", _DAEMON + _QEMU)
    executable("vde_switch", _DAEMON + _SWITCH)
    folder = tmp_path / "run" / "stack"
    yield folder
    for pid in started_under(folder):
        end(pid)
    shutil.rmtree(socket_folder(folder), ignore_errors=True)
