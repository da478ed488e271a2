"""Commands over SSH with the official pulumi-command plugin. Only tools/official.sh runs these tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.cluster.bringup import _IGNORED
from offline.cloud.official import use
from tests.offline.cloud.stack import TestStack
from tests.offline.loopback_sshd import Sshd

pytestmark = pytest.mark.engine

_PROGRAM = """
from pulumi_command import remote

made = remote.Command(
    "sent",
    connection=remote.ConnectionArgs(**{connection!r}),
    create="cat",
    stdin={word!r},
    opts=pulumi.ResourceOptions(ignore_changes={ignored!r}),
    **{options!r},
)
pulumi.export("stdout", made.stdout)
"""
_ADDED = {"add_previous_output_in_env": False}


class Commands(TestStack):
    __test__ = False
    sshd: Sshd

    def put(self, word: str, *, options: dict[str, bool], ignored: list[str]) -> None:
        given = self.sshd.connection()
        names = {"privateKey": "private_key", "hostKey": "host_key"}
        connection = {names.get(name, name): value for name, value in given.items()}
        self.write(_PROGRAM.format(connection=connection, word=word, options=options, ignored=ignored))


@pytest.fixture
def stack(home: Path, sshd: Sshd, tmp_path: Path) -> Commands:
    made = Commands(tmp_path)
    made.sshd = sshd
    del made.environment["TRAINYARD_OFFLINE_COMMANDS"]
    use("command", home, made.environment)
    return made


def test_the_bring_ups_options_prevent_the_warning(stack: Commands) -> None:
    for word in ("one", "two"):
        stack.put(word, options=_ADDED, ignored=_IGNORED)
        done = stack.up()
        assert done.code == 0, done
        assert stack.outputs()["stdout"] == word
        assert "AcceptEnv" not in done.text, done


def test_the_options_do_not_run_an_existing_command_again(stack: Commands) -> None:
    stack.put("one", options={}, ignored=[])
    assert stack.up().code == 0
    stack.put("one", options=_ADDED, ignored=[])
    assert "1 to update" in stack.preview().text, "ignore_changes is needed"
    stack.put("one", options=_ADDED, ignored=_IGNORED)
    planned = stack.preview("--expect-no-changes")
    assert planned.code == 0, planned
    stack.put("two", options=_ADDED, ignored=_IGNORED)
    done = stack.up()
    assert "AcceptEnv" in done.text, "a command from an older version keeps the warning"
    assert stack.outputs()["stdout"] == "two"
