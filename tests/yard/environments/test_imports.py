"""Listing and reading the files of an import, with a package that maps one page of a large file."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard.project import ROOT
from yard.environments.build import IMPORTS, MARKER
from yard.environments.imports import LIST, read, record

pytestmark = pytest.mark.engine

MIB = 1 << 20
TORCH = """
import mmap, pathlib
from torch import part
file = pathlib.Path(__file__).with_name("lib.so").open("rb")
mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
mapped[32 << 20]
"""


def drop(path: Path) -> None:
    with path.open("rb") as opened:
        os.fsync(opened.fileno())  # only written pages can be dropped
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached(path: Path) -> list[int]:
    """Return the numbers of the MiB of which a page is in the page cache (mincore(2))."""
    size = path.stat().st_size
    states = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        view = ctypes.c_char.from_buffer(mapped)
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), states) == 0
        del view
    return sorted({index * mmap.PAGESIZE // MIB for index, state in enumerate(states) if state & 1})


@pytest.fixture
def envs() -> Iterator[Path]:
    # The pages of files in memory, for example in a test folder under /dev/shm, cannot be dropped.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def make(envs: Path, name: str, torch: str) -> Path:
    venv.create(envs / name, symlinks=True)
    package = next((envs / name).glob("lib/python*/site-packages")) / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(torch)
    (package / "part.py").write_text("")
    (package / "unused.py").write_text("x = 1\n")
    with (package / "lib.so").open("wb") as library:
        library.truncate(64 * MIB)
    return envs / name


def test_an_import_reads_the_recorded_ranges(envs: Path) -> None:
    environment = make(envs, "own", TORCH)
    record(environment)
    library = next(environment.glob("lib/python*/site-packages/torch/lib.so"))
    entries = dict(json.loads((environment / LIST).read_text()))
    assert str(library.with_name("__init__.py")) in entries
    assert str(library.with_name("unused.py")) not in entries
    ((offset, size),) = entries[str(library)]
    assert offset <= 32 * MIB < offset + size <= 33 * MIB
    drop(library)
    if cached(library):
        pytest.skip("this file system keeps dropped pages")
    read(environment)
    assert 32 in cached(library)
    assert 60 not in cached(library)


def test_an_environment_on_another_has_the_list_of_both(envs: Path) -> None:
    base = make(envs, "base", TORCH)
    record(base)
    plus = make(envs, "plus", "import part_of_base")
    record(plus, base)
    assert json.loads((plus / LIST).read_text()) == json.loads((base / LIST).read_text()) != []


def test_a_failed_import_and_a_lost_file_are_no_errors(envs: Path) -> None:
    environment = make(envs, "own", "raise RuntimeError")
    record(environment)
    assert json.loads((environment / LIST).read_text()) == []
    (environment / LIST).write_text(json.dumps([[str(environment / "lost"), [[0, mmap.PAGESIZE]]]]))
    read(environment)


@pytest.mark.parametrize(("local_rank", "reads"), [("0", True), ("1", False)])
def test_the_first_task_on_a_node_reads_the_list(envs: Path, local_rank: str, reads: bool) -> None:
    environment = make(envs, "own", "")
    (environment / MARKER).write_text("{}\n")
    (environment / LIST).write_text("[]\n")
    (environment / IMPORTS).write_text(
        "import os, pathlib, sys\n"
        "pathlib.Path(sys.argv[2], 'seen').write_text(f'{sys.argv[1]} {os.getenv(\"RANK\")}')\n"
    )
    (envs / "environment").write_text(f"{environment}\n")
    variables = {**os.environ, "RUN_DIR": str(envs), "RANK": local_rank, "LOCAL_RANK": local_rank, "NODE_RANK": "0"}
    line = f"source {ROOT}/yard/run/shared.sh; use_environment; wait; command -v python3"
    done = subprocess.run(["bash", "-c", line], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == f"{environment}/bin/python3\n"
    seen = environment / "seen"
    assert (seen.read_text() if seen.exists() else None) == ("read None" if reads else None)
