"""SSH connections. A failed connection is retried once if the command cannot have run."""

from __future__ import annotations

import pytest

from tests.yard.conftest import FakeStack, MakeProgram
from trainyard.errors import RemoteError
from yard.stack.load import load_stack, save_for_jobs
from yard.stack.remote import Remote, shell


@pytest.mark.parametrize("words", ["Host key verification failed.", "connect to host x port 1: Connection refused"])
def test_a_refused_connection_is_repeated_with_new_outputs(words: str, stack: FakeStack, program: MakeProgram) -> None:
    remote = Remote(load_stack("local"))
    ssh = program(
        "ssh",
        f'[[ $(wc -l <"{stack.root}/programs/ssh.calls") -gt 1 ]] || {{ echo "{words}" >&2; exit 255; }}; echo here',
    )
    assert remote.run("hostname") == "here\n"
    assert len(ssh.calls) == 2
    assert len(stack.pulumi.calls) == 2


def test_an_unreachable_head_is_reported_with_a_fix(stack: FakeStack, program: MakeProgram) -> None:
    remote = Remote(load_stack("local"))
    ssh = program("ssh", 'echo "Connection refused" >&2; exit 255')
    with pytest.raises(RemoteError, match=r"cannot reach yard-head \(127.0.0.1 port 22001\): Connection refused"):
        remote.run("hostname")
    assert len(ssh.calls) == 2
    with pytest.raises(RemoteError):
        remote.run("hostname")
    assert len(ssh.calls) == 3


@pytest.mark.parametrize(
    ("code", "words"), [(1, "sbatch: error: Batch job submission failed"), (255, "client_loop: send")]
)
def test_a_command_that_may_have_run_is_not_run_again(
    code: int, words: str, stack: FakeStack, program: MakeProgram
) -> None:
    remote = Remote(load_stack("local"))
    ssh = program("ssh", f'echo "{words}" >&2; exit {code}')
    with pytest.raises(RemoteError, match=words):
        remote.run("sbatch")
    assert len(ssh.calls) == 1


def test_hosts_are_those_of_the_cluster(stack: FakeStack) -> None:
    remote = Remote(load_stack("local"))
    assert remote.host(None) == "yard-head"
    assert remote.host("yard-gpu-1", admin=True) == "yard-gpu-1-admin"
    with pytest.raises(RemoteError, match="its hosts: yard-head, yard-gpu-0, yard-gpu-1"):
        remote.host("elsewhere")


def test_an_admin_login_without_the_key_is_refused(stack: FakeStack, program: MakeProgram) -> None:
    saved = stack.root / "jobs.json"
    save_for_jobs(load_stack("local"), saved)
    remote = Remote(load_stack("local", file=saved))
    ssh = program("ssh", "echo ok")
    assert remote.run("true") == "ok\n"
    with pytest.raises(RemoteError, match=r"jobs\.json contains no admin key"):
        remote.run("true", admin=True)
    assert len(ssh.calls) == 1


def test_one_argument_is_a_shell_line() -> None:
    assert shell(["echo $HOME | wc"]) == "echo $HOME | wc"
    assert shell(["echo", "a b", "$HOME"]) == "echo 'a b' '$HOME'"
