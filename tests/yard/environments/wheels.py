"""Small wheels and locks for tests, without a build tool."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str = "1.0", *, script: bool = False) -> Path:
    """Write a wheel with one module, and with a console script if `script` is set."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n\ndef main():\n    print({name!r}, VERSION)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if script:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name}-run = {name}:main\n"
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def make_source(folder: Path, name: str, needs: str) -> Path:
    """Write a source package whose build imports the module `needs`, as DeepSpeed's build imports torch."""

    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(name=name, needs=needs),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
    }
    path = folder / f"{name}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{file}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


BACKEND = """
import zipfile
import {needs}

def build_wheel(folder, settings=None, metadata=None):
    file, info = "{name}-1.0-py3-none-any.whl", "{name}-1.0.dist-info/"
    with zipfile.ZipFile(folder + "/" + file, "w") as archive:
        archive.writestr("{name}.py", "BUILT_WITH = " + repr({needs}.VERSION) + "\\n")
        archive.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
        archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(info + "RECORD", "")
    return file
"""


def lock_line(path: Path) -> str:
    """Return the line of a lock for a wheel or a source package, with its hash."""
    name, version = path.name.removesuffix(".tar.gz").split("-")[:2]
    return f"{name}=={version} \\\n    --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"
