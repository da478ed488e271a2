"""`yard checks` and `yard schema`."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from components.plan.check import Check
from components.platforms import PLATFORMS
from components.platforms.registry import platform_facts
from components.stackfile.draft_checks import DRAFT_CHECKS
from components.stackfile.plan_checks import PLAN_CHECKS
from yard.commands.cli import app

CHECKS: list[Check[Any]] = [
    *DRAFT_CHECKS,
    *PLAN_CHECKS,
    *(check for name in PLATFORMS for check in platform_facts(name).checks),
]


def test_check_ids_are_unique() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_each_check_has_a_rule_and_fixes() -> None:
    for check in CHECKS:
        assert check.rule.endswith("."), check.id
        assert check.fixes, check.id
        assert all(check.fixes), check.id


def test_checks_command_lists_all_checks() -> None:
    runner = CliRunner()
    rows = json.loads(runner.invoke(app, ["checks", "--json"]).stdout)
    assert [row["id"] for row in rows] == [check.id for check in CHECKS]
    assert sorted(rows[0]) == ["fixes", "id", "level", "platform", "rule"]
    assert {row["platform"] for row in rows} == {"all", *PLATFORMS}
    shown = runner.invoke(app, ["checks"]).stdout
    assert all(row["id"] in shown for row in rows)


def test_schema_is_the_same_with_json_option() -> None:
    runner = CliRunner()
    assert json.loads(runner.invoke(app, ["schema"]).stdout) == json.loads(
        runner.invoke(app, ["schema", "--json"]).stdout
    )
