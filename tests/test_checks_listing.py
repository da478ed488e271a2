"""The list of checks: complete, and every row says what must hold and what to do."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from components.checks import DRAFT_CHECKS, PLAN_CHECKS
from components.checks.listing import list_checks
from components.platforms import PLATFORMS, platform_checks
from jobs.cli import app

SAID_BY_THE_PLATFORM = {"platform-fits"}
"""Checks that hand on what a platform itself finds: each finding has its own fix."""


def test_every_check_of_every_platform_is_listed_once() -> None:
    expected = {check.id for check in DRAFT_CHECKS} | {check.id for check in PLAN_CHECKS}
    expected |= {check.id for provider in PLATFORMS for check in platform_checks(provider)}
    listed = [check.id for check in list_checks()]
    assert sorted(listed) == sorted(expected)


def test_every_check_says_its_rule_and_its_fix() -> None:
    for check in list_checks():
        assert check.rule.endswith("."), check.id
        assert bool(check.fixes) == (check.id not in SAID_BY_THE_PLATFORM), check.id
        assert all(text and "join(" not in text for text in check.fixes), check.id


def test_words_come_from_the_checks() -> None:
    found = {check.id: check for check in list_checks()}
    assert found["machine-known"].fixes == ("write {meant}", "use one of {some}")
    assert found["azure-fabric"].platform == "azure"
    assert found["price"].level == "info"


def test_the_command_has_two_forms() -> None:
    runner = CliRunner()
    rows = json.loads(runner.invoke(app, ["checks", "--json"]).stdout)
    assert [row["id"] for row in rows] == [check.id for check in list_checks()]
    assert sorted(rows[0]) == ["fixes", "id", "level", "platform", "rule"]
    shown = runner.invoke(app, ["checks"]).stdout
    assert all(row["id"] in shown for row in rows)
    assert json.loads(runner.invoke(app, ["schema"]).stdout) == json.loads(
        runner.invoke(app, ["schema", "--json"]).stdout
    )
