"""The outputs contract: what it says to people. What `yard` reads of it is tested with yard."""

from __future__ import annotations

import shlex

import pytest

from components.outputs import ssh_command

HEAD = {"address": "203.0.113.7", "port": 22, "admin_user": "ops", "proxy_jump": None}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ["ssh", "-p", "22", "ops@203.0.113.7"]),
        ({"port": 22100, "address": "127.0.0.1"}, ["ssh", "-p", "22100", "ops@127.0.0.1"]),
        ({"proxy_jump": "ops@bastion:2222"}, ["ssh", "-J", "ops@bastion:2222", "-p", "22", "ops@203.0.113.7"]),
    ],
)
def test_the_ssh_command_is_one_that_ssh_understands(change: dict[str, object], words: list[str]) -> None:
    assert shlex.split(ssh_command(HEAD | change)) == words
