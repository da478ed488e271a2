"""The options, output and exit codes of `yard bake`."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from components.platforms.registry import Baking
from tests.components.platforms.recording import current_name, planned
from yard.commands.cli import app
from yard.stack import bake
from yard.stack.workspace import stack_names


@pytest.mark.parametrize("stack", [name for name in stack_names() if not name.startswith(("baremetal", "lambda"))])
def test_dry_run_prints_the_name_and_builds_nothing(stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bake, "bake", lambda *_, **__: pytest.fail("built"))
    done = CliRunner().invoke(app, ["bake", "--stack", stack, "--dry-run"])
    assert (done.exit_code, done.output) == (0, current_name(planned(stack, {}).plan) + "\n")
    done = CliRunner().invoke(app, ["bake", "--stack", stack, "--dry-run", "--json"])
    assert json.loads(done.output) == {"name": current_name(planned(stack, {}).plan), "baked_image": None}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_bake_with_exit_code_130(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    request = bake.request_of("local")
    cleaned: list[bool] = []

    def here(*_: object) -> str:
        try:
            os.kill(os.getpid(), number)
            return "no signal"
        finally:
            # A second signal does not interrupt the removal of the builder.
            os.kill(os.getpid(), number)
            cleaned.append(True)

    baking = Baking(base=request.baking.base, here=here)
    monkeypatch.setattr(bake, "request_of", lambda _: replace(request, baking=baking))
    before = signal.getsignal(number)
    done = CliRunner().invoke(app, ["bake"])
    assert done.exit_code == 130, done.output
    assert cleaned == [True]
    assert signal.getsignal(number) is before


def test_the_stack_file_of_a_qualified_stack_is_found() -> None:
    assert bake.request_of("acme/trainyard/local") == bake.request_of("local")


def test_images_of_hosts_are_refused_with_the_reason() -> None:
    done = CliRunner().invoke(app, ["bake", "--stack", "lambda-a6000"])
    assert done.exit_code == 1
    assert "the platform uses existing hosts" in done.output


def test_json_needs_dry_run_in_a_cloud() -> None:
    done = CliRunner().invoke(app, ["bake", "--stack", "azure-a100", "--json"])
    assert done.exit_code == 2
    assert "--dry-run" in done.output
