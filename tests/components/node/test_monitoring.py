"""The configuration of Prometheus and Alertmanager, and where secrets are."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from components.node.bundle import Bundle, render_bundle
from components.node.handover import handover_files
from components.node.monitoring import NODE_PORT, render_monitoring
from components.node.parameters import ON_HEAD, render_repair
from components.plan.plan import ClusterPlan
from components.stackfile.read import parse_stack
from tests.components.platforms.recording import stack_text
from tests.people import HANDED_OVER
from trainyard.errors import CatalogError, StackFileError
from trainyard.machines import ALERT_WEBHOOK

SECRET = "https://hooks.example.org/T0/verysecret"  # noqa: S105  (not a real secret)
MAIL = {"to": "ops@example.org", "relay": "mail.example.org:25"}


def planned(monitoring: Any = None, name: str = "local", secret: Any = None) -> ClusterPlan:
    document = yaml.safe_load(stack_text(name))
    if monitoring is not None:
        document["config"]["trainyard:cluster"]["monitoring"] = monitoring
    if secret is not None:
        document["config"][ALERT_WEBHOOK] = secret
    return parse_stack(yaml.safe_dump(document), "f").plan


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("local", None, None),
        ("local", True, (15, 5)),
        ("local", {"retention_days": 30}, (30, 5)),
        ("azure-a100", None, (15, 5)),
        ("azure-a100", False, None),
        ("gcp-a2", {"enabled": False}, None),
        ("baremetal-h100", None, None),
    ],
)
def test_only_clouds_are_monitored_by_default(name: str, given: Any, expected: tuple[int, int] | None) -> None:
    found = planned(given, name).monitoring
    assert (found and (found.retention_days, found.retention_gb)) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("sometimes", "cluster.monitoring: must be true, false or a section of keys and values. Fix: write monit"),
        ({"webhook": "ftp://x"}, "cluster.monitoring.webhook: must be a URL"),
        ({"email": {"to": "ops"} | {"relay": "x:25"}}, "cluster.monitoring.email.to: must be an e-mail address"),
        ({"enabled": False, "email": MAIL}, "cluster.monitoring: no alerts exist without monitoring"),
        ({"enabled": 3}, "cluster.monitoring.enabled: must be true or false"),
    ],
)  # fmt: skip
def test_a_wrong_section_is_refused(given: Any, message: str) -> None:
    with pytest.raises(StackFileError) as refused:
        planned(given)
    assert message in str(refused.value)


def test_every_node_is_a_target_with_its_name() -> None:
    plan = planned(True)
    config = yaml.safe_load(render_monitoring(plan)["monitoring/prometheus.yml"])
    nodes = config["scrape_configs"][0]["static_configs"]
    assert [row["labels"]["instance"] for row in nodes] == [host.name for host in plan.hosts]
    assert [row["targets"] for row in nodes] == [[f"{host.private_ip}:{NODE_PORT}"] for host in plan.hosts]
    assert "alerting" not in config


def test_the_secret_url_is_only_in_the_handover() -> None:
    plan = planned({"webhook": "https://plain.example.org"})
    files = render_monitoring(plan, SECRET)
    [receiver] = yaml.safe_load(files["monitoring/alertmanager.yml"])["receivers"]
    assert receiver["webhook_configs"] == [{"url": SECRET}]
    assert [path for path, text in files.items() if "hooks.example" in text] == ["monitoring/alertmanager.yml"]
    keys = {host.name: "key" for host in plan.hosts}
    handed = handover_files(plan, keys, HANDED_OVER, Bundle(archive=b"", digest=""))
    assert {"monitoring/prometheus.yml", "monitoring/alertmanager.yml"} <= handed.keys()
    assert b"plain.example.org" not in render_bundle(plan, ON_HEAD).archive


def test_a_secret_that_is_no_url_is_refused() -> None:
    with pytest.raises(CatalogError, match=ALERT_WEBHOOK) as refused:
        render_monitoring(planned(True), "verysecret")
    assert "verysecret" not in str(refused.value)
    assert render_monitoring(planned(), SECRET) == {}


def test_the_secret_key_is_a_known_key() -> None:
    assert planned(True, secret={"secure": "v1:abc"}).monitoring is not None


def test_mail_is_sent_through_the_relay() -> None:
    files = render_monitoring(planned({"email": MAIL}))
    [receiver] = yaml.safe_load(files["monitoring/alertmanager.yml"])["receivers"]
    expected = {"to": "ops@example.org", "from": "ops@example.org", "smarthost": "mail.example.org:25"}
    assert receiver["email_configs"] == [expected]


def test_the_head_writes_metrics_only_with_monitoring() -> None:
    assert '"metrics"' not in (render_repair(planned()) or "")
    assert '"usd_per_hour"' in (render_repair(planned(True), usd_per_hour={"head": 1.0}) or "")
