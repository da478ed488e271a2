"""Runs node programs with fake commands and with absolute paths moved into a folder."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILES = Path(__file__).parents[2] / "cloud-init" / "files" / "usr" / "local"


def tar(files: Mapping[str, str]) -> bytes:
    """Return a tar archive of text files. Files that begin with "#!" are executable."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(text.encode()), 0o755 if text.startswith("#!") else 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


@dataclass
class NodeSandbox:
    """A node. `root`: its root folder."""

    root: Path

    def __post_init__(self) -> None:
        for folder in ("bin", "etc", "run", "usr/local/lib", "usr/local/sbin", "var/lib/trainyard"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def answer(self, command: str, script: str) -> None:
        """Replace a command with a shell script and delete the recorded calls."""
        file = self.root / "bin" / command
        file.write_text(f'#!/bin/sh\necho "$@" >>{self.root}/calls-{command}\n{script}\n')
        file.chmod(0o755)
        self.write(f"calls-{command}", "")

    def calls(self, command: str) -> list[str]:
        return self.read(f"calls-{command}").splitlines()

    def moved(self, script: str) -> str:
        """Return the text of a node program with its paths moved below `root`."""
        text = (FILES / script).read_text()
        return re.sub(r"(?<![\w.}/])/(etc|run|usr/local/(?:lib|sbin)|var)/", rf"{self.root}/\1/", text)

    def activate(self, bundle: str, *programs: str) -> None:
        folder = self.root / "var/lib/trainyard/bundles" / bundle
        for name in programs:
            (folder / name).write_text(self.moved(f"lib/trainyard/{name}"))
            (folder / name).chmod(0o755)
        link = self.root / "usr/local/lib/trainyard"
        link.unlink(missing_ok=True)
        link.symlink_to(folder)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}

    def run(self, script: str, input: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program on the node, with additional environment variables."""
        return subprocess.run(
            ["bash", "-c", self.moved(script)], input=input, text=True, capture_output=True, check=False, timeout=60,
            env={**self.environment, **env},
        )  # fmt: skip

    def start_bootstrap(self) -> subprocess.Popen[str]:
        path, pipe = self.root / "usr/local/lib/trainyard/bootstrap", subprocess.PIPE
        return subprocess.Popen([path], env=self.environment, text=True, stdout=pipe, stderr=pipe)

    def bootstrap(self) -> subprocess.CompletedProcess[str]:
        process = self.start_bootstrap()
        out, errors = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, errors)

    def wait_for_line(self, path: str, end: str, seconds: float = 30) -> None:
        """Wait until a line in the file ends with `end`."""
        deadline = time.monotonic() + seconds
        file = self.root / path
        while not (file.exists() and any(line.endswith(end) for line in file.read_text().splitlines())):
            assert time.monotonic() < deadline, f"{path} has no line that ends with {end}"
            time.sleep(0.05)
