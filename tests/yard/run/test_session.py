"""`yard run`: the ssh commands for both schedulers, refusals, exit codes and forwarded ports. ssh is a fake program."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.integration.project import alive
from tests.yard.conftest import FakeStack, MakeProgram, printed, refused, yard
from trainyard.outputs import Cluster
from yard.run.schedulers import until_disconnected


def commands(*words: str) -> dict[str, Any]:
    """Return the commands that --json prints."""
    out = printed("run", "--json", *words)
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.fixture
def without_slurm(stack: FakeStack, local: Cluster) -> FakeStack:
    """A stack without a scheduler, on whose first node a job runs."""
    stack.deploy(replace(local, scheduler="none"))
    stack.program("ssh", """[[ $* != *' nodes' ]] || echo '["yard-gpu-0"]'""")
    return stack


def test_a_session_is_a_step_of_an_allocation(stack: FakeStack) -> None:
    argv = commands("--nodes", "2", "--time", "2h")["argv"]
    assert argv[:5] == ["ssh", "-F", str(stack.folder / "config"), "-t", "yard-head"]
    words = shlex.split(argv[5])
    step = words.index("srun")
    assert words[0] == "salloc"
    assert {"--partition=gpu", "--nodes=2", "--gpus-per-node=2", "--exclusive", "--time=02:00:00"} <= set(words[:step])
    assert not [word for word in words[:step] if word.startswith(("--requeue", "--signal", "--output"))]
    assert {"--nodes=1", "--ntasks=1", "--overlap", "--pty", "--gpus-per-node=2"} <= set(words[step:])
    assert words[-3:-1] == ["bash", "-c"]
    assert words[-1].endswith("exec bash -l")


def test_a_command_on_a_part_of_a_node_keeps_its_quotes(stack: FakeStack) -> None:
    words = shlex.split(commands("--gpus", "1", "--", "echo", "a b; c")["argv"][5])
    assert words[-1].endswith("; echo 'a b; c'")
    assert "--gpus-per-node=1" in words
    assert "--exclusive" not in words


@pytest.mark.parametrize(("words", "typed"), [((), "printenv"), (("--", "printenv"), "")], ids=["shell", "command"])
def test_a_session_activates_an_environment(
    words: tuple[str, ...], typed: str, without_slurm: FakeStack, program: MakeProgram
) -> None:
    nodes = """*' nodes') echo '["yard-gpu-0"]' ;;"""
    program("ssh", f"""case $* in {nodes} *sha256sum*) echo ready '/shared/envs/a b-1' ;; esac""")
    line = commands("--env", "torch", *words)["argv"][5]
    done = subprocess.run(["bash", "-c", line], input=typed, capture_output=True, text=True, check=True, timeout=30)
    variables = dict(row.split("=", 1) for row in done.stdout.splitlines() if "=" in row)
    assert variables["VIRTUAL_ENV"] == "/shared/envs/a b-1"
    assert variables["PATH"].startswith("/shared/envs/a b-1/bin:/")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "3", "--", "true"], "the job needs 3 nodes, but group 'gpu' has 2"),
        (["--gpus", "4", "--", "true"], "the job needs 4 GPUs per node"),
        (["--group", "cpu", "--", "true"], "has no node group 'cpu'"),
        (["--time", "soon", "--", "true"], "time"),
        (["--env", "troch", "--", "true"], "torch"),
        ([], "a shell needs a terminal"),
    ],
)
def test_impossible_sessions_are_refused(words: list[str], message: str, stack: FakeStack) -> None:
    ssh = stack.program("ssh", "exit 0")
    assert message in refused("run", *words)
    assert ssh.calls == []


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--nodes", "2"), "without a scheduler, a session uses one node"), ((), "all nodes in group 'gpu' run jobs")],
)
def test_sessions_that_need_a_scheduler_are_refused(
    words: tuple[str, ...], message: str, without_slurm: FakeStack, program: MakeProgram
) -> None:
    program("ssh", """[[ $* != *' nodes' ]] || echo '["yard-gpu-0", "yard-gpu-1"]'""")
    assert message in refused("run", *words, "--", "true")


def test_the_exit_code_is_that_of_the_session(stack: FakeStack) -> None:
    ssh = stack.program("ssh", "[[ $* != *salloc* ]] || exit 7")
    code, _, err = yard("run", "--", "false")
    assert code == 7
    assert f"Include {stack.folder / 'config'}" in err
    assert " -t " not in ssh.calls[-1]
    assert "--pty" not in ssh.calls[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["terminated", "hung up"])
def test_a_signal_ends_the_session(number: int, stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = stack.program("ssh", f"[[ $* != *salloc* ]] || {{ echo $$ >{stack.root}/pid; exec sleep 60; }}")
    started = stack.root / "pid"

    def interrupt() -> None:
        while not started.exists() or not started.read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    before = signal.signal(number, lambda *_: pytest.fail("the session does not handle the signal"))
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        code, _, _ = yard("run", "--", "sleep 60")
    finally:
        signal.signal(number, before)
    assert code == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert "salloc" in ssh.calls[-1]


FORWARDS = """
case $* in
  *salloc*) for _ in $(seq 100); do [[ ! -e {0}/forwarded ]] || exit 0; sleep 0.1; done; exit 9 ;;
  *squeue*) [[ -e {0}/asked ]] && echo yard-gpu-1; touch {0}/asked ;;
  *-L*) touch {0}/forwarded; exec sleep 60 ;;
esac
"""


def test_ports_are_forwarded_to_the_allocated_node(stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yard.run.session._SECONDS_BETWEEN_QUERIES", 0.05)
    ssh = stack.program("ssh", FORWARDS.format(stack.root))
    code, _, err = yard("run", "--port", "8888", "--port", "6006", "--", "jupyter lab")
    assert code == 0
    assert "http://127.0.0.1:8888" in err
    assert "not forwarded" not in err
    [forward] = [call for call in ssh.calls if " -L " in call]
    assert "-L 127.0.0.1:8888:127.0.0.1:8888 -L 127.0.0.1:6006:127.0.0.1:6006" in forward
    assert "-o ControlPath=none" in forward
    assert " yard-gpu-1 " in f"{forward} "


def test_a_port_in_use_is_reported_at_the_end(stack: FakeStack) -> None:
    body = "case $* in *salloc*) sleep 2 ;; *squeue*) echo yard-gpu-0 ;; *-L*) echo 'in use' >&2; exit 255 ;; esac"
    stack.program("ssh", body)
    code, _, err = yard("run", "--port", "8888", "--", "true")
    assert code == 0
    assert "the ports were not forwarded: in use" in err


def test_a_session_without_a_scheduler_uses_a_free_node(without_slurm: FakeStack) -> None:
    found = commands("--port", "8888")
    assert found["argv"][4] == "yard-gpu-1"
    assert "salloc" not in found["argv"][5]
    assert {"-L", "yard-gpu-1"} <= set(found["forward"])


@pytest.mark.parametrize(("script", "code"), [('cat; echo "it\'s $((1 + 1))"; exit 3', 3), ("kill -9 $$", 137)])
def test_line_is_one_shell_command(script: str, code: int) -> None:
    line = ["bash", "-c", until_disconnected(script)]
    done = subprocess.run(line, input="input\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "input\nit's 2\n" if code == 3 else "")


def test_command_ends_with_its_children_when_the_output_is_closed(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    supervisor = [sys.executable, str(ROOT / "yard" / "run" / "supervisor.py")]
    command = [*supervisor, "bash", "-c", f"sleep 300 & echo $! >{mark}; echo started; wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.stdout.close()
        assert process.wait(20) == 143
    deadline = time.monotonic() + 10
    while alive(int(mark.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)
