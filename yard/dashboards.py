"""Grafana dashboards for the metrics of a cluster (docs/monitoring.md), as JSON.

The format is Grafana's dashboard model with schemaVersion 39, which Grafana 11 and later import (Grafana documentation,
"Dashboard JSON model", read 2026-11-27). No Grafana has imported the dashboards yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 39
_COLUMNS = 24
"""Width of a dashboard in Grafana's grid."""
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_RATE = "$__rate_interval"


@dataclass(frozen=True)
class Panel:
    """A panel. `queries` is a mapping from the legend to the expression."""

    title: str
    unit: str
    queries: Mapping[str, str]
    kind: str = "timeseries"
    width: int = 12
    highest: float | None = None


@dataclass(frozen=True)
class Dashboard:
    """A dashboard. `variables` is a mapping from the name of a selection to the query for its values."""

    name: str
    title: str
    panels: Sequence[Panel]
    variables: Mapping[str, str]


def _numbers(*panels: tuple[str, str, str]) -> tuple[Panel, ...]:
    """Return panels with one number each. The arguments are titles, units and expressions."""
    return tuple(Panel(title, unit, {"": query}, "stat", 4) for title, unit, query in panels)


_ON_JOB = 'on (instance, gpu) group_left (slurm_job) trainyard_gpu_job{slurm_job=~"$job"}'
_NODE = 'instance=~"$node"'
_UTILIZATION = f"trainyard_gpu_utilization_percent{{{_NODE}}}"
_THROTTLED = f"trainyard_gpu_throttled{{{_NODE}}} == 1"
_FAILED = f"trainyard_health_check_failed{{{_NODE}}} == 1"
_XIDS = f"increase(trainyard_gpu_xid_errors_total{{{_NODE}}}[1h])"
_NVLINK = f"rate(trainyard_gpu_nvlink_bytes_total{{{_NODE}}}[{_RATE}])"
_NVLINK_ERRORS = f"increase(trainyard_gpu_nvlink_errors_total{{{_NODE}}}[1h])"
_CPU = f'sum by (instance) (rate(trainyard_cpu_seconds_total{{mode!~"idle|iowait",{_NODE}}}[{_RATE}]))'

CLUSTER = Dashboard(
    "cluster",
    "Trainyard: cluster",
    (
        *_numbers(
            ("Busy nodes", "short", 'trainyard_nodes{state="busy"}'),
            ("Nodes out of service", "short", 'trainyard_nodes{state="out"}'),
            ("Allocated GPUs", "short", "trainyard_gpus_allocated"),
            ("GPUs in service", "short", "trainyard_gpus_in_service"),
            ("Waiting jobs", "short", 'sum(trainyard_jobs{state="pending"}) or vector(0)'),
            ("Firing alerts", "short", 'count(ALERTS{alertstate="firing"}) or vector(0)'),
        ),
        Panel("GPU utilization", "percent", {"mean": "avg(trainyard_gpu_utilization_percent)"}, highest=100),
        Panel("GPUs", "short", {"allocated": "trainyard_gpus_allocated", "in service": "trainyard_gpus_in_service"}),
        Panel("Nodes by state", "short", {"{{state}}": "trainyard_nodes"}),
        Panel("Jobs by state", "short", {"{{state}}": "sum by (state) (trainyard_jobs)"}),
        Panel("GPUs by user", "short", {"{{user}}": "trainyard_user_gpus"}),
        Panel("GPU power", "watt", {"{{instance}}": "sum by (instance) (trainyard_gpu_power_watts)"}),
        Panel("Nodes out of service", "short", {"{{node}}: {{cause}}": "trainyard_node_fault"}, "table"),
        Panel("Failed health checks", "short", {"{{instance}}": "trainyard_health_check_failed == 1"}, "table"),
    ),
    {},
)
NODE = Dashboard(
    "node",
    "Trainyard: node",
    (
        Panel("GPU utilization", "percent", {"GPU {{gpu}}": _UTILIZATION}, highest=100),
        Panel("GPU memory", "bytes", {"GPU {{gpu}}": f"trainyard_gpu_memory_used_bytes{{{_NODE}}}"}),
        Panel("GPU power", "watt", {"GPU {{gpu}}": f"trainyard_gpu_power_watts{{{_NODE}}}"}),
        Panel("GPU temperature", "celsius", {"GPU {{gpu}}": f"trainyard_gpu_temperature_celsius{{{_NODE}}}"}),
        Panel("GPU clock", "hertz", {"GPU {{gpu}}": f"trainyard_gpu_sm_clock_hertz{{{_NODE}}}"}),
        Panel("Reasons for low clocks", "short", {"GPU {{gpu}}: {{reason}}": _THROTTLED}),
        Panel("Memory errors", "short", {"GPU {{gpu}}: {{kind}}": f"trainyard_gpu_ecc_errors_total{{{_NODE}}}"}),
        Panel("Xids in an hour", "short", {"GPU {{gpu}}: Xid {{xid}}": _XIDS}),
        Panel("NVLink", "Bps", {"GPU {{gpu}} {{direction}}": _NVLINK}),
        Panel("NVLink errors in an hour", "short", {"GPU {{gpu}}: {{kind}}": _NVLINK_ERRORS}),
        Panel("Processors", "short", {"busy": _CPU, "installed": f"trainyard_cpus{{{_NODE}}}"}),
        Panel(
            "Memory",
            "bytes",
            {
                "installed": f"node_memory_MemTotal_bytes{{{_NODE}}}",
                "available": f"node_memory_MemAvailable_bytes{{{_NODE}}}",
            },
        ),
        Panel(
            "Network",
            "Bps",
            {
                "{{device}} in": f"rate(node_network_receive_bytes_total{{{_NODE}}}[{_RATE}])",
                "{{device}} out": f"rate(node_network_transmit_bytes_total{{{_NODE}}}[{_RATE}])",
            },
        ),
        Panel(
            "InfiniBand",
            "Bps",
            {
                "{{device}} in": f"rate(node_infiniband_port_data_received_bytes_total{{{_NODE}}}[{_RATE}])",
                "{{device}} out": f"rate(node_infiniband_port_data_transmitted_bytes_total{{{_NODE}}}[{_RATE}])",
            },
        ),
        Panel(
            "InfiniBand errors",
            "short",
            {
                "{{device}} link down": f"increase(node_infiniband_link_downed_total{{{_NODE}}}[1h])",
                "{{device}} symbols": f"increase(node_infiniband_symbol_error_total{{{_NODE}}}[1h])",
                "{{device}} received": f"increase(node_infiniband_port_errors_received_total{{{_NODE}}}[1h])",
            },
        ),
        Panel(
            "Free disk space",
            "percentunit",
            {"{{mountpoint}}": f"node_filesystem_avail_bytes{{{_NODE}}} / node_filesystem_size_bytes{{{_NODE}}}"},
            highest=1,
        ),
        Panel(
            "Disks",
            "Bps",
            {
                "{{device}} read": f"rate(node_disk_read_bytes_total{{{_NODE}}}[{_RATE}])",
                "{{device}} written": f"rate(node_disk_written_bytes_total{{{_NODE}}}[{_RATE}])",
            },
        ),
        Panel("Failed health checks", "short", {"{{check}}": _FAILED}, "table"),
    ),
    {"node": 'label_values(up{job="node"}, instance)'},
)
JOB = Dashboard(
    "job",
    "Trainyard: job",
    (
        *_numbers(
            ("GPUs", "short", 'count(trainyard_gpu_job{slurm_job=~"$job"})'),
            ("Mean utilization", "percent", f"avg(trainyard_gpu_utilization_percent * {_ON_JOB})"),
            ("Power", "watt", f"sum(trainyard_gpu_power_watts * {_ON_JOB})"),
            ("Goodput", "percentunit", 'max(trainyard_job_goodput_ratio{slurm_job=~"$job"})'),
        ),
        *(
            Panel(title, unit, {"{{instance}} GPU {{gpu}}": f"{metric} * {_ON_JOB}"}, highest=highest)
            for title, unit, metric, highest in (
                ("Utilization", "percent", "trainyard_gpu_utilization_percent", 100),
                ("Memory", "bytes", "trainyard_gpu_memory_used_bytes", None),
                ("Power", "watt", "trainyard_gpu_power_watts", None),
                ("Clock", "hertz", "trainyard_gpu_sm_clock_hertz", None),
                ("Temperature", "celsius", "trainyard_gpu_temperature_celsius", None),
            )
        ),
        Panel(
            "Slowest GPU, share of the median clock",
            "percentunit",
            {
                "slowest": f"min(trainyard_gpu_sm_clock_hertz * {_ON_JOB})"
                f" / quantile(0.5, trainyard_gpu_sm_clock_hertz * {_ON_JOB})"
            },
            highest=1,
        ),
    ),
    {"job": "label_values(trainyard_gpu_job, slurm_job)"},
)
COST = Dashboard(
    "cost",
    "Trainyard: cost",
    (
        *_numbers(
            ("Now, per hour", "currencyUSD", "trainyard_usd_per_hour"),
            ("This month", "currencyUSD", "trainyard_spent_usd"),
            ("Limit per month", "currencyUSD", "trainyard_limit_usd"),
            ("Spent share", "percentunit", "trainyard_spent_usd / trainyard_limit_usd"),
            ("Allocated GPUs", "percentunit", "trainyard_gpus_allocated / trainyard_gpus_in_service"),
        ),
        Panel("Cost per hour", "currencyUSD", {"list price": "trainyard_usd_per_hour"}),
        Panel("Cost of the month", "currencyUSD", {"spent": "trainyard_spent_usd", "limit": "trainyard_limit_usd"}),
        Panel(
            "Use of the GPUs",
            "percentunit",
            {
                "allocated": "trainyard_gpus_allocated / trainyard_gpus_in_service",
                "working": "avg(trainyard_gpu_utilization_percent) / 100",
            },
            highest=1,
        ),
        Panel("GPUs by user", "short", {"{{user}}": "trainyard_user_gpus"}),
    ),
    {},
)
DASHBOARDS = (CLUSTER, NODE, JOB, COST)


def rendered(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard in Grafana's format."""
    source = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    return {
        "uid": f"trainyard-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["trainyard"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "timezone": "browser",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source, *(_variable(*item) for item in dashboard.variables.items())]},
        "panels": _placed(dashboard.panels),
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    found = {"name": name, "label": name, "type": "query", "datasource": _SOURCE, "hide": 0, "sort": 3, "refresh": 2}
    return {**found, "query": {"query": query, "refId": name}, "includeAll": False, "multi": False}


def _placed(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Return the panels in Grafana's format, from left to right and from top to bottom."""
    placed = []
    x = y = height = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > _COLUMNS:
            x, y = 0, y + height
        height = 4 if panel.kind == "stat" else 8
        defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
        if panel.highest is not None:
            defaults["max"] = panel.highest
        placed.append(
            {
                "id": number,
                "type": panel.kind,
                "title": panel.title,
                "datasource": _SOURCE,
                "gridPos": {"x": x, "y": y, "w": panel.width, "h": height},
                "fieldConfig": {"defaults": defaults, "overrides": []},
                "options": {},
                "targets": [_target(chr(ord("A") + at), *item, panel) for at, item in enumerate(panel.queries.items())],
            }
        )
        x += panel.width
    return placed


def _target(letter: str, legend: str, query: str, panel: Panel) -> dict[str, Any]:
    is_table = panel.kind == "table"
    shown = {"instant": is_table, "range": not is_table, "format": "table" if is_table else "time_series"}
    return {"refId": letter, "datasource": _SOURCE, "expr": query, "legendFormat": legend, **shown}


def write(folder: Path) -> list[Path]:
    """Write one JSON file for each dashboard. Return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for dashboard in DASHBOARDS:
        paths.append(folder / f"{dashboard.name}.json")
        paths[-1].write_text(json.dumps(rendered(dashboard), indent=1) + "\n")
    return paths
