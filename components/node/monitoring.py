"""Renders the configuration of Prometheus and of Alertmanager, which the stage 82-monitoring starts on the head.

The tests run Prometheus 2.42, node exporter 1.5 and Alertmanager 0.25 of Debian 12.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from components.plan.plan import ClusterPlan
from components.spec.monitoring import WEBHOOK, MonitoringSpec
from trainyard.errors import CatalogError

NODE_PORT, PROMETHEUS_PORT, ALERTMANAGER_PORT = 19100, 19090, 19093
"""Ports of the exporter on each node, and of Prometheus and Alertmanager on the head. They are not the usual ports,
because the owner of an existing host can have own exporters, and jobs can use the usual ports."""
INTERVAL_SECONDS = 30
RULES = "/usr/local/lib/trainyard/metrics/alerts.yml"
_TIMEOUT_SECONDS = 10
KEPT = (
    "trainyard_.+",
    "node_disk_(read_bytes|written_bytes|io_time_seconds)_total",
    "node_filesystem_((avail|size)_bytes|readonly)",
    "node_infiniband_((link_downed|symbol_error|port_data_(received|transmitted)_bytes|port_errors_received"
    "|port_discards_transmitted|port_transmit_wait)_total|rate_bytes_per_second|state_id)",
    "node_load1",
    "node_memory_(MemTotal|MemAvailable)_bytes",
    "node_network_(receive|transmit)_(bytes|errs|drop)_total",
    "node_textfile_(mtime_seconds|scrape_error)",
    "node_vmstat_oom_kill",
)
"""The metrics that Prometheus stores. Otherwise, 64 nodes with GPUs and InfiniBand would need more than 256 MiB."""


def render_monitoring(plan: ClusterPlan, webhook: str | None = None) -> dict[str, str]:
    """Return a mapping from file in the head's hand-over to its content. It is empty without monitoring.

    `webhook` is the secret URL that receives alerts, instead of the one in the stack file. Raises CatalogError if it is
    not a URL.
    """
    if plan.monitoring is None:
        return {}
    if webhook is not None and not re.fullmatch(WEBHOOK, webhook):
        raise CatalogError("the secret trainyard:alert_webhook must be a URL that begins with http:// or https://")
    receiver = _receiver(plan.monitoring, webhook or plan.monitoring.webhook)
    files = {"monitoring/prometheus.yml": _yaml(prometheus_config(plan, has_receiver=bool(receiver)))}
    if receiver:
        files["monitoring/alertmanager.yml"] = _yaml(alertmanager_config(plan, receiver))
    return files


def render_parameters(plan: ClusterPlan) -> str:
    """Return monitoring.env with the ports and limits. The file is empty without monitoring."""
    if plan.monitoring is None:
        return ""
    values = {
        "alertmanager_port": ALERTMANAGER_PORT,
        "node_port": NODE_PORT,
        "prometheus_port": PROMETHEUS_PORT,
        "retention_days": plan.monitoring.retention_days,
        "retention_gb": plan.monitoring.retention_gb,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())


def prometheus_config(plan: ClusterPlan, *, has_receiver: bool) -> dict[str, Any]:
    """Return prometheus.yml. The label `instance` of each series is the name of the node."""
    head = str(plan.head.private_ip)
    targets = [
        {"targets": [f"{host.private_ip}:{NODE_PORT}"], "labels": _labels(host.name, host.group)} for host in plan.hosts
    ]
    own = {"targets": [f"{head}:{PROMETHEUS_PORT}"], "labels": _labels(plan.head.name, plan.head.group)}
    keep = {"source_labels": ["__name__"], "regex": "|".join(KEPT), "action": "keep"}
    config: dict[str, Any] = {
        "global": {
            "scrape_interval": f"{INTERVAL_SECONDS}s",
            "scrape_timeout": f"{_TIMEOUT_SECONDS}s",
            "evaluation_interval": f"{INTERVAL_SECONDS}s",
            "external_labels": {"cluster": plan.name},
        },
        "rule_files": [RULES],
        "scrape_configs": [
            # A faulty exporter cannot fill the memory.
            {"job_name": "node", "sample_limit": 4000, "static_configs": targets, "metric_relabel_configs": [keep]},
            {"job_name": "prometheus", "static_configs": [own]},
        ],
    }
    if has_receiver:
        config["alerting"] = {
            "alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{ALERTMANAGER_PORT}"]}]}],
        }
    return config


def alertmanager_config(plan: ClusterPlan, receiver: Mapping[str, Any]) -> dict[str, Any]:
    """Return alertmanager.yml. Alerts with the same name are sent in one message, again after 12 hours."""
    return {
        "route": {
            "receiver": "stack-file",
            "group_by": ["alertname"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "12h",
        },
        "receivers": [{"name": "stack-file", **receiver}],
    }


def _receiver(spec: MonitoringSpec, webhook: str | None) -> dict[str, Any]:
    receiver: dict[str, Any] = {}
    if webhook is not None:
        receiver["webhook_configs"] = [{"url": webhook}]
    if spec.email is not None:
        sender = spec.email.sender or spec.email.to
        receiver["email_configs"] = [{"to": spec.email.to, "from": sender, "smarthost": spec.email.relay}]
    return receiver


def _labels(name: str, group: str | None) -> dict[str, str]:
    return {"instance": name, "group": group or "head"}


def _yaml(config: Mapping[str, Any]) -> str:
    # Without aliases and with the same text for equal values.
    text: str = yaml.safe_dump(json.loads(json.dumps(config)), sort_keys=False, width=4096)
    return text
