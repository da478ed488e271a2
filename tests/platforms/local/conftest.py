"""A stand-in for QEMU and for the golden image: processes and files are real, only the guest is not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import run
from textwrap import dedent

import pytest

from components.platforms.local.image import GoldenImage, image_id
from components.platforms.local.paths import socket_folder
from components.platforms.local.process import end, started_under

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFakeFakeFakeFakeFakeFakeFakeFakeFakeFakeFak"

# Starts like the real one: returns once a process of its own session runs, whose arguments name the pidfile.
_QEMU = """
    import os, pathlib, sys, time
    arguments = sys.argv[1:]
    value = lambda option: arguments[arguments.index(option) + 1]
    if os.fork():
        while not pathlib.Path(value("-pidfile")).exists():
            time.sleep(0.01)
        sys.exit(0)
    os.setsid()
    pathlib.Path(value("-pidfile")).write_text(f"{os.getpid()}\\n")
    sys.stdout = sys.stderr = open(os.devnull, "w")
    for handle in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), handle)
    console = next(part for part in value("-chardev").split(",") if part.startswith("path="))[5:]
    with open(console, "a") as log:
        log.write(open(os.environ["FAKE_CONSOLE"]).read())
    if not os.environ.get("FAKE_DIES"):
        time.sleep(600)
"""
_SWITCH = """
    import os, pathlib, sys, time
    arguments = sys.argv[1:]
    value = lambda option: arguments[arguments.index(option) + 1]
    if os.fork():
        sys.exit(0)
    os.setsid()
    for handle in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), handle)
    pathlib.Path(value("-s")).mkdir(exist_ok=True)
    pathlib.Path(value("-p")).write_text(f"{os.getpid()}\\n")
    time.sleep(600)
"""

Executable = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider shortens its process's tracebacks when it fails: here that process is the test run's own."""
    monkeypatch.setattr(sys, "tracebacklimit", 1000, raising=False)


@pytest.fixture
def executable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Executable:
    """Put a Python program of that name first on PATH."""
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
    """What the next fake guest prints; a booting guest's last lines unless a test says otherwise."""
    path = tmp_path / "console"
    path.write_text(f"booting\r\n[   12.3] trainyard-hostkey: {HOST_KEY}\r\n")
    monkeypatch.setenv("FAKE_CONSOLE", str(path))
    return path


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GoldenImage:
    """A cache that holds the image that this checkout asks for, with an empty disk and kernel."""
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "images" / image_id()
    folder.mkdir(parents=True)
    run(["qemu-img", "create", "-q", "-f", "qcow2", str(folder / "gold.qcow2"), "1M"], check=True)
    (folder / "vmlinux").write_bytes(b"\x7fELF")
    (folder / "manifest.json").write_text("{}")
    return GoldenImage(id=image_id(), folder=folder)


@pytest.fixture
def stack_run(tmp_path: Path, image: GoldenImage, console: Path, executable: Executable) -> Iterator[Path]:
    """A run folder to be, on a machine where QEMU and the switch are fake. Nothing of it outlives the test."""
    executable("qemu-system-x86_64", _QEMU)
    executable("vde_switch", _SWITCH)
    folder = tmp_path / "run" / "stack"
    yield folder
    for pid in started_under(folder):
        end(pid)
    sockets = socket_folder(folder)
    for leftover in sockets.rglob("*") if sockets.exists() else ():
        leftover.rmdir()
    if sockets.exists():
        sockets.rmdir()
