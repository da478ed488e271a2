"""The Grafana dashboards, and that the metrics in dashboards and alerts exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from metrics.page import METRICS

from components.node.monitoring import KEPT, RULES
from tests.yard.conftest import printed, yard
from trainyard.project import ROOT
from yard.dashboards import DASHBOARDS, Dashboard, rendered

ALERTS = ROOT / "cloud-init/files" / RULES.lstrip("/")
PAGE = ROOT / "tests/cloud_init/exporter_page.txt"
"""The page of Debian 12's node exporter (1.5.0) with the options of trainyard-exporter.service, recorded on 2026-11-27
with simulated InfiniBand cards and disks."""
OF_PROMETHEUS = {"up", "ALERTS"}
_FUNCTIONS = re.compile(r"\b[a-zA-Z_]\w*(?=\s*\()")
_WORDS = {"by", "on", "and", "unless", "or", "ignoring", "group_left", "bool"}
SOURCE = {"const": {"type": "prometheus", "uid": "${source}"}}
SCHEMA = {
    "type": "object",
    "required": ["uid", "title", "schemaVersion", "panels", "templating", "time", "refresh"],
    "properties": {
        "uid": {"pattern": "^[a-z-]{1,40}$"},
        "schemaVersion": {"type": "integer", "minimum": 39},
        "templating": {
            "properties": {
                "list": {"items": {"required": ["name", "type", "query"],
                                   "properties": {"type": {"enum": ["datasource", "query"]}}}},
            },
        },
        "panels": {
            "minItems": 1,
            "items": {
                "required": ["id", "type", "title", "datasource", "gridPos", "fieldConfig", "targets"],
                "properties": {
                    "type": {"enum": ["timeseries", "stat", "table"]},
                    "datasource": SOURCE,
                    "gridPos": {"required": ["x", "y", "w", "h"], "additionalProperties": {"type": "integer"}},
                    "fieldConfig": {"required": ["defaults", "overrides"]},
                    "targets": {
                        "minItems": 1,
                        "items": {"required": ["refId", "expr", "datasource"], "properties": {"datasource": SOURCE}},
                    },
                },
            },
        },
    },
}  # fmt: skip
"""The parts of Grafana's dashboard model that the dashboards use (Grafana documentation, "Dashboard JSON model", read
2026-11-27)."""


def expressions() -> dict[str, str]:
    """Return a mapping from panel, variable or alert to its expression."""
    found: dict[str, str] = {}
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            found |= {f"{dashboard.name}: {panel.title}: {legend}": query for legend, query in panel.queries.items()}
        for name, query in dashboard.variables.items():
            label_values = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
            assert label_values, query
            found[f"{dashboard.name}: {name}"] = label_values[1]
    for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]:
        found[rule["alert"]] = rule["expr"]
    return found


def metrics_in(expression: str) -> set[str]:
    """Return the names of the metrics in an expression."""
    without = re.sub(r'"[^"]*"|\{[^{}]*\}|\[[^\]]*\]', " ", expression)
    without = re.sub(r"\b(?:by|on|group_left|ignoring)\s*\([^()]*\)", " ", without)
    return set(re.findall(r"\b[a-zA-Z_]\w*\b", _FUNCTIONS.sub(" ", without))) - _WORDS


def test_the_names_in_an_expression_are_found() -> None:
    text = 'avg by (job) (rate(a_total{x=~"b"}[5m])) * on (job) group_left (y) c_d == 1 and label_replace(e, "f", "$1")'
    assert metrics_in(text) == {"a_total", "c_d", "e"}


@pytest.mark.parametrize(("where", "expression"), expressions().items(), ids=list(expressions()))
def test_every_named_metric_exists(where: str, expression: str) -> None:
    recorded = set(re.findall(r"(?m)^(\w+)", PAGE.read_text()))
    kept = {name for name in recorded if re.fullmatch("|".join(KEPT), name)}
    found = metrics_in(expression)
    assert found, where
    assert found - METRICS.keys() - kept - OF_PROMETHEUS == set()


def test_the_recorded_page_has_all_metrics_of_a_node() -> None:
    recorded = set(re.findall(r"(?m)^(trainyard_\w+)", PAGE.read_text()))
    assert recorded == {name for name in METRICS if re.match("trainyard_(gpu_|cpu|health|job_)", name)}


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)
def test_a_dashboard_has_grafanas_structure(dashboard: Dashboard) -> None:
    document: dict[str, Any] = rendered(dashboard)
    Draft202012Validator(SCHEMA).validate(document)
    assert [panel["id"] for panel in document["panels"]] == list(range(1, len(document["panels"]) + 1))
    places = [panel["gridPos"] for panel in document["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        pairs = [(first, second, *names) for first, second in ((one, other), (other, one)) for names in ("xw", "yh")]
        assert any(first[axis] + first[size] <= second[axis] for first, second, axis, size in pairs), (one, other)
    used = set(re.findall(r"\$(?!__|1)\{?(\w+)", json.dumps(document["panels"])))
    assert used == {variable["name"] for variable in document["templating"]["list"]}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool of Debian's package prometheus")
def test_the_expressions_are_valid(tmp_path: Path) -> None:
    rules = [
        {"record": f"x:{number}", "expr": text.replace("$__rate_interval", "2m")}
        for number, text in enumerate(expressions().values())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_yard_writes_one_file_for_each_dashboard(tmp_path: Path) -> None:
    out = printed("dashboards", "--output", str(tmp_path / "new" / "folder"))
    names = ["cluster", "node", "job", "cost"]
    assert out.splitlines() == [f"written: {tmp_path}/new/folder/{name}.json" for name in names]
    titles = [json.loads((tmp_path / f"new/folder/{name}.json").read_text())["title"] for name in names]
    assert titles == [f"Trainyard: {name}" for name in names]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = yard("dashboards", "--output", str(tmp_path / "file"))
    assert code == 1
    assert "Fix: choose another folder with --output" in " ".join(err.split())
