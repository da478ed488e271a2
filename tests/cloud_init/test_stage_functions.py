"""Functions in stage.sh that change files owned by other programs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import STAGES

STAGE_SH = (STAGES.parent / "stage.sh").read_text()
GIVEN = "127.0.0.1 localhost\n127.0.1.1 mine\n"


def call(function: str, script: str) -> str:
    """Run a bash script that can call a function from stage.sh. Return the script's output."""
    found = "\n".join(re.findall(rf"^{function}\(\) \{{.*?^\}}$", STAGE_SH, re.M | re.S))
    start = "set -euo pipefail\nis_existing_host() { false; }\nchanged=0\n"
    done = subprocess.run(
        ["bash", "-c", start + found + "\n" + script], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def put(file: Path, lines: str) -> int:
    """Write a block. Return the number of changed files."""
    return int(call("put_block", f"put_block {file} <<<'{lines}'; echo $changed"))


def test_block_is_added_and_replaced_without_other_changes(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(GIVEN)
    assert put(file, "10.0.0.4 a") == 1
    assert file.read_text() == f"{GIVEN}# trainyard\n10.0.0.4 a\n# end of trainyard\n"
    file.write_text(file.read_text() + "192.0.2.1 later\n")
    assert put(file, "10.0.0.5 b") == 1
    assert file.read_text() == f"{GIVEN}192.0.2.1 later\n# trainyard\n10.0.0.5 b\n# end of trainyard\n"
    assert put(file, "10.0.0.5 b") == 0
    assert list(tmp_path.iterdir()) == [file]


def test_block_creates_a_file_or_ends_its_last_line(tmp_path: Path) -> None:
    assert put(tmp_path / "new", "x") == 1
    assert (tmp_path / "new").read_text() == "# trainyard\nx\n# end of trainyard\n"
    (tmp_path / "torn").write_text("theirs")
    put(tmp_path / "torn", "x")
    assert (tmp_path / "torn").read_text().startswith("theirs\n# trainyard\n")


@pytest.mark.parametrize(
    "torn",
    [
        f"# trainyard\n10.0.0.4 a\n{GIVEN}",
        f"{GIVEN}10.0.0.4 a\n# end of trainyard\n",
        f"# trainyard\n10.0.0.4 a\n{GIVEN}# trainyard\n10.0.0.5 b\n# end of trainyard\n",
    ],
)
def test_missing_marker_of_a_block_deletes_no_line(torn: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(torn)
    assert call("put_block", f"fail() {{ echo \"$*\"; exit; }}\nput_block {file} <<<'10.0.0.6 c'").startswith(
        f"{file}: '# trainyard' and '# end of trainyard' must enclose the cluster's lines"
    )
    assert file.read_text() == torn
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("hostname", "line"),
    [("node1", ""), ("node1.example.org", ""), ("odd.example.org", "10.0.0.7 odd.example.org odd\n")],
)
def test_own_host_line_has_the_hostname_if_it_differs(hostname: str, line: str) -> None:
    names = f"HOSTNAME={hostname} TRAINYARD_NODE=node1 TRAINYARD_PRIVATE_IP=10.0.0.7"
    assert call("own_host_line", f"{names}\nown_host_line") == line
