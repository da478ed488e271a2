"""The program that ends the command of a `yard run` session when the SSH connection closes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from yard.run.schedulers import until_disconnected

SUPERVISOR = ROOT / "yard" / "run" / "supervisor.py"


def run(*command: str) -> subprocess.Popen[str]:
    line = [sys.executable, str(SUPERVISOR), *command]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("true", 0), ("kill -9 $$", 137)])
def test_exit_code_is_that_of_the_command(script: str, code: int) -> None:
    with run("bash", "-c", script) as process:
        assert process.wait(20) == code


def test_input_and_output_are_passed_on() -> None:
    with run("cat") as process:
        assert process.communicate("some text\n", timeout=20)[0] == "some text\n"
    assert process.returncode == 0


def test_command_ends_with_its_children_when_the_output_is_closed(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    with run("bash", "-c", f"sleep 300 & echo $! >{mark}; echo started; wait") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.stdout.close()
        assert process.wait(20) == 143
    deadline = time.monotonic() + 10
    stat = Path(f"/proc/{mark.read_text().strip()}/stat")
    while stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_line_is_one_shell_command() -> None:
    done = subprocess.run(
        ["bash", "-c", until_disconnected('echo "it\'s $((1 + 1))"; exit 3')],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "it's 2\n")
