"""The only module that reads pulumi.Config."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.runtime import get_config_env, is_config_secret

from components.plan.check import Level
from components.plan.plan import ClusterPlan
from components.platforms.local.computer import THIS_COMPUTER
from components.stackfile.read import CLUSTER_KEY, NAMESPACE, RUN_KEYS, parse_config
from trainyard.errors import ClusterError
from trainyard.machines import ACCEPT, ALERT_WEBHOOK, BAKE, BUILD, END_JOBS, KEEP
from trainyard.project import stack_file


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The current stack's plan, and what the user permits or requests for this run."""

    plan: ClusterPlan
    accepted_host_keys: frozenset[str]
    """Fingerprints of the SSH host keys that are allowed to replace a machine's recorded key."""
    end_jobs: frozenset[str]
    """IDs of the running jobs that this run is allowed to end."""
    bakes: bool
    """Whether the stack contains an image instead of a cluster."""
    builds: bool
    """Whether the stack also contains the builder of the image."""
    alert_webhook: pulumi.Output[str] | None
    """The secret URL that receives alerts."""


def load_settings() -> Settings:
    """Return the current stack's settings, and log warnings and notes about the stack file. Raises pulumi.RunError."""
    file = stack_file(pulumi.get_stack())
    # Reading all keys in the namespace lets `parse_config` reject misspelt keys.
    keys = {key for key in get_config_env() if key.startswith(f"{NAMESPACE}:")} | {CLUSTER_KEY, *RUN_KEYS}
    keys.discard(ALERT_WEBHOOK)
    found = {key: pulumi.Config(NAMESPACE).get(key.removeprefix(f"{NAMESPACE}:")) for key in sorted(keys)}
    config: dict[str, Any] = {key: value for key, value in found.items() if value is not None}
    # Pulumi passes sections as JSON. If the section is not JSON, `parse_config` rejects it.
    with suppress(KeyError, ValueError):
        config[CLUSTER_KEY] = json.loads(config[CLUSTER_KEY])
    try:
        stack = parse_config(config, file, secret=is_config_secret(CLUSTER_KEY), computer=THIS_COMPUTER)
    except ClusterError as error:
        raise pulumi.RunError(str(error)) from error
    # `yard bake` has already checked the stack file, and `file` would name the image's stack instead.
    for finding in stack.findings if BAKE not in config else ():
        log = pulumi.log.warn if finding.level is Level.WARNING else pulumi.log.info
        log(f"{finding.problem.line(file, is_note=finding.level is Level.INFO)} [{finding.check}]")
    return Settings(
        plan=stack.plan,
        accepted_host_keys=_listed(config.get(ACCEPT)),
        end_jobs=_listed(config.get(END_JOBS)),
        bakes=config.get(BAKE) in {BUILD, KEEP},
        builds=config.get(BAKE) == BUILD,
        alert_webhook=pulumi.Config(NAMESPACE).get_secret(ALERT_WEBHOOK.removeprefix(f"{NAMESPACE}:")),
    )


def _listed(value: str | None) -> frozenset[str]:
    return frozenset((value or "").split(",")) - {""}
