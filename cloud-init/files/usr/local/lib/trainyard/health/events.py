"""Events that the cloud announces to a machine: evictions, reboots and maintenance. Only root can read them."""

from __future__ import annotations

import json
from collections.abc import Callable

from health.core import Check, Node, Outcome, failed, passed, unknown

EVENT = "event"
"""The check's id."""

_AZURE = {"Metadata": "true"}
_GOOGLE = {"Metadata-Flavor": "Google"}
_LEAVES = frozenset({"Reboot", "Redeploy", "Preempt", "Terminate"})
"""Types of Azure events that end the machine's processes. "Freeze" pauses the machine for seconds."""


def _scheduled_events(node: Node, timeout: float) -> str | None:
    """Return the announced event, "" if no event is announced, or None if the service does not answer.

    Source: MicrosoftDocs/azure-compute-docs at 533281db, articles/virtual-machines/linux/scheduled-events.md, "Use the
    API" (read 2026-11-22): a document with the array `Events`, whose items have `EventType`, `Resources` (names of the
    affected machines, which can be others of the same set), `EventStatus` and `NotBefore`. The first request can take
    two minutes. The name of the machine is `compute/name` in the instance metadata.
    """
    if "machine" not in node.memo:
        name = node.fetch("/metadata/instance/compute/name?api-version=2021-02-01&format=text", _AZURE, timeout)
        if name is None:
            return None
        node.memo["machine"] = name.strip()
    text = node.fetch("/metadata/scheduledevents?api-version=2020-07-01", _AZURE, timeout)
    if text is None:
        return None
    for event in json.loads(text)["Events"]:
        if event["EventType"] in _LEAVES and node.memo["machine"] in event["Resources"]:
            when = f" after {event['NotBefore']}" if event.get("NotBefore") else ""
            return f"{event['EventType']}{when}"
    return ""


def _maintenance_event(node: Node, timeout: float) -> str | None:
    """Return the announced event, "" if no event is announced, or None if the service does not answer.

    Sources, read 2026-11-22: Google Cloud, "Query metadata server for maintenance event notices" (`maintenance-event`
    is NONE, MIGRATE_ON_HOST_MAINTENANCE or TERMINATE_ON_HOST_MAINTENANCE; machines with GPUs cannot migrate), and the
    README of banzaicloud/preemption-exporter (`preempted` is TRUE after the notice of an eviction).
    """
    for key, event, words in (
        ("preempted", "TRUE", "preemption"),
        ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE", "termination for host maintenance"),
    ):
        value = node.fetch(f"/computeMetadata/v1/instance/{key}", _GOOGLE, timeout)
        if value is None:
            return None
        if value.strip() == event:
            return words
    return ""


_SERVICES: dict[str, Callable[[Node, float], str | None]] = {
    "azure": _scheduled_events,
    "google": _maintenance_event,
}
"""Functions that read a metadata service, by the value of Node.announcer."""


def event(node: Node, check: Check) -> Outcome:
    found = _SERVICES[node.announcer](node, check.timeout)
    if found is None:
        return unknown("the metadata service does not answer")
    return failed(f"the cloud announces {found}") if found else passed()


CHECKS: dict[str, Callable[[Node, Check], Outcome]] = {EVENT: event}
