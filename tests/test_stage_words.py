"""The words that stages are written in, where they touch files that are not the cluster's alone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.stage_sandbox import STAGES

WORDS = (STAGES.parent / "stage.sh").read_text()
GIVEN = "127.0.0.1 localhost\n127.0.1.1 mine\n"


def call(words: str, script: str) -> str:
    """Run a script with some of the words, on a machine that is borrowed unless they say otherwise."""
    found = "\n".join(re.findall(rf"^(?:{words})\(\) \{{.*?^\}}$", WORDS, re.M | re.S))
    start = "set -euo pipefail\nis_borrowed() { false; }\nchanged=0\n"
    done = subprocess.run(
        ["bash", "-c", start + found + "\n" + script], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def put(file: Path, lines: str) -> int:
    """Put a block, and return how many files that changed."""
    return int(call("put_block", f"put_block {file} <<<'{lines}'; echo $changed"))


def test_a_block_comes_changes_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(GIVEN)
    assert put(file, "10.0.0.4 a") == 1
    assert file.read_text() == f"{GIVEN}# trainyard\n10.0.0.4 a\n# end of trainyard\n"
    file.write_text(file.read_text() + "192.0.2.1 later\n")
    assert put(file, "10.0.0.5 b") == 1
    assert file.read_text() == f"{GIVEN}192.0.2.1 later\n# trainyard\n10.0.0.5 b\n# end of trainyard\n"
    assert put(file, "10.0.0.5 b") == 0
    assert list(tmp_path.iterdir()) == [file]


def test_a_block_makes_the_file_and_ends_a_last_line_that_has_no_end(tmp_path: Path) -> None:
    assert put(tmp_path / "new", "x") == 1
    assert (tmp_path / "new").read_text() == "# trainyard\nx\n# end of trainyard\n"
    (tmp_path / "torn").write_text("theirs")
    put(tmp_path / "torn", "x")
    assert (tmp_path / "torn").read_text().startswith("theirs\n# trainyard\n")


@pytest.mark.parametrize(
    ("hostname", "line"),
    [("node1", ""), ("node1.example.org", ""), ("odd.example.org", "10.0.0.7 odd.example.org odd\n")],
)
def test_a_machine_finds_the_name_that_it_calls_itself(hostname: str, line: str) -> None:
    names = f"HOSTNAME={hostname} TRAINYARD_NODE=node1 TRAINYARD_PRIVATE_IP=10.0.0.7"
    assert call("own_name", f"{names}\nown_name") == line
